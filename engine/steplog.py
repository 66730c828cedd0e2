"""Step recorder. A step costs a few appends; tables are built on demand."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from blis_py.core.features import FEATURE_NAMES, SELDOM, StepFeatures, further_names
from blis_py.core.request import Request
from blis_py.core.scheduler import Scheduler
from blis_py.core.step import Step
from blis_py.traces.steplog import StepLog, write_step_log
from blis_py.traces.steplog_columns import (
    FEATURE_KINDS,
    MASK_KINDS,
    MASK_REQUEST_KINDS,
    OVERLAP_KINDS,
    REQUEST_KINDS,
    SCHEMA,
    STEP_KINDS,
    TIMING_KINDS,
)
from engine.grammar.masks import NO_MASKS, MaskTimes
from engine.sequence import Roster, Sequence

if TYPE_CHECKING:
    from blis_py.traces.perfetto import StepTrace

_KINDS = STEP_KINDS | TIMING_KINDS
_NUMBERS = tuple(name for name, kind in _KINDS.items() if kind in ("int", "float"))
_TIMED = _NUMBERS[1:9]
_STATE = tuple(name for name in _NUMBERS[9:] if name not in FEATURE_KINDS | TIMING_KINDS)
assert ("step", *_TIMED, *_STATE, *FEATURE_KINDS, "launch_bound", "launching_ns") == _NUMBERS

_PACK = 1024
"""Steps kept as tuples before packing."""

Times = tuple[int, int, int, int, int, int, int, int]
"""start, end, schedule, prepare, launch, sample, finish and GPU time, in ns."""


class Planned(Protocol):
    """A step, or what the kind of requests has in its place."""

    @property
    def features(self) -> StepFeatures: ...


class StepRecorder:
    """Step log of a running engine.

    Args:
        meta: description of the run; see `StepLog`.
    """

    def __init__(self, meta: dict[str, Any]) -> None:
        self.meta = {"schema": SCHEMA, **meta}
        self.steps = 0
        """Number of completed steps."""
        self._planned = 0
        self._overlapped = bool(self.meta.get("scheduler", {}).get("async_scheduling"))
        self._forwards: list[tuple[int, int]] = []
        """Start and end of each step's forward in ns, with asynchronous scheduling."""
        self._seen_ns: list[int] = []
        """With asynchronous scheduling: planning time in ns of the first step that could know the outcome of
        each."""
        self._latest: list[tuple[float, ...]] = []
        self._packed: list[NDArray[np.float64]] = [np.zeros((0, len(_NUMBERS)))]
        self._lists: dict[str, dict[int, tuple[int, ...]]] = {
            name: {} for name, kind in STEP_KINDS.items() if kind == "ints"
        }
        self._decoding: Roster | None = None
        self._optional = (*(name for name in SELDOM if name not in MASK_KINDS), *further_names())
        self._seldom: dict[str, dict[int, float]] = {name: {} for name in self._optional}
        """Features absent from most runs, by step."""
        self._masks: dict[int, MaskTimes] = {}
        """Mask times of steps with constrained rows."""
        self._states: deque[tuple[int, int, int]] = deque()
        """Waiting and running requests and blocks in use, for each planned, unfinished step."""
        self._arrived: list[tuple[Sequence, int]] = []
        """Requests added since the last step boundary, with the number of their block keys."""
        self._open: dict[int, tuple[Sequence, int, int]] = {}
        """Requests by number, with the boundary at which they were added and the number of their keys."""
        self._closed: dict[int, tuple[Any, ...]] = {}
        """Rows of ended requests, by number."""
        self._abort_ns: dict[int, int] = {}
        self._key_numbers: dict[Hashable, int] = {}
        self._end_ns = 0
        self.trace: StepTrace | None = None
        """Receiver of every step and request as it ends."""

    # -- requests --------------------------------------------------------------------------------

    def added(self, sequence: Sequence) -> None:
        """Record that a request has entered the queue."""
        self._arrived.append((sequence, len(sequence.request.block_keys)))

    def boundary(self, now_ns: int, unfinished: int = 0) -> None:
        """Record a step boundary, at which the requests added since the last one become visible.

        Args:
            unfinished: number of requests including these; given with asynchronous scheduling.
        """
        if self._overlapped and len(self._seen_ns) < self.steps:
            idle = unfinished == len(self._arrived) and self._planned == self.steps
            self._seen_ns.append(self._end_ns if idle else now_ns)
        if self._arrived:
            for sequence, keys in self._arrived:
                self._open[sequence.index] = (sequence, now_ns, keys)
            self._arrived.clear()

    def aborted(self, sequence: Sequence, now_ns: int) -> None:
        self._abort_ns[sequence.index] = now_ns

    # -- steps -----------------------------------------------------------------------------------

    def planned(self, step: Step, scheduler: Scheduler, decoding: Roster) -> None:
        """Record the members of a newly planned step."""
        index, lists = self._planned, self._lists
        self._planned += 1
        if decoding is not self._decoding:
            self._decoding = decoding
            lists["decode_ids"][index] = _rows(decoding)
        if step.prefills:
            lists["prefill_ids"][index] = _rows(request for request, _ in step.prefills)
            lists["prefill_chunks"][index] = tuple(tokens for _, tokens in step.prefills)
        if step.admitted:
            lists["admitted_ids"][index] = _rows(step.admitted)
        if step.preempted:
            lists["preempted_ids"][index] = _rows(step.preempted)
        self._states.append((len(scheduler.waiting), len(scheduler.running), scheduler.blocks_in_use()))

    def masked(self, times: MaskTimes) -> None:
        """Record the mask times of the step about to complete."""
        self._masks[self.steps] = times

    def done(
        self,
        step: Planned,
        times: Times,
        finished: Iterable[Request],
        *,
        bucket: int = 0,
        active_experts: int = -1,
        failed: bool = False,
        launch_bound: bool = False,
        launching_ns: int = 0,
        forward: tuple[int, int] = (-1, -1),
    ) -> None:
        """Record the end of the step planned longest ago.

        Args:
            forward: start and end of its device work in ns, with asynchronous scheduling.
        """
        if self._overlapped:
            self._forwards.append(forward)
            self._end_ns = times[1]
            self._seen_ns += [self._end_ns] * (self.steps - len(self._seen_ns))
        ended = _rows(finished)
        if ended:
            self._lists["finished_ids"][self.steps] = ended
        f = step.features
        for name, value in zip(self._optional, f.row(self._optional), strict=True):
            if value:
                self._seldom[name][self.steps] = value
        self._latest.append(
            (
                self.steps,
                *times,
                bucket,
                *self._states.popleft(),
                active_experts,
                failed,
                *f.row(FEATURE_NAMES),
                launch_bound,
                launching_ns,
            )
        )
        if self.trace is not None:
            self._follow(self.trace, ended, forward)
        if len(self._latest) == _PACK:
            self._pack()
        self.steps += 1

    def _follow(self, trace: StepTrace, ended: tuple[int, ...], forward: tuple[int, int]) -> None:
        """Hand the latest step to the trace, and the requests that ended with it."""
        row = dict(zip(_NUMBERS, self._latest[-1], strict=True))
        changes = (self._lists[name].get(self.steps, ()) for name in ("admitted_ids", "preempted_ids"))
        trace.step(row, forward, *changes)
        for number in ended:
            if number in self._open:
                self._close(number)

    def close_trace(self) -> None:
        """Hand the trace what has not ended; it receives nothing afterwards."""
        if self.trace is None:
            return
        self._pack()
        for number in list(self._open):
            self.trace.request(self._facts(self._request(*self._open[number])))
        self.trace.close()
        self.trace = None

    @staticmethod
    def _facts(row: tuple[Any, ...]) -> dict[str, Any]:
        return dict(zip(REQUEST_KINDS, row, strict=False))

    def _close(self, number: int) -> None:
        """Keep the row of an ended request in place of the request."""
        self._closed[number] = row = self._request(*self._open.pop(number))
        if self.trace is not None:
            self.trace.request(self._facts(row))

    def _pack(self) -> None:
        """Pack numbers into arrays and ended requests into rows, at a tenth of the memory."""
        for number, entry in list(self._open.items()):
            if entry[0].finish_reason is not None:
                self._close(number)
        if self._latest:
            self._packed.append(np.array(self._latest, dtype=np.float64))
            self._latest.clear()

    # -- the log ---------------------------------------------------------------------------------

    def log(self) -> StepLog:
        """The recorded steps so far."""
        self._pack()
        numbers = np.concatenate(self._packed)
        steps: dict[str, list[Any]] = {}
        for i, name in enumerate(_NUMBERS):
            column = numbers[:, i].tolist()
            steps[name] = column if _KINDS[name] == "float" else [int(value) for value in column]
        steps["regime"] = ["graph" if bucket else "eager" for bucket in steps["bucket"]]
        for name, by_step in self._seldom.items():
            if by_step or name not in SELDOM:
                steps[name] = [by_step.get(i, 0) for i in range(self.steps)]
        if self._masks:
            rows = [self._masks.get(i, NO_MASKS) for i in range(self.steps)]
            for name, masked in zip(MASK_KINDS, zip(*rows, strict=True), strict=True):
                steps[name] = list(masked)
        for name, lists in self._lists.items():
            steps[name] = [lists.get(i, ()) for i in range(self.steps)]
        latest: tuple[int, ...] = ()
        for i in range(self.steps):
            latest = steps["decode_ids"][i] = self._lists["decode_ids"].get(i, latest)
        if self._overlapped:
            seen_ns = self._seen_ns + [self._end_ns] * (self.steps - len(self._seen_ns))
            forwards = zip(*self._forwards, strict=True) if self._forwards else ((), ())
            columns = (*(list(column) for column in forwards), seen_ns)
            steps |= dict(zip(OVERLAP_KINDS, columns, strict=True))
        return StepLog(self.meta, steps, self._requests())

    def write(self, path: str | Path) -> None:
        """Write the log as `.csv`, `.csv.gz` or `.parquet`, with the requests in a second file beside it."""
        write_step_log(self.log(), path)

    def _requests(self) -> dict[str, list[Any]]:
        rows = self._closed | {number: self._request(*entry) for number, entry in self._open.items()}
        columns = zip(*(rows[number] for number in sorted(rows)), strict=True) if rows else _NO_REQUESTS
        kinds = REQUEST_KINDS | MASK_REQUEST_KINDS
        table = {name: list(column) for name, column in zip(kinds, columns, strict=True)}
        if not any(table["constrained"]):
            del table["constrained"]
        return table

    def _request(self, sequence: Sequence, enqueue_ns: int, prompt_blocks: int) -> tuple[Any, ...]:
        request, numbers = sequence.request, self._key_numbers
        return (
            sequence.index,
            request.id,
            request.arrival_ns,
            enqueue_ns,
            request.prompt_tokens,
            len(sequence.output_ids),
            request.max_tokens,
            request.priority,
            request.deadline_ns,
            self._abort_ns.get(sequence.index, -1),
            max(request.cached_tokens, 0),
            request.preemptions,
            sequence.first_token_ns,
            sequence.finish_ns,
            sequence.finish_reason or "",
            prompt_blocks,
            tuple(numbers.setdefault(key, len(numbers)) for key in request.block_keys),
            int(request.constrained),
        )


_NO_REQUESTS: Iterable[tuple[Any, ...]] = ((),) * len(REQUEST_KINDS | MASK_REQUEST_KINDS)


def _rows(requests: Iterable[Request]) -> tuple[int, ...]:
    return tuple([request.row for request in requests])
