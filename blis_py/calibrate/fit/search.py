"""Search for the numbers of a server: all of them together first, then the fewest that explain as much."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

import numpy as np

from blis_py.calibrate.fit.linearised import (
    BOUNDS,
    CONSTANT,
    OF_STEPS,
    SETTLED,
    Linearised,
    Mask,
    calm,
    total,
)
from blis_py.calibrate.fit.server_runs import DIGITS, NAMES, SCATTER, Floats, ServerRuns, SimulatedTimes
from blis_py.calibrate.fit.single_requests import exact_numbers, with_front_end

_ROUNDS, _OF_ALL, _OF_QUIET = 8, 3, 24
_CLOSE, _LOST = 20.0, 2.0
"""Largest move, in multiples of what counts as none, after which slopes are kept; and the error, in multiples
of the least, from which numbers are led back."""
_GAIN, _LEAST, _OTHER = 0.3, 0.03, 0.1
"""Reduction of the held-out error that more numbers need: a share of it, and a share of the scatter; and the
share for others of the same count."""
_FEWER = 2.0
"""Largest held-out error, in multiples of that of a selection, of the parts of it that are fitted, too."""
_TRIED, _NEAR = 2, 5.0
"""Number of the smallest and of the best selections that are fitted by themselves, the former up to this
multiple of the least error."""
_QUIET = 0.004
"""Mean error of slices from which on a run scatters as servers do."""
_NEAR_EXACT = 0.02
"""Mean error of slices up to which single requests may be simulated exactly: few that queue scatter as much
as servers do, wherever the numbers are a little off."""
_LEAST_BOUND, _LEAST_WEIGHT = 1e-5, 0.1
_TTFT = np.s_[:1]
_ALL = np.ones(len(NAMES), dtype=bool)


class Converged(NamedTuple):
    """Result of a search for some numbers."""

    near: Linearised
    """Errors near the best numbers that were simulated."""
    numbers: Floats
    """Mean of the numbers that rounds near there led to: each simulation batches its requests a little
    differently, which moves all of these, but not one way."""


class Found(NamedTuple):
    """The numbers that explain the errors of a run."""

    near: Linearised
    numbers: Floats
    free: Mask
    """Numbers that differ from the preset."""
    scatter: Floats
    """Change of mean TTFT and TPOT that is no more than the scatter between runs of this server."""


def explained(run: ServerRuns, first: Sequence[SimulatedTimes]) -> Found:
    """The fewest numbers that explain the errors.

    Under a nearly constant load one number explains as much as three, and is less wrong at other loads.

    Args:
        first: the runs with the numbers of the preset.
    """
    search = _Search(run, first)
    every = search.converged(first, _ALL, _OF_ALL).near
    tried = _Tried(search)
    for free in _likely(every):
        tried.add(free, every)
    steps = tried.chosen()
    for free in _fewer(tried.near(steps), steps):
        tried.add(free, tried.near(steps))
    steps = tried.chosen()
    near, scatter = tried.near(steps), tried.scatter
    if scatter[1] < search.scatter:
        search.sharpen(*tried.left)
        near, numbers = search.converged(run.times(near.solve(steps)), steps, _OF_QUIET)
        if exact := search.exact(numbers):
            return exact
        if all(one.measured.concurrency is None for one in run.runs):
            numbers = with_front_end(run, run.times(numbers))
            return Found(search.near(run.times(numbers), steps), numbers, steps, scatter)
    if tried.left[1] < _NEAR_EXACT and (exact := search.exact(near.solve(steps))):
        return exact
    fronts = list(_subsets(~OF_STEPS & ~CONSTANT, (steps & OF_STEPS) | CONSTANT))
    free = _chosen([(free, near.held_out_error(free, _TTFT)) for free in fronts], scatter[0])
    return Found(*search.converged(run.times(near.solve(free)), free), free, scatter)


class _Search:
    """Numbers that explain the errors, found by repeated linearisation.

    Args:
        first: the runs with the numbers of the preset.
    """

    def __init__(self, run: ServerRuns, first: Sequence[SimulatedTimes]) -> None:
        self._run, self._weights = run, run.weights(first)
        self.scatter = SCATTER / len(run.runs) ** 0.5
        self._bounds = BOUNDS
        self._prior = first[0].numbers
        of_factor = run.slopes(first, np.arange(len(NAMES)) == 0)[..., 0]
        self._counted = calm(of_factor, self._weights)

    def sharpen(self, ttft: float, tpot: float) -> None:
        """Weigh both latencies by what numbers leave of them, for a run without the scatter of servers: what
        is left of TTFT is when a step under way ends.

        Args:
            ttft, tpot: errors that are left.
        """
        own = np.array([min(max(tpot / ttft, _LEAST_WEIGHT) ** 2, 1.0) if ttft else 1.0, 1.0])
        self._counted = self._counted * own[:, None, None]
        self._bounds = BOUNDS[0], max(tpot, _LEAST_BOUND)

    def times(self, numbers: Floats) -> Sequence[SimulatedTimes]:
        return self._run.times(numbers)

    def converged(self, begin: Sequence[SimulatedTimes], free: Mask, rounds: int = _ROUNDS) -> Converged:
        """Errors near the best numbers found, of which only free ones differ from the preset.

        Args:
            begin: the runs with numbers of that kind.
        """
        now = best = self.near(begin, free)
        led: list[tuple[float, Floats]] = []
        for _ in range(rounds):
            wanted = now.solve(free)
            if (np.abs(wanted - now.numbers) < SETTLED / 4).all():
                return Converged(now, wanted)
            led.append((self._error(now), wanted))
            now = self._moved(now, wanted, free)
            if self._error(now) < self._error(best):
                best = now
            elif self._error(now) > _LOST * self._error(best):
                halfway = (best.numbers + now.numbers) / 2
                now = self.near(self._run.times(halfway), free)
        led.append((self._error(best), best.solve(free)))
        close = [wanted for error, wanted in led if error <= _LOST * self._error(best)]
        return Converged(best, np.mean(close, axis=0))

    def exact(self, begin: Floats) -> Found | None:
        """The numbers of a server that is simulated exactly, as one that was simulated itself; None if it is
        not."""
        numbers = exact_numbers(self._run, begin, self._prior)
        if numbers is None:
            return None
        free = numbers != self._prior
        return Found(self.near(self.times(numbers), free), numbers, free, np.zeros(2))

    def _moved(self, now: Linearised, wanted: Floats, free: Mask) -> Linearised:
        """Errors near other numbers; slopes are the same where they are close."""
        times = self._run.times(wanted)
        if (np.abs(wanted - now.numbers) > _CLOSE * SETTLED).any():
            return self.near(times, free)
        return replace(now, numbers=wanted, misses=self._run.misses(times))

    def near(self, times: Sequence[SimulatedTimes], free: Mask) -> Linearised:
        run, numbers = self._run, times[0].numbers
        slopes = run.slopes(times, free)
        misses = run.misses(times)
        return Linearised(numbers, misses, slopes, self._weights, self._prior, self._counted, self._bounds)

    def _error(self, near: Linearised) -> float:
        return total(near.misses, self._counted)


class _Tried:
    """Selections of numbers of steps that were fitted by themselves, small ones first."""

    def __init__(self, search: _Search) -> None:
        self._search = search
        self._near: dict[tuple[bool, ...], Linearised] = {}

    def add(self, free: Mask, before: Linearised) -> None:
        """Fit a selection, from what errors near other numbers say of it."""
        if tuple(free.tolist()) not in self._near:
            begin = self._search.times(before.solve(free))
            self._near[tuple(free.tolist())] = self._search.converged(begin, free).near

    def near(self, free: Mask) -> Linearised:
        return self._near[tuple(free.tolist())]

    @property
    def left(self) -> Floats:
        """Least errors of TTFT and TPOT."""
        of = [[total(near.misses[i], near.counted[i]) for i in (0, 1)] for near in self._near.values()]
        least: Floats = np.min(of, axis=0)
        return least

    @property
    def scatter(self) -> Floats:
        """Change of mean TTFT and TPOT that is no more than that between runs of this server."""
        scatter: Floats = self._search.scatter * np.minimum(self.left / _QUIET, 1.0)
        return scatter

    def chosen(self) -> Mask:
        by_size = sorted(self._near, key=lambda free: (sum(free), [not each for each in free]))
        errors = [(np.array(free), self._near[free].held_out_error(np.array(free))) for free in by_size]
        return _chosen(errors, float(self.scatter[1]))


def _fewer(near: Linearised, chosen: Mask) -> list[Mask]:
    """Parts of a selection that explain nearly as much, as errors near its numbers say."""
    most = _FEWER * near.held_out_error(chosen)
    parts = list(_subsets(chosen & OF_STEPS, chosen & ~OF_STEPS))[:-1]
    return [free for free in parts if near.held_out_error(free) <= most]


def _likely(every: Linearised) -> list[Mask]:
    """The most likely selections of numbers of steps, small ones first; those of the front end are free."""
    subsets = list(_subsets(OF_STEPS, ~OF_STEPS))
    errors = [every.held_out_error(free) for free in subsets]
    smallest = [i for i, error in enumerate(errors) if error <= _NEAR * min(errors)][:_TRIED]
    best = np.argsort(errors, kind="stable")[:_TRIED].tolist()
    return [subsets[i] for i in sorted({*smallest, *best})]


def _subsets(of: Mask, always: Mask) -> Iterator[Mask]:
    """All selections of some numbers, small ones first, the factor on step times before gaps."""
    rows = np.flatnonzero(of)
    for count in range(len(rows) + 1):
        for chosen in combinations(rows, count):
            yield always | np.isin(np.arange(len(NAMES)), chosen)


def _chosen(candidates: Iterable[tuple[Mask, float]], scatter: float) -> Mask:
    """The first of the selections, by their held-out errors, that no later one betters by enough."""
    (best, least), *others = candidates
    for free, error in others:
        more = free.sum() > best.sum()
        bar = (1 - _GAIN) * least - _LEAST * scatter if more else (1 - _OTHER) * least
        if error < bar:
            best, least = free, error
    return best


def rounded(numbers: Floats) -> Floats:
    """Numbers as the engine file has them."""
    return np.array([float(f"{value:.{DIGITS}g}") for value in numbers.tolist()])
