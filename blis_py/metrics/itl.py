"""Inter-token latencies of a million requests without storing one number per token.

Within an instance, everybody who emitted with two consecutive steps saw the same gap between them:
the step's duration plus the front end's cost per token. So a gap is counted once per step, weighted by
the number of requests that saw it, which a difference array over each request's steps gives. Interrupted
requests (`RunRecord.breaks`) saw one long gap instead of the steps they missed.

Steps are looked at some hundred thousand at a time: memory follows the requests and the number of different
gaps, not the steps. In block diffusion the gaps are those between blocks, counting the front end's cost of a
full block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from blis_py.metrics.distribution import Distribution, Tally
from blis_py.metrics.record import RunRecord
from blis_py.requests.table import Ints

Rows = NDArray[np.intp]


class TokenGaps:
    """The gaps between the output tokens of a run."""

    def __init__(self, record: RunRecord) -> None:
        self._record = record
        self._num_steps = [instance.steps for instance in record.instances]
        self._front_end_ns = record.frontend.per_token_ns * record.tokens_per_output
        self._break_instance = record.instance[record.breaks[:, 0]]

    def distribution(self, rows: Rows) -> Distribution:
        """All gaps, in ns, pooled over the requests in `rows`, each of which has emitted a token."""
        return self.distributions([rows])[0]

    def distributions(
        self, groups: Sequence[Rows], instances: Sequence[int | None] | None = None
    ) -> list[Distribution]:
        """The same for several groups, in one pass over the steps.

        Args:
            instances: the instance that all of a group's requests were served by; None = various.
        """
        where = instances or [None] * len(groups)
        found: dict[int, Distribution] = {}
        views: list[_View] = []
        for place, (rows, instance) in enumerate(zip(groups, where, strict=True)):
            steps = sum(self._num_steps) if instance is None else self._num_steps[instance]
            if int((self._record.outputs[rows] - 1).sum()) < steps // 8:
                found[place] = Distribution.of(self.of_each(rows)[0])
            else:
                views.append(_View(place, rows, instance, Tally()))
        for index in range(len(self._num_steps)):
            self._count(index, _seen(self._record, index, views))
        found |= {view.place: view.tally.distribution() for view in views}
        return [found[place] for place in range(len(groups))]

    def _count(self, index: int, views: Sequence[_Seen]) -> None:
        """Adds what was seen on one instance."""
        if not views:
            return
        own = np.flatnonzero(self._break_instance == index)
        breaks = self._record.breaks[own]
        break_gap_ns = self._between(index, breaks[:, 1], breaks[:, 2]) + self._front_end_ns
        for view in views:
            view.prepare(self._record, breaks)
            seen = view.stalled
            view.add(break_gap_ns[seen], np.ones(int(seen.sum()), dtype=np.int64))
        for first, gap_ns in self._step_gaps(index):
            gap_ns, place = _places(gap_ns + self._front_end_ns)
            for view in views:
                weights = np.bincount(place, view.weights(first, len(place)), len(gap_ns))
                listed = np.flatnonzero(weights)  # float64 is exact for these counts
                view.add(gap_ns[listed], weights[listed].astype(np.int64))

    def _step_gaps(self, index: int) -> Iterator[tuple[int, Ints]]:
        """Parts of an instance's steps: the index of the first, and the time from the end before to each end.

        The very first step has no end before it, and nobody asks.
        """
        before_ns = None
        for first, ends_ns in self._record.instances[index].step_ends.parts():
            yield first, np.diff(ends_ns, prepend=ends_ns[:1] if before_ns is None else before_ns)
            before_ns = ends_ns[-1:]

    def _between(self, index: int, before: Ints, after: Ints) -> Ints:
        ends = self._record.instances[index].step_ends
        return ends.at(after) - ends.at(before) if len(before) else np.zeros(0, np.int64)

    def of_each(self, rows: Rows) -> tuple[Ints, Ints]:
        """The gaps, in ns, of one request after another, and how many each has: one number per token."""
        steps = self._record.last_step[rows] - self._record.first_step[rows]
        ends = self._ends(rows, steps + 1)
        opens = self._opens(rows, steps)
        firsts = np.cumsum(steps + 1) - steps - 1
        later = np.ones(len(ends), dtype=np.bool_)
        later[firsts] = False
        step_gaps = np.diff(ends, prepend=0)[later]
        gaps: Ints = np.add.reduceat(step_gaps, np.flatnonzero(opens)) if len(step_gaps) else step_gaps
        return gaps + self._front_end_ns, np.asarray(self._record.outputs[rows] - 1)

    def _ends(self, rows: Rows, count: Ints) -> Ints:
        """The ends of every request's steps, from its first token's to its last one's."""
        ends = np.empty(int(count.sum()), dtype=np.int64)
        place = np.cumsum(count) - count
        for index, instance in enumerate(self._record.instances):
            own = np.flatnonzero(self._record.instance[rows] == index)
            begin, stop = self._record.first_step[rows[own]], self._record.last_step[rows[own]] + 1
            for first, part in instance.step_ends.parts() if len(own) else ():
                here = np.flatnonzero((begin < first + len(part)) & (stop > first))
                low = np.maximum(begin[here], first)
                length = np.minimum(stop[here], first + len(part)) - low
                to = _ranges(place[own[here]] + low - begin[here], length)
                ends[to] = part[_ranges(low - first, length)]
        return ends

    def _opens(self, rows: Rows, steps: Ints) -> NDArray[np.bool_]:
        """Of every request's steps after its first, whether a gap between its tokens begins there."""
        record = self._record
        opens = np.ones(int(steps.sum()), dtype=np.bool_)
        shift = np.zeros(len(record.table), dtype=np.int64)
        shift[rows] = np.cumsum(steps) - steps - record.first_step[rows] - 1
        stalled = record.breaks[_members(record, rows, record.breaks)]
        request, before, after = stalled.T
        opens[_ranges(before + 2 + shift[request], after - before - 1)] = False
        return opens

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


