"""Routing: the choice of an instance for a request.

A policy is a class and one line in `ROUTING_POLICIES`, or an entry point of a package that is installed:

    [project.entry-points."blis_py.routing_policies"]
    by-prompt = "my_package:ByPrompt"
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol

from blis_py.cluster.routing.least_load import LeastLoad
from blis_py.cluster.routing.rng import Rng
from blis_py.cluster.routing.signals import Signals
from blis_py.core.request import Request

if TYPE_CHECKING:
    from blis_py.cluster.instances.fleet import MemberState


_FINE = 1 << 40
"""Steps in which a share of all capacity is drawn: the largest share stays below 1 when it is multiplied."""


@dataclass(frozen=True, slots=True)
class RouterSetup:
    """The inputs of a router."""

    signals: Signals
    """The instance state visible to the router; instances are identified by their index there."""
    rng: Rng
    """The router's random stream."""
    scorers: Sequence[tuple[str, float]] = ()
    """Names and weights, for `weighted`."""
    session_of_row: Sequence[int] | None = None
    """Session of each request by `request.row`, -1 if it has none; `None` = there are no sessions."""
    roles: Set[str] = frozenset({"both"})
    """Roles of the pools whose instances it chooses among."""
    notify: Callable[[Callable[[Request, int], None]], None] | None = None
    """Function that adds a listener to the end of every request, and the time at which its client sees it."""


class Router(Protocol):
    """Choice of an instance from `Signals.ready`, by index, for a request dispatched now; there is at least
    one."""

    looks_at_load: bool
    """Whether the choice depends on the state of the instances. If so, `Signals.look` is called before each
    choice, and choices are made in order of time; if not, they may be made ahead of time."""

    def __call__(self, request: Request, now_ns: int) -> int: ...


MakeRouter = Callable[[RouterSetup], Router]


class RoundRobin:
    """Each ready instance in turn."""

    looks_at_load = False

    def __init__(self, setup: RouterSetup) -> None:
        self._ready = setup.signals.ready
        self._turn = -1
        setup.signals.follow(self._change)

    def __call__(self, request: Request, now_ns: int) -> int:
        ready, self._turn = self._ready, self._turn + 1
        if self._turn >= len(ready):
            self._turn = 0
        return ready[self._turn]

    def _change(self, index: int, state: MemberState) -> None:
        """Shift the instances behind one that was added or removed."""
        if bisect_left(self._ready, index) <= self._turn:
            if state == "ready":
                self._turn += 1
            elif state == "draining":
                self._turn -= 1


class WeightedTurns:
    """Each ready instance in turn, as often as its capacity says, and as evenly as possible: the one with the
    most credit, of which every choice gives each its capacity and takes their sum from the chosen one."""

    looks_at_load = False

    def __init__(self, setup: RouterSetup) -> None:
        self._ready, self._weights = setup.signals.ready, setup.signals.weights or []
        self._credits: dict[int, float] = {}

    def __call__(self, request: Request, now_ns: int) -> int:
        credits, total = self._credits, 0.0
        for index in self._ready:
            weight = self._weights[index]
            total += weight
            credits[index] = credits.get(index, 0.0) + weight
        chosen = max(self._ready, key=lambda index: credits[index])
        credits[chosen] -= total
        return chosen


def round_robin(setup: RouterSetup) -> Router:
    """Each ready instance in turn; more often those of more capacity."""
    return RoundRobin(setup) if setup.signals.weights is None else WeightedTurns(setup)


class CountedTurns:
    """Each ready instance in turn, by a count that routers of several pools share, as in BLIS.

    With 2 prefill instances each second count goes to the decode side, so one of them gets every request.
    """

    looks_at_load = False

    def __init__(self, setup: RouterSetup, counts: list[int]) -> None:
        self._ready, self._counts = setup.signals.ready, counts

    def __call__(self, request: Request, now_ns: int) -> int:
        self._counts[0] += 1
        return self._ready[(self._counts[0] - 1) % len(self._ready)]


class Random:
    """A ready instance at random, each as likely as its capacity says."""

    looks_at_load = False

    def __init__(self, setup: RouterSetup) -> None:
        self._rng, self._ready, self._weights = setup.rng, setup.signals.ready, setup.signals.weights

    def __call__(self, request: Request, now_ns: int) -> int:
        weights = self._weights
        if weights is None:
            return self._ready[self._rng.below(len(self._ready))]
        until = list(accumulate([weights[index] for index in self._ready]))
        drawn = self._rng.below(_FINE) / _FINE * until[-1]
        return self._ready[bisect_right(until, drawn)]


class LeastLoaded:
    """The instance with the smallest effective load; ties at random."""

    looks_at_load = True

    def __init__(self, setup: RouterSetup) -> None:
        self._rng, self._least = setup.rng, LeastLoad(setup.signals)

    def __call__(self, request: Request, now_ns: int) -> int:
        ties = self._least.ties()
        return self._least.tied(0 if ties == 1 else self._rng.below(ties))


class PowerOfTwo:
    """Power of two choices: of two instances drawn at random, the one with the smaller effective load (of
    unequal ones that with the request, in relation to their capacity); ties: the first drawn."""

    looks_at_load = True

    def __init__(self, setup: RouterSetup) -> None:
        self._rng, self._signals = setup.rng, setup.signals

    def __call__(self, request: Request, now_ns: int) -> int:
        ready, load = self._signals.ready, self._signals.load
        count = len(ready)
        one = self._rng.below(count)
        if count == 1:
            return ready[one]
        other = self._rng.below(count - 1)
        other += other >= one
        first, second = ready[one], ready[other]
        weights = self._signals.weights
        if weights is None:
            return second if load[second] < load[first] else first
        return second if (load[second] + 1) * weights[first] < (load[first] + 1) * weights[second] else first


class AlwaysBusiest:
    """The instance with the largest effective load, ties to the first: a worst case for comparison."""

    looks_at_load = True

    def __init__(self, setup: RouterSetup) -> None:
        self._signals = setup.signals

    def __call__(self, request: Request, now_ns: int) -> int:
        ready, load = self._signals.ready, self._signals.load
        if self._signals.all_ready:
            return load.index(max(load))
        return max(ready, key=lambda index: load[index])


class SessionAffinity:
    """The instance that served the session before. Its first request, and any request without a session, goes
    to the least loaded, as does one whose instance takes no more requests: the session then stays there."""

    looks_at_load = True

    def __init__(self, setup: RouterSetup) -> None:
        self._sessions = setup.session_of_row
        self._least_loaded = LeastLoaded(setup)
        self._home: dict[int, int] = {}
        self._away: set[int] = set()
        """Instances that take no more requests."""
        setup.signals.follow(self._change)

    def __call__(self, request: Request, now_ns: int) -> int:
        session = -1 if self._sessions is None else self._sessions[request.row]
        home = self._home.get(session)
        if home is None or home in self._away:
            home = self._least_loaded(request, now_ns)
            if session >= 0:
                self._home[session] = home
        return home

    def _change(self, index: int, state: MemberState) -> None:
        if state == "draining":
            self._away.add(index)
