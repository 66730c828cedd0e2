"""Numbers of a server from single requests, for a run that is explained without scatter."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from blis_py.calibrate.fit.linearised import HIGH, LOW, OF_STEPS, SETTLED, Mask
from blis_py.calibrate.fit.server_runs import NAMES, NUDGE, Floats, ServerRuns, SimulatedTimes
from blis_py.files.packages import scipy

_FRONT = ~OF_STEPS
_SHARES = 0.2, 0.05, 0.02, 0.01, 0.005, 0.005
"""Nudges of the rounds, in shares of those by which means are explained."""
_CURVED, _ROUNDED_S = 0.02, 2e-7
"""Second difference of a request beyond which its batches changed: a share of the first, and what whole
nanoseconds come to."""
_EXACT, _MOST_INEXACT = 1e-5, 0.5
"""Relative error of a request that is simulated exactly, and the largest share of others, of either time."""
_FEWEST = 12
"""Requests by which numbers are determined."""


def with_front_end(run: ServerRuns, there: Sequence[SimulatedTimes]) -> Floats:
    """The numbers of simulated runs, but with those of the front end that leave the least absolute errors of
    TTFT.

    A request that meets no others is simulated exactly; all others wait for the end of a step under way,
    which the smallest difference of step times moves by up to a step, to either side. In an open loop the
    front end changes no batch: errors are linear in its numbers, and the least absolute ones go by exact
    requests.
    """
    runs = list(zip(run.runs, there, strict=True))
    late_s = np.concatenate([np.subtract(*one.pairs(at, "ttft_s")[::-1]) for one, at in runs])
    slopes = np.concatenate([one.ttft_slopes(at, _FRONT) for one, at in runs])
    numbers = there[0].numbers.copy()
    numbers[_FRONT] = _least_absolute(numbers[_FRONT], late_s, slopes, LOW[_FRONT], HIGH[_FRONT])
    return numbers


def exact_numbers(run: ServerRuns, begin: Floats, prior: Floats) -> Floats | None:
    """The numbers of a server that is simulated exactly, or None if it is not.

    Like `with_front_end`, of all numbers, by TTFT and by the time of further tokens. Slopes are of ever
    smaller nudges, on requests whose batches these do not change: first those after a pause, and the more
    the nearer the numbers are.

    Args:
        begin: numbers near them.
        prior: those of the preset, which are kept where others are as good.
    """
    numbers, measured_s = begin, run.measured_s()
    for share in _SHARES:
        there_s, slopes, smooth = _slopes(run, numbers, share * NUDGE)
        if (smooth.sum(axis=1) < _FEWEST).any():
            continue
        errors = (1 - there_s / measured_s)[smooth]
        relative = (slopes / measured_s[..., None])[smooth]
        numbers = _least_absolute(numbers, errors, relative, LOW, HIGH)
        numbers = np.where(np.abs(numbers - prior) < SETTLED / 4, prior, numbers)
        off = np.abs(run.simulated_s(run.times(numbers)) / measured_s - 1)
        if (np.mean(off > _EXACT, axis=1) <= _MOST_INEXACT).all():
            return numbers
    return None


def _slopes(run: ServerRuns, numbers: Floats, nudges: Floats) -> tuple[Floats, Floats, Mask]:
    """Times of requests, their slopes over each number as a last axis, and which of them have one."""
    there_s = run.simulated_s(run.times(numbers))
    slopes, smooth = np.zeros((*there_s.shape, len(NAMES))), np.ones(there_s.shape, dtype=bool)
    for i, nudge in enumerate(nudges):
        step = np.zeros(len(NAMES))
        step[i] = nudge
        once, twice = (run.simulated_s(run.times(numbers + times * step)) for times in (1, 2))
        slopes[..., i] = (twice - there_s) / (2 * nudge)
        smooth &= np.abs(twice - 2 * once + there_s) <= _CURVED * np.abs(twice - there_s) + _ROUNDED_S
    return there_s, slopes, smooth


def _least_absolute(numbers: Floats, errors: Floats, slopes: Floats, low: Floats, high: Floats) -> Floats:
    """Numbers within bounds that leave the least absolute errors, by slopes."""
    requests, count = slopes.shape
    sparse = scipy().sparse
    ones = sparse.eye_array(requests)
    sides = sparse.hstack([sparse.csr_array(slopes), ones, -ones])
    room = np.stack([low - numbers, high - numbers], axis=1)
    bounds = np.concatenate([room, np.tile([0.0, np.inf], (2 * requests, 1))])
    cost = np.concatenate([np.zeros(count), np.ones(2 * requests)])
    found = scipy().optimize.linprog(cost, A_eq=sides, b_eq=errors, bounds=bounds)
    return numbers + found.x[:count] if found.success else numbers
