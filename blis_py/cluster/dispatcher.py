"""From the gateway to an instance: asks the router, hands requests over, and looks ahead anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from blis_py.cluster.instance import Instance
from blis_py.cluster.outlook import NOT_AT_ALL_NS, Outlook
from blis_py.cluster.recorder import Recorder
from blis_py.cluster.router import Router
from blis_py.cluster.source import CHUNK
from blis_py.core.request import NEVER_NS, Request

Progress = Callable[[int, int], None]
"""Called now and then with (requests ended, requests in all)."""


class Dispatcher:
    """Sends every request to the instance that the router picks."""

    def __init__(
        self,
        instances: Sequence[Instance],
        router: Router,
        recorder: Recorder,
        outlook: Outlook,
        progress: Progress | None = None,
    ) -> None:
        self._instances = instances
        self._route = router
        self._recorder = recorder
        self._outlook = outlook
        self._progress = progress
        self._front_end_ns = recorder.frontend.before_enqueue_ns
        self._dispatched = 0

    def __call__(self, due: Sequence[tuple[int, Request]]) -> None:
        """Dispatches requests, each at its time, in this order."""
        route, recorder, front_end_ns = self._route, self._recorder, self._front_end_ns
        inboxes: dict[int, list[tuple[int, Request]]] = {}
        for now_ns, request in due:
            index = route(request, now_ns)
            recorder.dispatched(request, index)
            inboxes.setdefault(index, []).append((now_ns + front_end_ns, request))
        for index, inbox in inboxes.items():
            self._instances[index].submit(inbox)
        self._outlook.look()
        before, self._dispatched = self._dispatched, self._dispatched + len(due)
        if self._progress is not None and before // CHUNK < self._dispatched // CHUNK:
            self.report(self._dispatched)

    def quiet_until_ns(self) -> int:
        """The router looks at every dispatch, or never."""
        return NOT_AT_ALL_NS if self._route.looks_at_load else NEVER_NS

    def report(self, dispatched: int) -> None:
        """Tells how far the run has come."""
        if self._progress is not None:
            under_way = sum(instance.in_flight for instance in self._instances)
            self._progress(dispatched - under_way, len(self._recorder.table))
