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

    def record(self, logs: Sequence[InstanceLog], end_ns: int) -> RunRecord:
        """The finished record."""
        instances = [log.record() for log in logs]
        self._forget_unseen_tokens(instances)
        self._set_token_times(instances)
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
            breaks=np.array(sorted(self._breaks()), dtype=np.int64).reshape(-1, 3),
            instances=instances,
            frontend=self.frontend,
            end_ns=end_ns,
        )

    def _forget_unseen_tokens(self, instances: Sequence[InstanceRecord]) -> None:
        """Takes away the tokens that came after their client had given up."""
        gave_up = np.flatnonzero(np.frombuffer(self.outcome, dtype=np.int8) == Outcome.TIMED_OUT)
        if not len(gave_up):
            return
        breaks = self._breaks()
        before = {
            (row, after): before for row, before, after in breaks if self.outcome[row] == Outcome.TIMED_OUT
        }
        for row in gave_up.tolist():
            emitted, last = self.emitted_tokens[row], self.last_step[row]
            ends = instances[self.instance[row]].step_end_ns
            while emitted and ends[last] + emitted * self.frontend.per_token_ns > self.finish_ns[row]:
                emitted -= 1
                last = before.pop((row, last), last - 1)
            self.emitted_tokens[row] = emitted
            self.last_step[row] = last if emitted else -1
            if not emitted:
                self.first_step[row] = -1
        kept = [b for b in breaks if self.outcome[b[0]] != Outcome.TIMED_OUT or (b[0], b[2]) in before]
        self.breaks = array("q", [value for row in kept for value in row])

    def _breaks(self) -> list[list[int]]:
        rows: list[list[int]] = _ints(self.breaks).reshape(-1, 3).tolist()
        return rows

    def _set_token_times(self, instances: Sequence[InstanceRecord]) -> None:
        """First and last token and completion as the client sees them, from the steps that emitted."""
        instance = np.frombuffer(self.instance, dtype=np.int32)
        emitted, first, last = _ints(self.emitted_tokens), _ints(self.first_step), _ints(self.last_step)
        first_token_ns, last_token_ns = _ints(self.first_token_ns), _ints(self.last_token_ns)
        for index, record in enumerate(instances):
            rows = np.flatnonzero((instance == index) & (emitted > 0))
            first_token_ns[rows] = record.step_end_ns[first[rows]] + self.frontend.per_token_ns
            last_token_ns[rows] = record.step_end_ns[last[rows]] + emitted[rows] * self.frontend.per_token_ns
        done = np.frombuffer(self.outcome, dtype=np.int8) <= Outcome.LENGTH_CAPPED
        _ints(self.finish_ns)[done] = last_token_ns[done] + self.frontend.at_end_ns


class InstanceLog:
    """What one instance did, and the fate of the requests dispatched to it."""

    def __init__(self, recorder: Recorder, scheduler: Scheduler, record_steps: bool) -> None:
        self._to = recorder
        self._scheduler = scheduler
        self._ends = array("q")
        """End of every step, from the start of its run."""
        self._starts, self._lengths = array("q"), array("q")
        """Start of every run, and its steps."""
        self._runs = array("d") if record_steps else None

    def steps(self, step: Step, start_ns: int, ends: Sequence[int], steps: int) -> None:
        """A run of `steps` alike steps is over; `ends` are relative to its start."""
        if steps == 1:
            self._ends.append(int(ends[0]))
        elif isinstance(ends, list):
            self._ends.extend(ends[:steps])
        else:
            self._ends.frombytes(np.asarray(ends)[:steps].tobytes())
        self._starts.append(start_ns)
        self._lengths.append(steps)
        if self._runs is not None:
            self._note_run(step, start_ns, steps)

    def _note_run(self, step: Step, start_ns: int, steps: int) -> None:
        assert self._runs is not None
        scheduler, features = self._scheduler, step.features
        self._runs.extend((start_ns, start_ns + self._ends[-1], steps))
        self._runs.extend((len(scheduler.waiting), len(scheduler.running)))
        self._runs.append(scheduler.blocks_in_use(steps))
        self._runs.extend([getattr(features, name) for name in FEATURE_NAMES])

    def enqueued(self, request: Request, ready_ns: int) -> None:
        self._to.enqueue_ns[request.row] = ready_ns

    def unservable(self, request: Request, now_ns: int) -> None:
        self._to.outcome[request.row] = Outcome.UNSERVABLE
        self._to.finish_ns[request.row] = now_ns

    def timed_out(self, request: Request) -> None:
        """The client gave up, at the latest during the step that has just ended."""
        self._to.finish_ns[request.row] = max(request.deadline_ns, self._to.enqueue_ns[request.row])
        self.note(request, Outcome.TIMED_OUT)

    def finished(self, request: Request) -> None:
        """The last token was emitted with the latest step."""
        self.note(request, _OUTCOME_OF[request.finish_reason])  # type: ignore[index]

    def note(self, request: Request, outcome: Outcome) -> None:
        """Where a request stands, and how far it came. It is settled."""
        to, row = self._to, request.row
        to.outcome[row] = outcome
        to.scheduled_ns[row] = request.scheduled_ns
        if request.cached_tokens > 0:
            to.cached_tokens[row] = request.cached_tokens
        if request.preemptions:
            to.preemptions[row] = request.preemptions
        if request.generated:
            to.emitted_tokens[row] = request.generated
            to.first_step[row] = request.first_tick
            to.last_step[row] = request.last_tick
            if request.gaps:
                for before, after in request.gaps:
                    to.breaks.extend((row, before, after))

    def record(self) -> InstanceRecord:
        """The finished record."""
        counters, pool = self._scheduler.counters, self._scheduler.kv.pool
        ends, lengths = _ints(self._ends), _ints(self._lengths)
        runs = None
        if self._runs is not None:
            rows = np.frombuffer(self._runs, dtype=np.float64).reshape(-1, len(RUN_COLUMNS))
            runs = {
                name: rows[:, i] if name == "prefill_prompt_pairs" else rows[:, i].astype(np.int64)
                for i, name in enumerate(RUN_COLUMNS)
            }
        return InstanceRecord(
            num_kv_blocks=self._scheduler.config.num_kv_blocks,
            step_end_ns=np.repeat(_ints(self._starts), lengths) + ends,
            busy_ns=int(ends[np.cumsum(lengths) - 1].sum()),
            peak_kv_blocks=max(pool.total - pool.least_free, self._scheduler.blocks_in_use()),
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
