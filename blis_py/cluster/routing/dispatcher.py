"""Dispatch from the gateway to an instance: routing, hand-over, and renewal of the lookahead."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import TYPE_CHECKING

from blis_py.cluster.recording.recorder import Recorder
from blis_py.cluster.routing.router import Router
from blis_py.cluster.routing.signals import Signals
from blis_py.cluster.time.lookahead import Lookahead
from blis_py.core.request import Request
from blis_py.errors import InputError
from blis_py.metrics.record import NO_INSTANCE, NOT_SERVED

if TYPE_CHECKING:
    from blis_py.cluster.instances.fleet import Membership, MemberState
    from blis_py.cluster.routing.decisions import DecisionLog

_REPORTED_TOGETHER = 4096
"""Number of dispatched requests from one report of progress to the next."""
Progress = Callable[[int, int], None]
"""Called periodically with (requests ended, total requests)."""


class Dispatcher:
    """Dispatch every request to the instance that the router picks.

    Requests for a model that no instance serves are rejected before routing. Without a ready instance
    requests are held until there is one, or rejected if none has been added.

    Args:
        signals: instance state, for a router that reads it.
        log: log of routing decisions; optional.
        unserved: rows of the table whose requests no instance serves.
    """

    def __init__(
        self,
        fleet: Membership,
        router: Router,
        signals: Signals,
        recorder: Recorder,
        lookahead: Lookahead,
        log: DecisionLog | None = None,
        progress: Progress | None = None,
        unserved: Set[int] = frozenset(),
    ) -> None:
        self._fleet, self._instances, self._ready = fleet, fleet.instances, fleet.ready
        self._may_get = set(fleet.ready)
        """The same instances, to look one up."""
        self._held: list[tuple[int, Request]] = []
        """Requests held while no instance is ready."""
        self._router = router
        self._route: Callable[[Request, int], int] = router
        self._signals = signals
        self._recorder = recorder
        self._lookahead = lookahead
        self._log = log
        self._progress = progress
        self._front_end_ns = recorder.frontend.before_enqueue_ns
        self._dispatched = 0
        self._unserved = unserved
        self.looks = router.looks_at_load or log is not None
        """Whether a choice depends on the state of the instances, or is recorded with it."""
        if self.looks:
            signals.watch()
        fleet.follow(self._change)

    def __call__(self, due: Sequence[tuple[int, Request]]) -> None:
        """Dispatch requests in this order, each at its time."""
        if self._unserved:
            due = self._routable(due)
        if not self._ready:
            due = self._without_instance(due)
        if self.looks:
            self._one_by_one(due)
        else:
            self._together(due)
        self._lookahead.look()
        before, self._dispatched = self._dispatched, self._dispatched + len(due)
        if (
            self._progress is not None
            and before // _REPORTED_TOGETHER < self._dispatched // _REPORTED_TOGETHER
        ):
            self.report(self._dispatched)

    def _routable(self, due: Sequence[tuple[int, Request]]) -> list[tuple[int, Request]]:
        """The requests whose model is served; the others are rejected."""
        routable = []
        for now_ns, request in due:
            if request.row not in self._unserved:
                routable.append((now_ns, request))
                continue
            self._reject(request, now_ns, NOT_SERVED)
        return routable

    def _without_instance(self, due: Sequence[tuple[int, Request]]) -> list[tuple[int, Request]]:
        """Hold or reject requests while no instance is ready."""
        if self._fleet.coming:
            self._held.extend(due)
        else:
            for now_ns, request in due:
                self._reject(request, now_ns, NO_INSTANCE)
        return []

    def _change(self, index: int, state: MemberState) -> None:
        """Dispatch held requests once an instance is ready; reject them once none is coming.

        As soon as one instance is not ready, every choice of the router is checked.
        """
        if state == "ready":
            self._may_get.add(index)
        elif state != "added":
            self._may_get.discard(index)
        if len(self._ready) < len(self._instances):
            self._route = self._checked
        if not self._held or (not self._ready and self._fleet.coming):
            return
        now_ns, held = self._fleet.now_ns, self._held
        self._held = []
        for since_ns, request in held:
            self._recorder.held(request, now_ns - since_ns)
        self([(now_ns, request) for _, request in held])

    def _checked(self, request: Request, now_ns: int) -> int:
        """The router's choice, checked.

        Raises:
            InputError: the policy chose an instance that is not ready.
        """
        index = self._router(request, now_ns)
        if index not in self._may_get:
            problem, fix = "chose an instance that is not ready", "choose one of Signals.ready"
            raise InputError(problem, key="routing_policy", value=index, fix=fix)
        return index

    def _reject(self, request: Request, now_ns: int, why: str) -> None:
        self._recorder.rejected(request, now_ns, why)
        if self._recorder.on_end is not None:
            self._recorder.on_end(request, now_ns)

    def _together(self, due: Sequence[tuple[int, Request]]) -> None:
        """Dispatch requests whose routing does not depend on the outcome of earlier ones."""
        route, recorder, front_end_ns = self._route, self._recorder, self._front_end_ns
        inboxes: dict[int, list[tuple[int, Request]]] = {}
        for now_ns, request in due:
            index = route(request, now_ns)
            recorder.dispatched(request, index)
            inbox = inboxes.get(index)
            if inbox is None:
                inboxes[index] = inbox = []
            inbox.append((now_ns + front_end_ns, request))
        for index, arrivals in inboxes.items():
            self._instances[index].submit(arrivals)

    def _one_by_one(self, due: Sequence[tuple[int, Request]]) -> None:
        """Dispatch requests one at a time, after all events before each dispatch."""
        for now_ns, request in due:
            self._signals.look(now_ns)
            index = self._route(request, now_ns)
            if self._log is not None:
                self._log.note(request, now_ns, index)
            self._recorder.dispatched(request, index)
            self._instances[index].submit([(now_ns + self._front_end_ns, request)])

    def report(self, dispatched: int) -> None:
        """Report progress."""
        if self._progress is not None:
            under_way = sum(instance.in_flight for instance in self._instances)
            ended = dispatched + self._recorder.num_rejected - under_way
            self._progress(ended, len(self._recorder.table))
