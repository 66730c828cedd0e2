"""Routing: which instance a request is dispatched to.

A policy is a class and one line in `ROUTING_POLICIES`, or an entry point of a package that is installed:

    [project.entry-points."blis_py.routing_policies"]
    by-prompt = "my_package:ByPrompt"
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from blis_py.cluster.dice import Dice
from blis_py.cluster.least_load import LeastLoad
from blis_py.cluster.signals import Signals
from blis_py.core.request import Request


@dataclass(frozen=True, slots=True)
class RouterSetup:
    """What a router is made of."""

    signals: Signals
    """What it may know of the instances, which it calls by their index there."""
    dice: Dice
    """Its own random stream."""
    scorers: Sequence[tuple[str, float]] = ()
    """Names and weights, for `weighted`."""
    session_of_row: Sequence[int] | None = None
    """The session of each request by `request.row`, -1 where it has none; `None` = there are no sessions."""


class Router(Protocol):
    """Picks an instance by index for a request dispatched now."""

    looks_at_load: bool
    """Whether the choice depends on the state of the instances. Then `Signals.look` has been called when it
    is asked, and it is asked in the order of time; if not, it can be asked ahead of time."""

    def __call__(self, request: Request, now_ns: int) -> int: ...


MakeRouter = Callable[[RouterSetup], Router]


class RoundRobin:
    """Each instance in turn."""

    looks_at_load = False

    def __init__(self, setup: RouterSetup) -> None:
        self._last = setup.signals.count - 1
        self._turn = -1

    def __call__(self, request: Request, now_ns: int) -> int:
        self._turn = self._turn + 1 if self._turn < self._last else 0
        return self._turn


class Random:
    """Any instance, each as likely."""

    looks_at_load = False

    def __init__(self, setup: RouterSetup) -> None:
        self._dice, self._count = setup.dice, setup.signals.count

    def __call__(self, request: Request, now_ns: int) -> int:
        return self._dice.below(self._count)


class LeastLoaded:
    """The instance with the smallest effective load; ties at random."""

    looks_at_load = True

    def __init__(self, setup: RouterSetup) -> None:
        self._dice, self._least = setup.dice, LeastLoad(setup.signals)

    def __call__(self, request: Request, now_ns: int) -> int:
        ties = self._least.ties()
        return self._least.tied(0 if ties == 1 else self._dice.below(ties))


class PowerOfTwo:
    """Of two instances drawn at random, the one with the smaller effective load; ties: the first drawn."""

    looks_at_load = True

    def __init__(self, setup: RouterSetup) -> None:
        self._dice, self._signals = setup.dice, setup.signals

    def __call__(self, request: Request, now_ns: int) -> int:
        count, load = self._signals.count, self._signals.load
        first = self._dice.below(count)
        if count == 1:
            return first
        second = self._dice.below(count - 1)
        second += second >= first
        return second if load[second] < load[first] else first


class AlwaysBusiest:
    """The instance with the largest effective load, the first of them: how bad routing can get."""

    looks_at_load = True

    def __init__(self, setup: RouterSetup) -> None:
        self._signals = setup.signals

    def __call__(self, request: Request, now_ns: int) -> int:
        load = self._signals.load
        return load.index(max(load))


class SessionAffinity:
    """Where the session was before. Its first request, and any without session, goes to the least loaded."""

    looks_at_load = True

    def __init__(self, setup: RouterSetup) -> None:
        self._sessions = setup.session_of_row
        self._least_loaded = LeastLoaded(setup)
        self._home: dict[int, int] = {}

    def __call__(self, request: Request, now_ns: int) -> int:
        session = -1 if self._sessions is None else self._sessions[request.row]
        home = self._home.get(session)
        if home is None:
            home = self._least_loaded(request, now_ns)
            if session >= 0:
                self._home[session] = home
        return home
