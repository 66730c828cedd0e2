"""Ends that a client sees while its instance is within a step: timeouts, refusals and evictions.

An instance handles them at the end of its step, as of the time at which they happened. A client that waits
for the end of a request goes on at that time, not at the end of the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from blis_py.cluster.ingress.source import Source
from blis_py.cluster.instances.instance import Instance
from blis_py.cluster.recording.recorder import Recorder
from blis_py.cluster.time.events import EXPIRIES, EventQueue
from blis_py.core.request import WAITING, Request


class EarlyEnds:
    """Notification of a source about these ends at the time that the record has, each once.

    With a network, of requests that have no token: its delay counts the tokens received, and those of the
    others are known at the end of the step.
    """

    def __init__(
        self, events: EventQueue, recorder: Recorder, instances: Sequence[Instance], source: Source
    ) -> None:
        self._events, self._recorder, self._instances, self._source = events, recorder, instances, source
        self._has_network = source.table.network_ns is not None
        self._most_tokens = min((instance.most_tokens for instance in instances), default=0)
        self._expected: set[int] = set()
        """Rows of requests that have not ended."""
        self._reported: set[int] = set()
        """Rows whose ends the instances have not handled yet."""

    def sent(self, requests: Sequence[Request]) -> None:
        """Expect the ends of requests that are sent now."""
        for request in requests:
            is_too_long = request.prompt_tokens + (request.max_tokens or 1) > self._most_tokens
            if is_too_long or request.deadline_ns >= 0:
                ready_ns = int(self._recorder.ready_ns[request.row])
                time_ns = ready_ns if is_too_long else max(request.deadline_ns, ready_ns)
                self._expected.add(request.row)
                self._events.call_at(time_ns, partial(self._passes, request), EXPIRIES)

    def evicted(self, request: Request) -> None:
        """Expect the end of a request that leaves its instance at the end of the step in progress."""
        time_ns = max(self._events.now_ns, int(self._recorder.ready_ns[request.row]))
        self._expected.add(request.row)
        self._events.call_at(time_ns, partial(self._passes, request), EXPIRIES)

    def ended(self, request: Request, seen_ns: int) -> None:
        """An instance or the gateway has handled the end of a request."""
        self._expected.discard(request.row)
        if request.row in self._reported:
            self._reported.remove(request.row)
        else:
            self._source.ended(request, seen_ns)

    def _passes(self, request: Request, now_ns: int) -> None:
        """The time of an end: report it unless the request has ended, or does with the step in progress.

        A request on its second visit may be on its way between two instances: its end is reported later.
        """
        place = int(self._recorder.instance[request.row])
        if request.row not in self._expected or place < 0 or self._recorder.has_moved(request.row):
            return
        if self._has_network and (request.status is not WAITING or request.generated):
            return
        if self._instances[place].will_drop(request):
            self._reported.add(request.row)
            self._source.ended(request, now_ns)
