"""Writes down what happens in a run, as columns, with a few integer stores per request."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from blis_py.core.features import FEATURE_NAMES
from blis_py.core.request import FinishReason, Request
from blis_py.core.scheduler import Scheduler, Step
from blis_py.latency.base import FrontendDelays
from blis_py.metrics.record import InstanceRecord, Outcome, RunRecord
from blis_py.workload.table import Ints, RequestTable

RUN_COLUMNS = ("start_ns", "end_ns", "steps", "waiting", "running", "kv_blocks", *FEATURE_NAMES)

_OUTCOME_OF = {
    FinishReason.STOP: Outcome.COMPLETED,
    FinishReason.LENGTH: Outcome.LENGTH_CAPPED,
    FinishReason.TIMEOUT: Outcome.TIMED_OUT,
}


class Recorder:
    """The request columns of one run; -1 where something has not happened."""

    def __init__(self, table: RequestTable, frontend: FrontendDelays) -> None:
        self.table = table
        self.frontend = frontend
        unset = array("q", [-1]) * len(table)
        zero = array("q", [0]) * len(table)
        self.outcome = array("b", [Outcome.QUEUED]) * len(table)
        self.instance = array("i", [-1]) * len(table)
        self.enqueue_ns, self.scheduled_ns = unset[:], unset[:]
        self.first_token_ns, self.last_token_ns, self.finish_ns = unset[:], unset[:], unset[:]
        self.first_step, self.last_step = unset[:], unset[:]
        self.emitted_tokens, self.cached_tokens, self.preemptions = zero[:], zero[:], zero[:]
        self.breaks = array("q")
        self.ended = 0
        """Requests that have ended."""

    def record(self, logs: Sequence[InstanceLog], end_ns: int) -> RunRecord:
        """The finished record."""
        return RunRecord(
            table=self.table,
            outcome=np.frombuffer(self.outcome, dtype=np.int8),
            instance=np.frombuffer(self.instance, dtype=np.int32),
            enqueue_ns=_ints(self.enqueue_ns),
            scheduled_ns=_ints(self.scheduled_ns),
            first_token_ns=_ints(self.first_token_ns),
            last_token_ns=_ints(self.last_token_ns),
            finish_ns=_ints(self.finish_ns),
            emitted_tokens=_ints(self.emitted_tokens),
            cached_tokens=_ints(self.cached_tokens),
            preemptions=_ints(self.preemptions),
            first_step=_ints(self.first_step),
            last_step=_ints(self.last_step),
            breaks=_ints(self.breaks).reshape(-1, 3),
            instances=[log.record() for log in logs],
            frontend=self.frontend,
            end_ns=end_ns,
        )


class InstanceLog:
    """What one instance did, and the fate of the requests dispatched to it."""

    def __init__(self, recorder: Recorder, scheduler: Scheduler, record_steps: bool) -> None:
        self._to = recorder
        self._scheduler = scheduler
        self.step_end_ns = array("q")
        self._busy_ns = 0
        self._runs = array("d") if record_steps else None

    def steps(self, step: Step, start_ns: int, ends: Sequence[int], steps: int) -> None:
        """`steps` alike steps are over; `ends` are relative to their start."""
        log = self.step_end_ns
        if steps == 1:
            log.append(start_ns + int(ends[0]))
        elif isinstance(ends, list):
            log.extend([start_ns + end for end in ends[:steps]])
        else:
            log.frombytes((np.asarray(ends[:steps], dtype=np.int64) + start_ns).tobytes())
        self._busy_ns += log[-1] - start_ns
        if self._runs is not None:
            self._note_run(step, start_ns, steps)

    def _note_run(self, step: Step, start_ns: int, steps: int) -> None:
        assert self._runs is not None
        scheduler, features = self._scheduler, step.features
        self._runs.extend((start_ns, self.step_end_ns[-1], steps))
        self._runs.extend((len(scheduler.waiting), len(scheduler.running)))
        self._runs.append(scheduler.blocks_in_use(steps))
        self._runs.extend([getattr(features, name) for name in FEATURE_NAMES])

    def enqueued(self, request: Request, ready_ns: int) -> None:
        self._to.enqueue_ns[request.row] = ready_ns

    def unservable(self, request: Request, now_ns: int) -> None:
        self._to.outcome[request.row] = Outcome.UNSERVABLE
        self._to.finish_ns[request.row] = now_ns
        self._to.ended += 1

    def finished(self, request: Request) -> None:
        """The last token was emitted with the latest step."""
        to, row = self._to, request.row
        self._progress(request)
        to.finish_ns[row] = to.last_token_ns[row] + to.frontend.at_end_ns
        to.outcome[row] = _OUTCOME_OF[request.finish_reason]  # type: ignore[index]
        to.ended += 1

    def timed_out(self, request: Request) -> None:
        """The client gave up; what the step in progress then emitted, it has not seen."""
        to, row = self._to, request.row
        to.outcome[row] = Outcome.TIMED_OUT
        to.finish_ns[row] = max(request.deadline_ns, to.enqueue_ns[row])
        to.ended += 1
        self._progress(request, unseen_after_ns=to.finish_ns[row])

    def still_running(self, request: Request) -> None:
        self._to.outcome[request.row] = Outcome.RUNNING
        self._progress(request)

    def still_queued(self, request: Request) -> None:
        self._to.outcome[request.row] = Outcome.QUEUED
        self._progress(request)

    def _progress(self, request: Request, unseen_after_ns: int | None = None) -> None:
        """How far it came: schedule, tokens, preemptions. The request is settled."""
        to, row, ends = self._to, request.row, self.step_end_ns
        if request.scheduled_ns < 0:
            return
        to.scheduled_ns[row] = request.scheduled_ns
        to.cached_tokens[row] = request.cached_tokens
        to.preemptions[row] = request.preemptions
        emitted, last = request.generated, request.last_tick
        if emitted and unseen_after_ns is not None and ends[last] > unseen_after_ns:
            emitted -= 1
            last = last - 1 if not request.gaps or request.gaps[-1][1] != last else request.gaps[-1][0]
        if not emitted:
            return
        per_token_ns = to.frontend.per_token_ns
        to.emitted_tokens[row] = emitted
        to.first_step[row] = request.first_tick
        to.last_step[row] = last
        to.first_token_ns[row] = ends[request.first_tick] + per_token_ns
        to.last_token_ns[row] = ends[last] + emitted * per_token_ns
        for before, after in request.gaps or ():
            if after <= last:
                to.breaks.extend((row, before, after))

    def record(self) -> InstanceRecord:
        """The finished record."""
        counters, pool = self._scheduler.counters, self._scheduler.kv.pool
        runs = None
        if self._runs is not None:
            rows = np.frombuffer(self._runs, dtype=np.float64).reshape(-1, len(RUN_COLUMNS))
            runs = {
                name: rows[:, i] if name == "prefill_prompt_pairs" else rows[:, i].astype(np.int64)
                for i, name in enumerate(RUN_COLUMNS)
            }
        return InstanceRecord(
            num_kv_blocks=self._scheduler.config.num_kv_blocks,
            step_end_ns=_ints(self.step_end_ns),
            busy_ns=self._busy_ns,
            peak_kv_blocks=pool.total - pool.least_free,
            kv_block_steps=pool.in_use_ticks,
            prefill_tokens=counters.prefill_tokens,
            decode_tokens=self._scheduler.decode_tokens,
            prefix_queried_tokens=counters.prefix_queried_tokens,
            prefix_hit_tokens=counters.prefix_hit_tokens,
            preemptions=counters.preemptions,
            priority_inversions=counters.priority_inversions,
            head_of_line_events=counters.head_of_line_events,
            runs=runs,
        )


def _ints(values: array[int]) -> Ints:
    return np.frombuffer(values, dtype=np.int64) if len(values) else np.zeros(0, dtype=np.int64)
