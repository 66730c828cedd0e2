"""The event queue: calls at simulated times.

Ties, the order of calls at the same nanosecond:

| order | what is called |
|---|---|
| `CHANGES` | instances are added and drained: events of extensions |
| `ARRIVALS` | requests are sent, admitted and dispatched, visits begin, KV arrives; SimPy's own events, too |
| `EXPIRIES` | requests that wait at the gateway reach their deadline or time to live; early ends |
| `EXAMINATIONS` | flow control examines its queue again |
| last (`schedule_last`) | instances end a step and plan the next one, which therefore sees all of the above |

Within one order, the call that was scheduled first comes first; instances end their steps in the order in
which they were added to the cluster. The queue of a run is that of its `SimClock`
(`blis_py.cluster.time.clock`).
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final

from blis_py.core.request import NEVER_NS

CHANGES: Final = 0
ARRIVALS: Final = 1
EXPIRIES: Final = 2
EXAMINATIONS: Final = 3

Action = Callable[[int], None]
"""Called with the simulated time."""
_CANCELLED: Final = -1


class Call:
    """A call that may be scheduled, one time at a time."""

    def __init__(self) -> None:
        self.number = _CANCELLED
        """Place in the order of scheduling."""

    def happen(self, now_ns: int) -> None:
        """Called at its time."""
        raise NotImplementedError

    def cancel(self) -> None:
        """Cancel the call."""
        self.number = _CANCELLED


class ActionCall(Call):
    """A call of a function."""

    def __init__(self, action: Action) -> None:
        super().__init__()
        self._action = action

    def happen(self, now_ns: int) -> None:
        self._action(now_ns)


class EventQueue:
    """A queue of calls, and of the events of a library, in the order of the table above.

    Args:
        process: processes an event that is not a `Call`.
    """

    def __init__(self, process: Callable[[object], None] | None = None) -> None:
        self.now_ns = 0
        """The simulated time."""
        self.when_dry: Callable[[], bool] | None = None
        """Called when no event is left in a run; returns whether it has scheduled one."""
        self._process = process
        self.earliest_ns = NEVER_NS
        """No event comes before this time; the one that would have come then may have been cancelled."""
        self._heap: list[tuple[int, int, int, object]] = []
        self._last = Call()
        self._last_ns = NEVER_NS
        """The call of `schedule_last` and its time."""
        self._count = 0
        self._end_ns = NEVER_NS
        """End of the run."""

    def call_at(self, time_ns: int, action: Action, order: int = ARRIVALS) -> Call:
        """Schedule `action(time_ns)`, not earlier than now.

        Args:
            order: among calls of the same nanosecond; see the table above.

        Raises:
            RuntimeError: as `schedule`.
        """
        call = ActionCall(action)
        self.schedule(call, time_ns, order)
        return call

    def schedule(self, call: Call, time_ns: int, order: int = ARRIVALS) -> None:
        """Schedule a call, not earlier than now; replaces the time at which it was scheduled before.

        Raises:
            RuntimeError: the time has passed, which is a bug of the caller.
        """
        if time_ns < self.now_ns:
            raise RuntimeError(f"scheduled at {time_ns} ns, and now is {self.now_ns} ns")
        self._count = number = self._count + 1
        call.number = number
        if time_ns < self.earliest_ns:
            self.earliest_ns = time_ns
        heappush(self._heap, (time_ns, order, number, call))

    def schedule_last(self, call: Call, time_ns: int) -> None:
        """Schedule the one call that comes behind all others of its nanosecond, not earlier than now.

        There is a single one at a time: it needs no place in the heap.
        """
        self._last, self._last_ns = call, time_ns
        if time_ns < self.earliest_ns:
            self.earliest_ns = time_ns

    def push(self, event: object, time_ns: int, order: int) -> None:
        """Schedule an event that is not a `Call`."""
        self._count += 1
        self.earliest_ns = min(self.earliest_ns, time_ns)
        heappush(self._heap, (time_ns, order, self._count, event))

    def next_ns(self) -> int:
        """Time of the next event, or the end of the run if that is earlier."""
        heap = self._heap
        next_ns = self._last_ns if self._last_ns < self._end_ns else self._end_ns
        while heap:
            time_ns, _, number, event = heap[0]
            if isinstance(event, Call) and event.number != number:
                heappop(heap)
                continue
            return time_ns if time_ns < next_ns else next_ns
        return next_ns

    def __bool__(self) -> bool:
        """Whether an event is scheduled."""
        self.next_ns()
        return bool(self._heap) or self._last_ns != NEVER_NS

    def step(self) -> None:
        """Process the next event; there is one."""
        self.next_ns()
        self._process_head()

    def _is_due(self, end_ns: int | None) -> bool:
        """Whether an event is left, or one before a time."""
        time_ns = self.next_ns()
        is_left = bool(self._heap) or self._last_ns != NEVER_NS
        return is_left and (end_ns is None or time_ns < end_ns)

    def _process_head(self) -> None:
        """Process the next event; the head of the heap is not cancelled."""
        heap = self._heap
        if not heap or self._last_ns < heap[0][0]:
            self.now_ns, self._last_ns = self._last_ns, NEVER_NS
            self.earliest_ns = self.next_ns()
            self._last.happen(self.now_ns)
            return
        self.now_ns, _, _, event = heappop(heap)
        self.earliest_ns = self.next_ns()
        if isinstance(event, Call):
            event.number = _CANCELLED
            event.happen(self.now_ns)
        else:
            assert self._process is not None
            self._process(event)

    def run(self, end_ns: int | None = None) -> None:
        """Process all events, or those before a time."""
        if end_ns is not None:
            self._end_ns = end_ns
            self.earliest_ns = min(self.earliest_ns, end_ns)
        while True:
            while self._is_due(end_ns):
                self._process_head()
            if self or self.when_dry is None or not self.when_dry():
                break
        if end_ns is not None:
            self.now_ns = end_ns
