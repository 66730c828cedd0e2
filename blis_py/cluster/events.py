"""The event queue: calls at simulated times, on SimPy's clock.

Ties, the order of calls at the same nanosecond:

| order | what is called |
|---|---|
| `CHANGES` | instances are added and drained: events of extensions |
| `ARRIVALS` | requests are sent, admitted and dispatched, visits begin; SimPy's own events, too |
| `EXPIRIES` | requests that wait at the gateway reach their deadline or time to live |
| `EXAMINATIONS` | flow control examines its queue again |
| `STEP_ENDS` | instances end a step and plan the next one, which therefore sees all of the above |

Within one order, the call that was scheduled first comes first; instances end their steps in the order in
which they were added to the cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from simpy import Environment, Event
from simpy.events import NORMAL, URGENT, EventPriority

CHANGES: Final = URGENT
ARRIVALS: Final = NORMAL
EXPIRIES: Final = EventPriority(2)
EXAMINATIONS: Final = EventPriority(3)
STEP_ENDS: Final = EventPriority(4)

Action = Callable[[int], None]
"""Called with the simulated time."""


class Call(Event):
    """A scheduled call."""

    def __init__(self, env: Environment, action: Action) -> None:
        self.env = env
        self.callbacks = [self._happens]
        self._ok = True
        self._value = None
        self._action: Action | None = action

    def cancel(self) -> None:
        """Cancel the call."""
        self._action = None

    def _happens(self, event: Event) -> None:
        if self._action is not None:
            self._action(int(self.env.now))


class EventQueue:
    """A queue of calls on the clock of a SimPy environment."""

    def __init__(self, env: Environment) -> None:
        self.env = env

    @property
    def now_ns(self) -> int:
        """The simulated time."""
        return int(self.env.now)

    def call_at(self, time_ns: int, action: Action, order: EventPriority = ARRIVALS) -> Call:
        """Schedule `action(time_ns)`, not earlier than now.

        Args:
            order: among calls of the same nanosecond; see the table above.
        """
        call = Call(self.env, action)
        self.env.schedule(call, order, time_ns - int(self.env.now))
        return call
