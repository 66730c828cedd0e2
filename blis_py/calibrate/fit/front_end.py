"""Delays of the front end from single requests, for a run whose steps are explained without scatter."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from blis_py.calibrate.fit.linearised import HIGH, LOW, OF_STEPS
from blis_py.calibrate.fit.server_runs import Floats, ServerRuns, SimulatedTimes
from blis_py.files.packages import scipy

_FRONT = ~OF_STEPS


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
    numbers, (requests, count) = there[0].numbers.copy(), slopes.shape
    sparse = scipy().sparse
    ones = sparse.eye_array(requests)
    sides = sparse.hstack([sparse.csr_array(slopes), ones, -ones])
    room = np.stack([LOW[_FRONT] - numbers[_FRONT], HIGH[_FRONT] - numbers[_FRONT]], axis=1)
    bounds = np.concatenate([room, np.tile([0.0, np.inf], (2 * requests, 1))])
    cost = np.concatenate([np.zeros(count), np.ones(2 * requests)])
    found = scipy().optimize.linprog(cost, A_eq=sides, b_eq=late_s, bounds=bounds)
    if found.success:
        numbers[_FRONT] += found.x[:count]
    return numbers
