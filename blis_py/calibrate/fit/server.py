"""Corrections of one server to step times learned on others, from a client's times of one or several runs.

At most four numbers: a delay in front of the engine and, as far as they are needed, a factor on the GPU time
of every step, a gap between steps, and a gap per sequence. The recorded requests are simulated with the
current numbers and with each of them changed slightly; the errors are explained by these slopes (robust
least squares on relative errors, none negative, weakly regularised to the preset), and the process is
repeated. The factor and the gaps follow from TPOT alone, and each is kept only if it predicts other parts of
the run, and other loads, better; the front end follows from what is then left of TTFT, where requests do not
queue. Errors are averaged by slices of time and in each by the length of the prompt (TTFT) and the requests
in flight (TPOT).

Runs of one server differ from each other by more than the scatter within a run: three of Llama-2-7B by 2 % of
their TPOT. So a change is shrunk toward the preset by 1 - (scatter/change)^4, and one below the scatter is
none; of n runs the scatter is a sqrt(n)-th. A number that then differs from the preset by less than the fit
converges to is the preset's. Several runs count by their information, the inverse of that scatter's
variance and their own. A log that names the instances of its requests is one run of each.

Errors are those of whole simulations before and after. Held-out errors are of four parts of the run in turn,
predicted with numbers from the other three. Intervals are of fits to resampled slices (90 %).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import lsq_linear

from blis_py.calibrate.fit.by_instance import by_instance
from blis_py.calibrate.fit.server_runs import (
    GROUPS,
    NAMES,
    SCATTER,
    SLICES,
    Floats,
    ServerRun,
    ServerRuns,
)
from blis_py.calibrate.token_times import TokenTimes
from blis_py.errors import InputError
from blis_py.latency.operators import Operators
from blis_py.latency.trained import Trained
from blis_py.setup.setup import Setup

Mask = NDArray[np.bool_]

MAX = 20_000
"""Requests of a run: more take too long."""
_RANGE = np.array([0.5, 2000.0, 100.0, 5.0])
"""Deviation from the preset that counts as much as an error of `_WEIGHT`."""
_WEIGHT = np.array([0.001, 0.001, 0.001, 0.005])
_LOW, _HIGH = np.array([0.05, 0.0, 0.0, 0.0]), np.array([20.0, 1e6, 1e5, 1e5])
_NOTHING = 1e-3
_STAGES = (([0], 0.2, 0.006), ([1, 2], 0.4, 0.02))
"""Numbers added one after the other, and the least reduction of the two held-out errors of TPOT together that
each must bring: a share, and an absolute value."""
_FACTOR = 1.4
"""Beyond this, a factor compensates for effects it does not describe."""
_SETTLED = np.array([0.0025, 10.0, 0.5, 0.25])
"""Convergence threshold, and the least deviation from the preset."""
_OF_STEPS = np.array([True, True, True, False])
_AMPLIFIED = 1.2
"""Relative change of TTFT over that of step times above which requests queue."""
_BOUND, _REWEIGHTED = 0.3, 4
_ROUNDS, _PARTS, _DRAWS = 4, 4, 200


@dataclass(frozen=True)
class FittedServer:
    """A number with its 90 % interval."""

    value: float
    low: float
    high: float

    def described(self) -> str:
        return f"{self.value:.4g} ({self.low:.4g} to {self.high:.4g})"

    @classmethod
    def of(cls, *values: float) -> FittedServer:
        """A number with its interval; negligible values become 0."""
        return cls(*(0.0 if value < _NOTHING else value for value in values))


@dataclass(frozen=True)
class ServerFit:
    """The fitted numbers, and their accuracy."""

    source: str
    requests: int
    numbers: Mapping[str, FittedServer]
    """Numbers by name, see `NAMES`."""
    before: Mapping[str, float]
    """Predicted over measured, minus one, of each mean and 99th percentile."""
    after: Mapping[str, float]
    held_out: Mapping[str, float]
    """Mean absolute error of the means of slices of time, with numbers from other parts of the run."""
    held_out_before: Mapping[str, float]
    in_flight: int = 0
    """Largest number of requests in flight, up to which a gap per sequence is known."""
    instances: int = 1
    """Instances that the runs are logs of, each fitted as a run of its own."""
    notes: tuple[str, ...] = ()


def fit_server(
    setup: Setup, measured: TokenTimes | Sequence[TokenTimes], skip_first_s: float = 0.0
) -> ServerFit:
    """Fit the corrections of a server; see the module.

    Args:
        setup: the server as it would be simulated; its own requests are ignored.
        measured: the client's measurement of the run, or of several of this server, with prompt lengths.
        skip_first_s: requests sent in this initial period are simulated, but do not count.

    Raises:
        InputError: too few requests, or no lengths of prompts.
    """
    if not isinstance(setup.latency, Trained | Operators):
        fix = "drop --latency-model"
        raise InputError("only trained step times can be fitted to a server", key="--latency-model", fix=fix)
    given = [measured] if isinstance(measured, TokenTimes) else measured
    logs, notes = by_instance(given, setup.config.instances)
    runs = []
    for one in logs:
        if len(one.request_id) > MAX:
            notes.append(
                f"only the first {MAX:,} of {len(one.request_id):,} requests of {one.source} were used"
            )
            one = one.take(np.argsort(one.sent_s, kind="stable")[:MAX])
        runs.append(ServerRun.of(setup, one, skip_first_s))
    if setup.scheduler.prefix_cache != "none":
        unsaid = "does not state which prompts share a prefix: all are computed in full"
        notes += [f"{one.source} {unsaid}" for one in given if one.same_prompt is None]
    run = ServerRuns(runs)
    begin = runs[0].numbers_of(setup)
    first = run.times(begin)
    base, slopes = first, run.slopes(first)
    weights = run.weights(first)
    scatter = SCATTER / len(runs) ** 0.5
    free = _free(begin, run.misses(first), slopes, weights, begin, scatter)
    numbers = _solve(begin, run.misses(first), slopes, weights, free, begin)
    for _ in range(_ROUNDS):
        if (np.abs(numbers - base[0].numbers) < _SETTLED).all():
            break
        base = run.times(numbers)
        slopes = run.slopes(base)
        free |= _free(numbers, run.misses(base), slopes, weights, begin, scatter, free)
        numbers = _solve(base[0].numbers, run.misses(base), slopes, weights, free, begin)
    misses, at = run.misses(base), base[0].numbers
    numbers = _shrunk(numbers, slopes, weights, begin, scatter)
    after = run.times(numbers)
    # the last slopes determine the numbers without further simulations
    drawn = _drawn(at, misses, slopes, weights, free, begin, scatter)
    low, high = np.percentile(drawn, (5, 95), axis=0)
    low, high = np.minimum(low, numbers), np.maximum(high, numbers)
    held = _held_out(at, misses, slopes, weights, free, begin)
    if not 1 / _FACTOR < numbers[0] < _FACTOR:
        notes.append(
            f"a factor of {numbers[0]:.2g} on step times compensates for other effects: "
            "the fit holds at the load of this run alone"
        )
    if numbers[2] > _NOTHING:
        notes.append(
            f"the gap per sequence was seen up to {run.in_flight:,} requests in flight and stays there"
        )
    values = [FittedServer.of(*map(float, row)) for row in zip(numbers, low, high, strict=True)]
    return ServerFit(
        source=", ".join(one.source for one in given),
        requests=sum(int(one.counted.sum()) for one in runs),
        numbers=dict(zip(NAMES, values, strict=True)),
        before=run.errors(first),
        after=run.errors(after),
        held_out=_sizes(held, weights),
        held_out_before=_sizes(run.misses(first), weights),
        in_flight=run.in_flight,
        instances=max(len(logs) // len(given), 1),
        notes=tuple(notes),
    )


def _free(
    numbers: Floats,
    misses: Floats,
    slopes: Floats,
    weights: Floats,
    prior: Floats,
    scatter: float,
    free: Mask | None = None,
) -> Mask:
    """Numbers worth fitting: the front end; the factor on step times, from TPOT; and a gap only where it
    improves the prediction of other parts of the run and of other loads further. Under a nearly constant
    load, one number explains as much as three, and is less wrong at other loads."""
    free = np.array([False, False, False, True]) if free is None else free.copy()

    def error(of: Mask) -> float:
        by_time = _sizes(_held_out(numbers, misses, slopes, weights, of, prior), weights)
        by_load = _sizes(_held_out(numbers, misses, slopes, weights, of, prior, by_load=True), weights)
        return by_time["TPOT"] + by_load["TPOT"]

    now = error(free)
    for stage, gain, least in _STAGES:
        more = [free | (np.arange(len(free)) == i) for i in stage if not free[i]]
        errors = [error(of) for of in more]
        if not errors or min(errors) > (1 - gain) * now - least:
            continue
        best = more[int(np.argmin(errors))]
        solved = _solve(numbers, misses, slopes, weights, best, prior)
        change = float((np.abs(slopes[1] @ (solved - prior)) * weights[1]).sum())
        if change < scatter:
            continue
        now, free = min(errors), best
    return free


def _solve(
    numbers: Floats, misses: Floats, slopes: Floats, weights: Floats, free: Mask, prior: Floats
) -> Floats:
    """Numbers that explain the errors, starting from these; only free ones change.

    Step times are explained by TPOT alone; the front end by what is left of TTFT. Requests that queue amplify
    any error of step times in their TTFT, so slices with a steep slope hardly count.
    """
    steps = free & _OF_STEPS
    solved = _least_squares(numbers, misses[1], slopes[1], weights[1], steps, prior)
    left = (1 + misses[0]) / (1 + slopes[0] @ (solved - numbers)) - 1
    calm = np.maximum(np.abs(slopes[0][..., 0]) / _AMPLIFIED, 1.0) ** -4
    return _least_squares(solved, left, slopes[0], weights[0] * calm, free & ~_OF_STEPS, prior)


def _shrunk(numbers: Floats, slopes: Floats, weights: Floats, prior: Floats, scatter: float) -> Floats:
    """Numbers moved toward the preset, the more the less they change the means of TPOT and TTFT."""
    moved = numbers - prior
    shrunk = prior.copy()
    for metric, own in ((1, _OF_STEPS), (0, ~_OF_STEPS)):
        change = abs(float(((slopes[metric] @ np.where(own, moved, 0.0)) * weights[metric]).sum()))
        kept = max(0.0, 1 - (scatter / change) ** 4) if change else 0.0
        shrunk[own] += kept * moved[own]
    settled: Floats = np.where(np.abs(shrunk - prior) < _SETTLED, prior, shrunk)
    return settled


def _least_squares(
    numbers: Floats, misses: Floats, slopes: Floats, weights: Floats, free: Mask, prior: Floats
) -> Floats:
    """Robust least squares: errors beyond a bound count linearly."""
    solved = numbers.copy()
    if not free.any():
        return solved
    size, counted = _RANGE[free], weights.ravel()
    ridge = np.diag(_WEIGHT[free] / size)
    bounds = ((_LOW - numbers)[free] / size, (_HIGH - numbers)[free] / size)
    rows, target = slopes.reshape(-1, len(NAMES))[:, free], misses.ravel()
    for _ in range(_REWEIGHTED):
        root = np.sqrt(counted)
        left = np.concatenate([rows * root[:, None], ridge])
        right = np.concatenate([target * root, ((prior - numbers)[free]) * np.diag(ridge)])
        change = lsq_linear(left * size, right, bounds).x * size
        off = np.abs(target - rows @ change)
        counted = weights.ravel() / np.maximum(off / _BOUND, 1.0)
    solved[free] += change
    return np.clip(solved, _LOW, _HIGH)


def _drawn(
    numbers: Floats,
    misses: Floats,
    slopes: Floats,
    weights: Floats,
    free: Mask,
    prior: Floats,
    scatter: float,
) -> Floats:
    """Numbers for resampled slices."""
    random = np.random.default_rng(0)
    slices = misses.shape[1]
    draws = []
    for at in random.integers(0, slices, (_DRAWS, slices)):
        solved = _solve(numbers, misses[:, at], slopes[:, at], weights[:, at], free, prior)
        draws.append(_shrunk(solved, slopes[:, at], weights[:, at], prior, scatter))
    return np.array(draws)


def _held_out(
    numbers: Floats,
    misses: Floats,
    slopes: Floats,
    weights: Floats,
    free: Mask,
    prior: Floats,
    *,
    by_load: bool = False,
) -> Floats:
    """Errors on each part of the run with numbers from the others.

    Args:
        by_load: parts with as many requests in flight, rather than parts of the time.
    """
    left = np.zeros_like(misses)
    slices = misses.shape[1]
    part = np.arange(GROUPS) if by_load else np.arange(slices) * _PARTS // SLICES
    for number in range(int(part.max()) + 1):
        at = np.s_[:, :, part == number] if by_load else np.s_[:, part == number]
        kept = weights.copy()
        kept[at] = 0.0
        solution = _solve(numbers, misses, slopes, kept, free, prior)
        left[at] = (1 + misses[at]) / (1 + slopes[at] @ (solution - numbers)) - 1
    return left


def _sizes(misses: Floats, weights: Floats) -> dict[str, float]:
    """Mean absolute error of the means of slices and groups, predicted over measured."""
    sizes = (np.abs(1 / (1 + misses) - 1) * weights).sum(axis=(1, 2))
    return {name: float(size) for name, size in zip(("TTFT", "TPOT"), sizes, strict=True)}
