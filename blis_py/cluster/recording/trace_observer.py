"""Observer that writes a trace for Perfetto while a simulation runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blis_py.core.features import StepFeatures
from blis_py.core.request import Request
from blis_py.core.step import Step
from blis_py.latency.step_run import StepRun
from blis_py.metrics.record import Outcome
from blis_py.metrics.visits import Onward
from blis_py.outputs.instance_track import DECODE, PREEMPTED, PREFILL, QUEUED, InstanceTrack
from blis_py.outputs.perfetto import PerfettoWriter, Value

_COMPOSITION = ("prefill_seqs", "prefill_tokens", "decode_seqs", "decode_kv_tokens")


class TraceObserver:
    """An `Observer` with a process for each instance.

    Args:
        pools: name and number of instances of each pool, in the order of the cluster.
    """

    def __init__(self, writer: PerfettoWriter, pools: Sequence[tuple[str, int]]) -> None:
        self._writer = writer
        named = len(pools) > 1
        self._names = [
            f"{pool} {i}" if named else f"instance {i}" for pool, count in pools for i in range(count)
        ]
        self._handed_over: dict[int, tuple[int | None, int]] = {}
        """Number and begin of the hand-over that brought a request to where it is, by row."""
        self._hand_overs = 0

    def beside(self, index: int, scheduler: Any, events: Any) -> Any:
        """See `Observer`."""
        name = self._names[index] if index < len(self._names) else f"instance {index}, added"
        track = InstanceTrack(self._writer, name)
        kind = TracedRounds if hasattr(events, "round") else TracedSteps
        return kind(self, track, scheduler, events, self._writer.window.sample)

    def hand_over(self, request: Request, now_ns: int) -> int:
        """Number of a hand-over that begins."""
        self._hand_overs += 1
        self._handed_over[request.row] = self._hand_overs, now_ns
        return self._hand_overs

    def handed_over(self, request: Request) -> int | None:
        """Number of the hand-over that brought a request; None if it came from outside."""
        return self._handed_over.pop(request.row, (None, 0))[0]

    def sent_ns(self, request: Request) -> int:
        """Time at which a request was sent to its instance: by the client, or by another instance."""
        return self._handed_over.get(request.row, (None, request.arrival_ns))[1]


class Traced:
    """Forwarder of all events; writes every end."""

    def __init__(
        self, observer: TraceObserver, track: InstanceTrack, scheduler: Any, events: Any, sample: int
    ) -> None:
        self._observer, self._track, self._events = observer, track, events
        self._scheduler, self._sample = scheduler, sample
        self._open: dict[int, list[tuple[str, int]]] = {}
        """Phases of requests that are here and have been admitted, with their begins, by row."""
        self._now_ns = 0

    def idle(self, duration_ns: int) -> None:
        self._events.idle(duration_ns)

    def unservable(self, request: Request, now_ns: int) -> None:
        self._close(request, now_ns, "unservable")
        self._events.unservable(request, now_ns)

    def timed_out(self, requests: list[Request]) -> None:
        for request in requests:
            self._close(request, max(self._now_ns, request.arrival_ns), "timed out")
        self._events.timed_out(requests)

    def finished(self, requests: list[Request], end_ns: int) -> None:
        for request in requests:
            self._close(request, end_ns, "completed")
        self._events.finished(requests, end_ns)

    def goes_on(self, requests: list[Request], how: Onward, now_ns: int) -> None:
        for request in requests:
            self._close(request, now_ns, how.name.lower().replace("_", " "), goes_on=True)
        self._events.goes_on(requests, how, now_ns)

    def ended(self, requests: list[Request], outcome: Outcome) -> None:
        for request in requests:
            self._close(request, max(self._now_ns, request.arrival_ns), f"still {outcome.name.lower()}")
        self._events.ended(requests, outcome)

    def in_progress(self, step: Any) -> None:
        self._events.in_progress(step)

    def _phase(self, request: Request, name: str, from_ns: int) -> None:
        if request.row % self._sample:
            return
        phases = self._open.get(request.row)
        if phases is None:
            if request.scheduled_ns >= 0:
                from_ns = request.scheduled_ns  # with asynchronous scheduling, before its first step begins
            phases = self._open[request.row] = [(QUEUED, min(self._observer.sent_ns(request), from_ns))]
        if phases[-1][0] != name:
            phases.append((name, from_ns))

    def _close(self, request: Request, end_ns: int, outcome: str, goes_on: bool = False) -> None:
        sent_ns, brought = self._observer.sent_ns(request), self._observer.handed_over(request)
        flow = self._observer.hand_over(request, end_ns) if goes_on else None
        if request.row % self._sample:
            return
        phases = self._open.pop(request.row, [(QUEUED, sent_ns)])
        ends = [start for _, start in phases[1:]] + [max(end_ns, phases[-1][1])]
        whole = [(name, start, end) for (name, start), end in zip(phases, ends, strict=True) if end > start]
        facts: dict[str, Value] = {
            "request": request.id,
            "prompt tokens": request.prompt_tokens,
            "output tokens": request.generated,
            "cached tokens": max(request.cached_tokens, 0),
            "preemptions": request.preemptions,
            "outcome": outcome,
        }
        self._track.request(whole or [(phases[-1][0], end_ns, end_ns)], facts, flow, brought)

    def _write(self, features: StepFeatures, start_ns: int, ends_ns: Sequence[int], admitted: int) -> None:
        scheduler = self._scheduler
        steps = len(ends_ns)
        self._now_ns = int(ends_ns[-1])
        fields: dict[str, Value] = {
            name: getattr(features, name) for name in _COMPOSITION if hasattr(features, name)
        }
        fields["admitted"] = admitted
        if self._sample > 1 or steps == 1:
            state = len(scheduler.running), scheduler.queue_depth, scheduler.blocks_in_use(steps)
            self._track.step(start_ns, self._now_ns, state, fields, steps)
            return
        for index, end_ns in enumerate(ends_ns):
            state = len(scheduler.running), scheduler.queue_depth, scheduler.blocks_in_use(index + 1)
            self._track.step(start_ns, int(end_ns), state, fields)
            start_ns = int(end_ns)
            fields["decode_kv_tokens"] = int(fields.get("decode_kv_tokens", 0)) + features.decode_seqs


class TracedSteps(Traced):
    """Observer of an autoregressive instance."""

    def steps(self, step: Step, start_ns: int, run: StepRun) -> None:
        for request in step.preempted:
            self._phase(request, PREEMPTED, start_ns)
        for request, tokens in step.prefills:
            if request.continues:
                self._phase(request, DECODE, start_ns)
                continue
            self._phase(request, PREFILL, start_ns)
            if request.computed + tokens >= request.num_tokens:
                self._phase(request, DECODE, run.end_ns)
        ends_ns: Any = run.ends_ns().tolist()
        self._write(step.features, start_ns, ends_ns, len(step.admitted))
        self._events.steps(step, start_ns, run)


class TracedRounds(Traced):
    """Observer of an instance of answers in blocks; its rounds are its steps."""

    def round(self, batch: Any, start_ns: int, end_ns: int) -> None:
        for request in batch.denoise:
            self._phase(request, "denoise", start_ns)
        self._write(batch.features, start_ns, [end_ns], 0)
        self._events.round(batch, start_ns, end_ns)

    def batch(self, batch: Any, outcome: Any) -> None:
        self._events.batch(batch, outcome)

    def commits(self, commits: Any, now_ns: int) -> None:
        self._events.commits(commits, now_ns)
