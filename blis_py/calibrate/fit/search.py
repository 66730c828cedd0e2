"""Search for the numbers of a server: all of them together first, then the fewest that explain as much."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

import numpy as np

from blis_py.calibrate.fit.linearised import CONSTANT, OF_STEPS, SETTLED, Linearised, Mask, calm, total
from blis_py.calibrate.fit.server_runs import DIGITS, NAMES, SCATTER, Floats, ServerRuns, SimulatedTimes

_ROUNDS, _OF_ALL = 8, 3
_CLOSE, _LOST = 20.0, 2.0
"""Largest move, in multiples of what counts as none, after which slopes are kept; and the error, in multiples
of the least, from which numbers are led back."""
_GAIN, _LEAST, _OTHER = 0.3, 0.03, 0.1
"""Reduction of the held-out error that more numbers need: a share of it, and a share of the scatter; and the
share for others of the same count."""
_TRIED, _NEAR = 2, 5.0
"""Number of the smallest and of the best selections that are fitted by themselves, the former up to this
multiple of the least error."""
_QUIET = 0.004
"""Mean error of slices from which on a run scatters as servers do."""
_TTFT = np.s_[:1]
_ALL = np.ones(len(NAMES), dtype=bool)


class Found(NamedTuple):
    """The numbers that explain the errors of a run."""

    near: Linearised
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
    every = search.converged(first, _ALL, _OF_ALL)
    likely = _likely(every)
    tried = [(free, search.converged(run.times(every.solve(free)), free)) for free in likely]
    noise = np.min([[total(near.misses[i], near.counted[i]) for i in (0, 1)] for _, near in tried], axis=0)
    scatter = SCATTER / len(run.runs) ** 0.5 * np.minimum(noise / _QUIET, 1.0)
    steps = _chosen([(free, near.held_out_error(free)) for free, near in tried], scatter[1])
    near = next(near for free, near in tried if free is steps)
    fronts = list(_subsets(~OF_STEPS & ~CONSTANT, (steps & OF_STEPS) | CONSTANT))
    free = _chosen([(free, near.held_out_error(free, _TTFT)) for free in fronts], scatter[0])
    return Found(search.converged(run.times(near.solve(free)), free), free, scatter)


class _Search:
    """Numbers that explain the errors, found by repeated linearisation.

    Args:
        first: the runs with the numbers of the preset.
    """

    def __init__(self, run: ServerRuns, first: Sequence[SimulatedTimes]) -> None:
        self._run, self._weights = run, run.weights(first)
        self._prior = first[0].numbers
        of_factor = run.slopes(first, np.arange(len(NAMES)) == 0)[..., 0]
        self._counted = calm(of_factor, self._weights)

    def converged(self, begin: Sequence[SimulatedTimes], free: Mask, rounds: int = _ROUNDS) -> Linearised:
        """Errors near the best numbers found, of which only free ones differ from the preset.

        Args:
            begin: the runs with numbers of that kind.
        """
        now = best = self._near(begin, free)
        for _ in range(rounds):
            wanted = now.solve(free)
            if (np.abs(wanted - now.numbers) < SETTLED / 4).all():
                break
            now = self._moved(now, wanted, free)
            if self._error(now) < self._error(best):
                best = now
            elif self._error(now) > _LOST * self._error(best):
                halfway = (best.numbers + now.numbers) / 2
                now = self._near(self._run.times(halfway), free)
        return best

    def _moved(self, now: Linearised, wanted: Floats, free: Mask) -> Linearised:
        """Errors near other numbers; slopes are the same where they are close."""
        times = self._run.times(wanted)
        if (np.abs(wanted - now.numbers) > _CLOSE * SETTLED).any():
            return self._near(times, free)
        return replace(now, numbers=wanted, misses=self._run.misses(times))

    def _near(self, times: Sequence[SimulatedTimes], free: Mask) -> Linearised:
        run, numbers = self._run, times[0].numbers
        slopes = run.slopes(times, free)
        return Linearised(numbers, run.misses(times), slopes, self._weights, self._prior, self._counted)

    def _error(self, near: Linearised) -> float:
        return total(near.misses, self._counted)


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
