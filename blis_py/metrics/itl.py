"""Inter-token latencies of a million requests without storing one number per token.

Within an instance, everybody who emitted with two consecutive steps saw the same gap between them:
the step's duration plus the front end's cost per token. So a gap is stored once per step and weighted by
the number of requests that saw it, which a difference array over each request's steps gives. Interrupted
requests (`RunRecord.breaks`) saw one long gap instead of the steps they missed.

In block diffusion the gaps are those between blocks, counting the front end's cost of a full block.
"""

from __future__ import annotations

from copy import copy

import numpy as np
from numpy.typing import NDArray

from blis_py.metrics.distribution import Distribution
from blis_py.metrics.record import RunRecord
from blis_py.workload.table import Ints

Rows = NDArray[np.intp]


class TokenGaps:
    """The gaps between the output tokens of a run."""

    def __init__(self, record: RunRecord) -> None:
        ends = [instance.step_end_ns for instance in record.instances]
        self._record = record
        self._offset: Ints = np.cumsum([0, *map(len, ends)])
        """Where the steps of each instance begin."""
        self._num_steps = int(self._offset[-1])
        end_ns = np.concatenate([*ends, np.zeros(0, np.int64)])
        self._step_gap_ns = _gaps(end_ns, self._offset[:-1])
        self._breaks = record.breaks
        request, before, after = self._breaks.T
        offset = self._offset[record.instance[request]]
        self._before, self._after = before + offset, after + offset
        break_gap_ns = end_ns[self._after] - end_ns[self._before]
        self._front_end_ns = record.frontend.per_token_ns * record.tokens_per_output
        self._gap_ns = np.concatenate((self._step_gap_ns, break_gap_ns))
        self._gap_ns += self._front_end_ns
        self._values: tuple[Ints, Rows] | None = None
        """The different gaps, sorted, and which of them each gap is."""

    def of_instance(self, index: int) -> TokenGaps:
        """Those of one instance. Rows asked for must lie on it."""
        first, end = self._offset[index : index + 2]
        own = np.flatnonzero(self._record.instance[self._breaks[:, 0]] == index)
        values, place = self._distinct()
        part = copy(self)
        part._offset = self._offset - first
        part._num_steps = int(end - first)
        part._step_gap_ns = self._step_gap_ns[first:end]
        part._breaks = self._breaks[own]
        part._before, part._after = self._before[own] - first, self._after[own] - first
        part._values = values, np.concatenate((place[first:end], place[self._num_steps + own]))
        return part

    def _distinct(self) -> tuple[Ints, Rows]:
        if self._values is None:
            self._values = _places(self._gap_ns)
        return self._values

    def distribution(self, rows: Rows) -> Distribution:
        """All gaps, in ns, pooled over the requests in `rows`, each of which has emitted a token."""
        gaps = int((self._record.outputs[rows] - 1).sum())
        if gaps < self._num_steps // 8:
            return Distribution.of(self.of_each(rows)[0])
        gap_ns, place = self._distinct()
        weights = np.bincount(place, self._weights(rows), len(gap_ns))  # float64 is exact for these counts
        seen = np.flatnonzero(weights)
        return Distribution.weighted(gap_ns[seen], weights[seen].astype(np.int64))

    def of_each(self, rows: Rows) -> tuple[Ints, Ints]:
        """The gaps, in ns, of one request after another, and how many each has: one number per token."""
        first, last = self._span(rows)
        steps = last - first
        shift = np.cumsum(steps) - steps - first - 1
        position = _ranges(first + 1, steps)
        if not len(position):
            return position, steps
        opens = np.ones(len(position), dtype=np.bool_)
        shift_of = np.zeros(len(self._record.table), dtype=np.int64)
        shift_of[rows] = shift
        stalled = self._stalled(rows)
        before, after = self._before[stalled], self._after[stalled]
        opens[_ranges(before + 2 + shift_of[self._breaks[stalled, 0]], after - before - 1)] = False
        gaps = np.add.reduceat(self._step_gap_ns[position], np.flatnonzero(opens))
        return gaps + self._front_end_ns, self._record.outputs[rows] - 1

    def times(self, rows: Rows) -> tuple[Ints, Ints]:
        """When the tokens of one request after another were emitted, in ns, and how many each has."""
        gap_ns, gaps = self.of_each(rows)
        counts = gaps + 1
        firsts = np.cumsum(counts) - counts
        later = np.ones(counts.sum(), dtype=np.bool_)
        later[firsts] = False
        since_ns = np.zeros(len(later), dtype=np.int64)
        since_ns[later] = gap_ns
        since_ns = np.cumsum(since_ns)
        return since_ns + np.repeat(self._record.first_token_ns[rows] - since_ns[firsts], counts), counts

    def _weights(self, rows: Rows) -> NDArray[np.float64]:
        """How many of `rows` saw each step's gap, then each break's."""
        first, last = self._span(rows)
        stalled = self._stalled(rows)
        opened = np.concatenate((first, self._after[stalled])) + 1
        closed = np.concatenate((last, self._before[stalled])) + 1
        # The number changes only where a request begins or ends: few places among the steps.
        places, change = np.unique(np.concatenate((opened, closed)), return_inverse=True)
        level = np.cumsum(np.bincount(change[: len(opened)], minlength=len(places)))
        level -= np.cumsum(np.bincount(change[len(opened) :], minlength=len(places)))
        lengths = np.diff(places, prepend=0, append=self._num_steps)
        seen = np.repeat(np.concatenate((np.zeros(1), level)), lengths)
        return np.concatenate((seen, stalled))

    def _stalled(self, rows: Rows) -> NDArray[np.bool_]:
        """Which breaks are of requests in `rows`."""
        member = np.zeros(len(self._record.table), dtype=np.bool_)
        member[rows] = True
        return member[self._breaks[:, 0]]

    def _span(self, rows: Rows) -> tuple[Ints, Ints]:
        record = self._record
        offset = self._offset[record.instance[rows]]
        return record.first_step[rows] + offset, record.last_step[rows] + offset


def _ranges(start: Ints, length: Ints) -> Ints:
    """start[0], start[0]+1, ... (length[0] of them), start[1], ..."""
    total: Ints = np.cumsum(length)
    starts: Ints = np.repeat(start - total + length, length)
    ranges: Ints = starts + np.arange(len(starts))
    return ranges


def _places(values: Ints) -> tuple[Ints, Rows]:
    """`np.unique(values, return_inverse=True)` of numbers that are not negative, in a fifth of the time.

    numpy sorts. Whole microseconds need no sorting: up to a limit that few of them exceed (gaps with a pause
    in them), all multiples can be counted.
    """
    multiple = values // 1000
    beyond = np.flatnonzero(multiple > len(values))
    if len(beyond) >= len(values) // 8 or not np.array_equal(multiple * 1000, values):
        return np.unique(values, return_inverse=True)
    multiple[beyond] = multiple.min()
    listed = np.bincount(multiple) > 0
    place = (np.cumsum(listed) - 1)[multiple]
    found = np.flatnonzero(listed) * 1000
    others, place_there = np.unique(values[beyond], return_inverse=True)
    place[beyond] = len(found) + place_there
    return np.concatenate((found, others)), place


def _gaps(end_ns: Ints, firsts: Ints) -> Ints:
    """Time from the previous step's end; first steps of an instance have none, and nobody asks for it."""
    gaps = np.empty_like(end_ns)
    np.subtract(end_ns[1:], end_ns[:-1], out=gaps[1:])
    gaps[firsts[firsts < len(gaps)]] = 0
    return gaps