class _Seen:
    """How many of some requests on one instance saw each step's gap."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.tallies: list[Tally] = []
        """Of all groups that have these requests there, and no others."""
        self.stalled: NDArray[np.bool_]
        """Which of the instance's breaks are theirs."""
        self._places: Ints
        self._level: Ints

    def prepare(self, record: RunRecord, breaks: Ints) -> None:
        """The number changes only where a request begins or ends: few places among the steps."""
        self.stalled = _members(record, self.rows, breaks)
        stalls = breaks[self.stalled]
        opened = np.concatenate((record.first_step[self.rows], stalls[:, 2])) + 1
        closed = np.concatenate((record.last_step[self.rows], stalls[:, 1])) + 1
        places, change = np.unique(np.concatenate((opened, closed)), return_inverse=True)
        level = np.cumsum(np.bincount(change[: len(opened)], minlength=len(places)))
        level -= np.cumsum(np.bincount(change[len(opened) :], minlength=len(places)))
        self._places = np.concatenate((np.zeros(1, np.int64), places))
        self._level = np.concatenate((np.zeros(1, np.int64), level))

    def weights(self, first: int, count: int) -> NDArray[np.float64]:
        """Of the steps from `first` on."""
        low, high = np.searchsorted(self._places, (first, first + count), side="right")
        edges = np.concatenate(([first], self._places[low:high], [first + count]))
        return np.repeat(self._level[low - 1 : high].astype(np.float64), np.diff(edges))

    def add(self, gap_ns: Ints, counts: Ints) -> None:
        """Each gap was seen so often."""
        for tally in self.tallies:
            tally.add(gap_ns, counts)


class _View:
    """A group whose gaps are counted."""

    def __init__(self, place: int, rows: Rows, instance: int | None, tally: Tally) -> None:
        self.place, self.rows, self.tally = place, rows, tally
        self._instance = instance
        """Where all of them were served; None = at various."""

    def on(self, record: RunRecord, index: int) -> Rows:
        """Those of them on one instance."""
        if self._instance is not None:
            return self.rows if self._instance == index else self.rows[:0]
        there: Rows = self.rows[record.instance[self.rows] == index]
        return there


def _seen(record: RunRecord, index: int, views: Sequence[_View]) -> list[_Seen]:
    """What groups saw on one instance; once, of those of whom the same requests are there."""
    seen: dict[bytes, _Seen] = {}
    for view in views:
        rows = view.on(record, index)
        if len(rows):
            seen.setdefault(rows.tobytes(), _Seen(rows)).tallies.append(view.tally)
    return list(seen.values())


def _members(record: RunRecord, rows: Rows, breaks: Ints) -> NDArray[np.bool_]:
    """Which breaks are of requests in `rows`."""
    member = np.zeros(len(record.table), dtype=np.bool_)
    member[rows] = True
    return member[breaks[:, 0]]


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
