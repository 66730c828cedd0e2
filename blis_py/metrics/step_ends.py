"""The end times of an instance's steps, in little memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from blis_py.latency.decode_line import PACKED_BYTES, LineRun, PackedRuns
from blis_py.latency.step_run import Ints, PricedRun, StepRun

_AT_ONCE = 1 << 15
"""Steps to compress at once, or a thirty-second as many runs."""
_SHORT: Final = 8
"""Steps of a run along a line up to which their ends take less time and memory than the run itself."""
_PART = 1 << 19
"""Approximate number of steps per returned part."""
_GAP_BYTES = 4


class _Gaps:
    """Step ends stored as differences, each at most 4 seconds."""

    def __init__(self, start_ns: int, gaps_ns: NDArray[np.uint32]) -> None:
        self._start_ns, self._gaps_ns = start_ns, gaps_ns

    def ends_ns(self) -> Ints:
        ends: Ints = self._gaps_ns.cumsum(dtype=np.int64)
        ends += self._start_ns
        return ends


class StepEnds:
    """A growing column, stored as runs of identical steps where that is shorter."""

    def __init__(self) -> None:
        self.steps = 0
        self.last_ns = 0
        """End of the latest step."""
        self._latest: list[int] = []
        """Ends of uncompressed runs; of short ones, those of all steps."""
        self._longer: list[StepRun] = []
        self._places: list[int] = []
        """The runs of more steps among them, and their positions."""
        self._away = 0
        """Number of compressed steps."""
        self._most_steps, self._most_runs = _AT_ONCE, _AT_ONCE // 32
        self._chunks: list[PackedRuns | PricedRun | _Gaps] = []
        self._firsts: list[int] = []
        """Index of the first step of each chunk."""
        self._settled: tuple[int, Ints] = (-1, np.zeros(0, np.int64))
        """The chunk read last."""

    @classmethod
    def of(cls, ends_ns: Ints) -> StepEnds:
        """A column from known times."""
        column = cls()
        if len(ends_ns):
            column.append(PricedRun(ends_ns))
        return column

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StepEnds) and np.array_equal(self.ns(), other.ns())

    def append(self, run: StepRun) -> None:
        """Append one or more steps that have ended."""
        steps, latest = run.steps, self._latest
        if 1 < steps <= _SHORT and isinstance(run, LineRun):
            run.list_ends(latest)
        else:
            if steps > 1:
                self._longer.append(run)
                self._places.append(len(latest))
            latest.append(run.end_ns)
        self.steps += steps
        self.last_ns = run.end_ns
        if len(latest) > self._most_runs or self.steps - self._away > self._most_steps:
            self._put_away()

    def _put_away(self) -> None:
        ends, longer, steps = (
            self._latest,
            list(zip(self._places, self._longer, strict=True)),
            self.steps - self._away,
        )
        if not ends:
            return
        self._latest, self._longer, self._places = [], [], []
        self._firsts.append(self._away)
        self._away = self.steps
        short = len(ends) * PACKED_BYTES < steps * _GAP_BYTES
        if short and not any(isinstance(run, PricedRun) for _, run in longer):
            runs = [StepRun(1, end_ns) for end_ns in ends]
            for place, run in longer:
                runs[place] = run
            self._chunks.append(PackedRuns(runs))
            return
        self._chunks.append(_packed(_ends_of(np.fromiter(ends, np.int64, len(ends)), longer)))

    def parts(self) -> Iterator[tuple[int, Ints]]:
        """All ends in parts of some hundred thousand, each with the index of its first step.

        Columns are read several times, so the runs of a short one are expanded only once.
        """
        self._put_away()
        if self.steps <= _PART:
            self._chunks = [_packed(c.ends_ns()) if isinstance(c, PackedRuns) else c for c in self._chunks]
        part: list[Ints] = []
        first = steps = 0
        for chunk in self._chunks:
            part.append(chunk.ends_ns())
            steps += len(part[-1])
            if steps >= _PART:
                yield first, np.concatenate(part)
                first, part, steps = first + steps, [], 0
        if part:
            yield first, np.concatenate(part)

    def ns(self) -> Ints:
        """All ends as one array."""
        return np.concatenate([np.zeros(0, np.int64), *(ends for _, ends in self.parts())])

    def at(self, steps: Ints) -> Ints:
        """The ends of the given steps, in any order."""
        ends = np.empty(len(steps), np.int64)
        for first, part in self.parts():
            here = np.flatnonzero((steps >= first) & (steps < first + len(part)))
            ends[here] = part[steps[here] - first]
        return ends

    def one(self, step: int) -> int:
        """The end of one step; fast for consecutive steps."""
        self._put_away()
        index = bisect_right(self._firsts, step) - 1
        if self._settled[0] != index:
            self._settled = index, self._chunks[index].ends_ns()
        return int(self._settled[1][step - self._firsts[index]])


def _packed(ends_ns: Ints) -> PricedRun | _Gaps:
    """The ends in half the memory, unless a step takes more than 4 seconds."""
    gaps = np.diff(ends_ns, prepend=ends_ns[:1])
    if gaps.max() >> 32 or gaps.min() < 0:
        return PricedRun(ends_ns)
    return _Gaps(int(ends_ns[0]), gaps.astype(np.uint32))


def _ends_of(ends: Ints, longer: Sequence[tuple[int, StepRun]]) -> Ints:
    """The ends of all steps of runs.

    Args:
        ends: ends of the runs.
        longer: the runs of several steps, and their positions.
    """
    if not longer:
        return ends
    steps = np.ones(len(ends), np.int64)
    steps[[place for place, _ in longer]] = [run.steps for _, run in longer]
    ends = ends.repeat(steps)
    along = [(place, run) for place, run in longer if isinstance(run, LineRun)]
    if along:
        ends[_places(along, steps)] = PackedRuns([run for _, run in along]).ends_ns()
    priced = [(place, run) for place, run in longer if not isinstance(run, LineRun)]
    if priced:
        ends[_places(priced, steps)] = np.concatenate([run.ends_ns() for _, run in priced])
    return ends


def _places(runs: Sequence[tuple[int, StepRun]], steps: Ints) -> NDArray[np.bool_]:
    """Mask of the steps that belong to these runs."""
    chosen = np.zeros(len(steps), np.bool_)
    chosen[[place for place, _ in runs]] = True
    return chosen.repeat(steps)
