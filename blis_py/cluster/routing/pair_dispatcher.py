"""Dispatch to pairs of a prefill and a decode instance, or to the decode instance alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from blis_py.cluster.routing.deciders import Always, Decider
from blis_py.cluster.routing.dispatcher import Dispatcher
from blis_py.cluster.routing.router import Router
from blis_py.cluster.routing.signals import Signals
from blis_py.core.request import Request

if TYPE_CHECKING:
    from collections.abc import Callable

    from blis_py.cluster.instances.fleet import Member
    from blis_py.cluster.instances.handoff import HandOff


class PrefillChoice:
    """Choice of a prefill instance beside a decode instance."""

    def beside(self, request: Request, decode: int, now_ns: int) -> int:
        """The prefill instance of a request; -1 if none is ready, or the decode instance serves both."""
        raise NotImplementedError


class RoutedPrefill(PrefillChoice):
    """Choice among all by a router of their own."""

    def __init__(self, router: Router, signals: Signals) -> None:
        self._signals, self._ready = signals, signals.ready
        self._route: Callable[[Request, int], int] = router
        self.looks = router.looks_at_load
        if self.looks:
            signals.watch()

    def beside(self, request: Request, decode: int, now_ns: int) -> int:
        if not self._ready:
            return -1
        if self.looks:
            self._signals.look(now_ns)
        return self._route(request, now_ns)


class PrefillOfModel(PrefillChoice):
    """Choice by the model of the decode instance.

    Args:
        choices: by pool.
        anywhere: where no decode instance is chosen yet.
        members: the instances by index.
    """

    def __init__(
        self, choices: Mapping[str, RoutedPrefill], anywhere: RoutedPrefill, members: Sequence[Member]
    ) -> None:
        self._choices, self._anywhere, self._members = choices, anywhere, members

    def beside(self, request: Request, decode: int, now_ns: int) -> int:
        choice = self._anywhere if decode < 0 else self._choices.get(self._members[decode].pool.name)
        return -1 if choice is None else choice.beside(request, decode, now_ns)


class PairDispatcher(Dispatcher):
    """Choose the decode instance, decide, and begin the hand-over or dispatch to that instance alone.

    The instances, the router and the signals are those of the decode side. Call `pair` before use.
    """

    @property
    def signals(self) -> Signals:
        """The signals of the decode side."""
        return self._signals

    def pair(self, decides: Decider, handoff: HandOff, prefill: PrefillChoice, decode_first: bool) -> None:
        """Connect the hand-over.

        Args:
            prefill: the choice of a prefill instance beside a decode instance.
            decode_first: whether the decode instance is chosen now; otherwise when the prefill is done.
        """
        self._decides, self._handoff, self._prefill = decides, handoff, prefill
        self._always = isinstance(decides, Always)
        self._decode_first = decode_first
        if decides.looks_at_load and not self.looks:
            self.looks = True
            self._signals.watch()

    def choose(self, request: Request, now_ns: int) -> int:
        """The decode instance of a request, which is recorded; -1 if none is ready."""
        index = self._candidate(request, now_ns)
        if self._log is not None and index >= 0:
            self._log.note(request, now_ns, index)
        return index

    def _candidate(self, request: Request, now_ns: int) -> int:
        if not self._ready:
            return -1
        if self.looks:
            self._signals.look(now_ns)
        return self._route(request, now_ns)

    def _together(self, due: Sequence[tuple[int, Request]]) -> None:
        self._one_by_one(due)

    def _one_by_one(self, due: Sequence[tuple[int, Request]]) -> None:
        for now_ns, request in due:
            if self._decode_first:
                index = self._decode_first_one(request, now_ns)
            else:
                index = self._prefill_first_one(request, now_ns)
            if index >= 0:
                self._recorder.dispatched(request, index)
                self._instances[index].submit([(now_ns + self._front_end_ns, request)])

    def _decode_first_one(self, request: Request, now_ns: int) -> int:
        """Begin a hand-over to the decode instance; or that instance, if it serves the request alone."""
        index = self.choose(request, now_ns)
        decided = self._always or self._decides(request, index)
        apart = decided and self._begins(request, index, now_ns)
        return -1 if apart else index

    def _prefill_first_one(self, request: Request, now_ns: int) -> int:
        """The same, with a decode instance that is chosen when the prefill is done.

        A decider that looks at an instance sees the one that would be chosen now.
        """
        candidate = self._candidate(request, now_ns) if self._decides.looks_at_load else -1
        apart = self._decides(request, candidate) and self._begins(request, -1, now_ns)
        return -1 if apart else self.choose(request, now_ns)

    def _begins(self, request: Request, decode: int, now_ns: int) -> bool:
        prefill = self._prefill.beside(request, decode, now_ns)
        return prefill >= 0 and self._handoff.begin(request, prefill, decode, now_ns)
