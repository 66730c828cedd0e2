"""Inter-token latencies of a million requests without one stored number per token.

Within an instance, all visits that emitted with two consecutive steps saw the same gap between them: the
step's duration plus the front end's cost per token. So a gap is counted once per step, weighted by the number
of visits that saw it, computed by a difference array over each visit's steps. Interrupted visits
(`EmittedTokens.breaks`) saw one long gap instead of the steps they missed. Between the last token of a visit
and the first of the request's next one is one more gap; of several tokens of one step, all but the first
follow without a gap except for the front end's cost.

Steps are looked at some hundred thousand at a time: memory follows the requests and the number of different
gaps, not the steps. Where answers come in blocks, the gaps are those between blocks, counting the front end's
cost of a full block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from blis_py.metrics.distribution import Distribution, Tally
from blis_py.metrics.emission import EmittedTokens, Rows, ranges, rows_of
from blis_py.metrics.record import RunRecord
from blis_py.metrics.visits import by_instance
from blis_py.requests.table import Ints


class TokenGaps:
    """Gaps between the output tokens of a run."""

    def __init__(self, record: RunRecord) -> None:
        self._record, self._visits, self._emission = record, record.visits, record.visits.emission
        self._outputs = record.outputs
        self._num_steps = [instance.steps for instance in record.instances]
        self._front_end_ns = record.frontend.per_token_ns * self._emission.tokens_per_step

    def distribution(self, rows: Rows) -> Distribution:
        """All gaps, in ns, pooled over the requests in `rows`, each of which has emitted a token."""
        return self.distributions([rows])[0]

    def distributions(
        self, groups: Sequence[Rows], instances: Sequence[int | None] | None = None
    ) -> list[Distribution]:
        """The same for several groups, in one pass over the steps.

        Args:
            instances: the instance that all requests of a group visited last; None = several.
        """
        where = instances or [None] * len(groups)
        all_steps = sum(self._num_steps)
        distributions: dict[int, Distribution] = {}
        tallies: dict[int, Tally] = {}
        visits_of: dict[int, dict[bytes, _SharedVisits]] = {}
        for place, (rows, instance) in enumerate(zip(groups, where, strict=True)):
            steps = all_steps if instance is None else self._num_steps[instance]
            if int((self._outputs[rows] - 1).sum()) < steps // 8:
                distributions[place] = Distribution.of(self.of_each(rows)[0])
            else:
                tallies[place] = self._look_at(rows, visits_of)
        for index in sorted(visits_of):
            self._count(index, [*visits_of[index].values()])
        distributions |= {place: tally.distribution() for place, tally in tallies.items()}
        return [distributions[place] for place in range(len(groups))]

    def _look_at(self, rows: Rows, visits_of: dict[int, dict[bytes, _SharedVisits]]) -> Tally:
        """A tally for a group's gaps, and registration of what to count for it on each instance.

        Sets of visits that several groups share on an instance are counted once.
        """
        tally, visits = Tally(), self._emitting(rows)
        for index, places in by_instance(self._visits.instance[visits]):
            own = visits[places]
            visits_of.setdefault(index, {}).setdefault(own.tobytes(), _SharedVisits(own)).tallies.append(
                tally
            )
        _, gap_ns = self._apart(visits)
        tally.add(gap_ns, np.ones(len(gap_ns), dtype=np.int64))
        return tally

    def _emitting(self, rows: Rows) -> Rows:
        """The visits that emitted, request by request."""
        visits, _ = self._visits.of(rows)
        return visits[self._emission.first_step[visits] >= 0]

    def _count(self, index: int, views: Sequence[_SharedVisits]) -> None:
        """Add the gaps seen on one instance."""
        for view in views:
            stalled = view.prepare(self._emission)
            view.add(self._break_gaps_ns[stalled] + self._front_end_ns, np.ones(len(stalled), dtype=np.int64))
        for first, gap_ns in self._step_gaps(index):
            values, counts_of = _sorted(gap_ns + self._front_end_ns)
            for view in views:
                counts = counts_of(view.weights(first, len(gap_ns)))
                listed = np.flatnonzero(counts)
                view.add(values[listed], counts[listed])

    def _step_gaps(self, index: int) -> Iterator[tuple[int, Ints]]:
        """Parts of an instance's steps: index of the first step, and the time between consecutive ends.

        The first step has no previous end; its value is never used.
        """
        before_ns = None
        for first, ends_ns in self._record.instances[index].step_ends.parts():
            yield first, np.diff(ends_ns, prepend=ends_ns[:1] if before_ns is None else before_ns)
            before_ns = ends_ns[-1:]

    @cached_property
    def _break_gaps_ns(self) -> Ints:
        """Time between the steps before and after each break."""
        visit, before, after = self._emission.breaks.T
        gaps_ns = np.zeros(len(visit), dtype=np.int64)
        for index, own in by_instance(self._visits.instance[visit]):
            ends = self._record.instances[index].step_ends
            gaps_ns[own] = ends.at(after[own]) - ends.at(before[own])
        return gaps_ns

    @cached_property
    def _handover_gaps_ns(self) -> Ints:
        """Gaps from the last token before each visit to its first; -1 if either does not exist."""
        visits = self._visits
        gaps_ns = np.full(len(visits), -1, dtype=np.int64)
        if not visits.single:
            emitting = self._emitting(np.arange(visits.requests))
            before, after = emitting[:-1], emitting[1:]
            same = visits.request[before] == visits.request[after]
            before, after = before[same], after[same]
            gaps_ns[after] = visits.first_token_ns[after] - visits.last_token_ns[before]
        return gaps_ns

    def _apart(self, visits: Rows) -> tuple[Ints, Ints]:
        """Gaps that are not between two steps of an instance: before a visit, and within a step.

        Args:
            visits: visits that emitted.

        Returns:
            The index of the gap between steps of these visits before which each is inserted, in order; the
            gaps.
        """
        emission = self._emission
        if self._visits.single and (emission.as_blocks or not len(emission.others)):
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        gaps = emission.steps()[visits] - 1
        start, number = np.cumsum(gaps) - gaps, np.arange(len(visits))
        handed_ns = self._handover_gaps_ns[visits]
        handed = np.flatnonzero(handed_ns >= 0)
        which, counts = rows_of(emission.others[:0] if emission.as_blocks else emission.others, visits)
        visit, step, tokens = emission.others[which].T
        more, owner = tokens - 1, np.repeat(number, counts)
        owners = np.concatenate((handed, np.repeat(owner, more)))
        before = np.concatenate((start[handed], np.repeat(start[owner] + emission.rank(visit, step), more)))
        gap_ns = np.concatenate((handed_ns[handed], np.full(more.sum(), self._front_end_ns)))
        order = np.lexsort((np.arange(len(owners)), owners, before))
        return before[order], gap_ns[order]

    def of_each(self, rows: Rows) -> tuple[Ints, Ints]:
        """The gaps in ns, request by request, and the number of gaps of each: one number per token."""
        visits = self._emitting(rows)
        steps = self._emission.last_step[visits] - self._emission.first_step[visits]
        ends_ns = self._ends(visits, steps + 1)
        opens = self._opens(visits, steps)
        firsts = np.cumsum(steps + 1) - steps - 1
        later = np.ones(len(ends_ns), dtype=np.bool_)
        later[firsts] = False
        step_gaps_ns = np.diff(ends_ns, prepend=0)[later]
        gaps_ns: Ints = (
            np.add.reduceat(step_gaps_ns, np.flatnonzero(opens)) if len(step_gaps_ns) else step_gaps_ns
        )
        gaps_ns = gaps_ns + self._front_end_ns
        before, apart_ns = self._apart(visits)
        if len(before):
            gaps_ns = np.insert(gaps_ns, before, apart_ns)
        return gaps_ns, np.asarray(self._outputs[rows] - 1)

    def _ends(self, visits: Rows, count: Ints) -> Ints:
        """Step ends of every visit, from the step of its first token to that of its last."""
        ends = np.empty(int(count.sum()), dtype=np.int64)
        place = np.cumsum(count) - count
        for index, own in by_instance(self._visits.instance[visits]):
            begin = self._emission.first_step[visits[own]]
            stop = self._emission.last_step[visits[own]] + 1
            for first, part in self._record.instances[index].step_ends.parts():
                here = np.flatnonzero((begin < first + len(part)) & (stop > first))
                low = np.maximum(begin[here], first)
                length = np.minimum(stop[here], first + len(part)) - low
                to = ranges(place[own[here]] + low - begin[here], length)
                ends[to] = part[ranges(low - first, length)]
        return ends

    def _opens(self, visits: Rows, steps: Ints) -> NDArray[np.bool_]:
        """For every step of a visit after its first, whether a gap between its tokens begins there."""
        opens = np.ones(int(steps.sum()), dtype=np.bool_)
        shift = np.cumsum(steps) - steps - self._emission.first_step[visits] - 1
        which, counts = rows_of(self._emission.breaks, visits)
        _, before, after = self._emission.breaks[which].T
        opens[ranges(before + 2 + np.repeat(shift, counts), after - before - 1)] = False
        return opens

    def times(self, rows: Rows) -> tuple[Ints, Ints]:
        """Emission times of tokens in ns, request by request, and the number of tokens of each."""
        gap_ns, gaps = self.of_each(rows)
        counts = gaps + 1
        firsts = np.cumsum(counts) - counts
        later = np.ones(counts.sum(), dtype=np.bool_)
        later[firsts] = False
        since_ns = np.zeros(len(later), dtype=np.int64)
        since_ns[later] = gap_ns
        since_ns = np.cumsum(since_ns)
        return since_ns + np.repeat(self._record.first_token_ns[rows] - since_ns[firsts], counts), counts


class _SharedVisits:
    """Number of visits, out of a set of visits to one instance, that saw each step's gap."""

    def __init__(self, visits: Rows) -> None:
        self.visits = visits
        self.tallies: list[Tally] = []
        """Tallies of all groups with exactly this set of visits there."""
        self._opened: Ints
        self._closed: Ints

    def prepare(self, emission: EmittedTokens) -> Rows:
        """Precompute the steps at which that number changes: only at the begin and end of visits.

        Returns:
            Indices of the breaks of these visits.
        """
        stalled, _ = rows_of(emission.breaks, self.visits)
        stalls = emission.breaks[stalled]
        self._opened = np.concatenate((emission.first_step[self.visits], stalls[:, 2])) + 1
        self._closed = np.concatenate((emission.last_step[self.visits], stalls[:, 1])) + 1
        return stalled

    def weights(self, first: int, count: int) -> Ints:
        """Counts of the steps from `first` on."""
        change = np.zeros(count, dtype=np.int64)
        for places, sign in ((self._opened, 1), (self._closed, -1)):
            here = places[(places >= first) & (places < first + count)]
            change += sign * np.bincount(here - first, minlength=count)
            change[0] += sign * np.count_nonzero(places < first)
        weights: Ints = np.cumsum(change)
        return weights

    def add(self, gap_ns: Ints, counts: Ints) -> None:
        """Add gaps with their counts."""
        for tally in self.tallies:
            tally.add(gap_ns, counts)


def _sorted(values: Ints) -> tuple[Ints, Callable[[Ints], Ints]]:
    """Non-negative values in order, and the function from a number for each to the sums in that order.

    Equal values may be apart. Whole microseconds need no sorting: all multiples up to a limit, which few
    exceed (those with a pause), can be counted, and are apart no more.
    """
    multiple = values // 1000
    beyond = np.flatnonzero(multiple > len(values))
    if len(beyond) >= len(values) // 8 or not np.array_equal(multiple * 1000, values):
        order = np.argsort(values)
        return values[order], lambda numbers: numbers[order]
    multiple[beyond] = multiple.min()
    listed = np.bincount(multiple) > 0
    place = (np.cumsum(listed) - 1)[multiple]
    values_ns = np.flatnonzero(listed) * 1000
    others, place_there = np.unique(values[beyond], return_inverse=True)
    place[beyond] = len(values_ns) + place_there
    distinct = np.concatenate((values_ns, others))
    # float64 is exact for these sums
    return distinct, lambda numbers: np.bincount(place, numbers, len(distinct)).astype(np.int64)
