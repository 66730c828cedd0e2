"""Arrival processes of the requests of one client.

A new process is one function and one line in `PROCESSES`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from blis_py.core.bounds import MOST_ARRIVALS_PER_S
from blis_py.errors import InputError
from blis_py.requests.table import Ints

if TYPE_CHECKING:
    from blis_py.workload.profile import Floats, Profile


class Arrivals(NamedTuple):
    """Arrival process of a client.

    Attributes:
        process: a key of `PROCESSES`.
        rate: requests per second.
        cv: coefficient of variation of the gaps (standard deviation / mean); 1 is as bursty as Poisson.
        shape, scale_us: the distribution's own parameters, instead of `cv`. They also fix the rate, so `rate`
        is then unused.
        profile: course of the rate over time; None = constant.
        exact_count: draw exactly the expected number of arrivals by the end of the profile, at random times:
        a Poisson process conditioned on its count.
    """

    process: str
    rate: float
    cv: float = 1.0
    shape: float | None = None
    scale_us: float | None = None
    profile: Profile | None = None
    exact_count: bool = False

    def expected(self, until_ns: int) -> float:
        """Expected number of arrivals before `until_ns`."""
        until_us = until_ns / 1e3
        passed_us = until_us if self.profile is None else self.profile.passed_us(until_us)
        return passed_us / self.mean_gap_us

    def drawn(self, until_ns: int) -> float:
        """Expected number of draws for those."""
        if self.profile is None or not self.profile.runs_on:
            return self.expected(until_ns)
        return min(until_ns / 1e3, self.profile.end_us) / self.mean_gap_us

    @property
    def end_us(self) -> float:
        """Time of the last arrival; infinity if there is no end."""
        return math.inf if self.profile is None else self.profile.end_us

    @property
    def mean_gap_us(self) -> float:
        if self.shape is None or self.scale_us is None:
            return 1e6 / self.rate
        return self.scale_us * (self.shape if self.process == "gamma" else math.gamma(1 + 1 / self.shape))


def poisson(arrivals: Arrivals, rng: np.random.Generator, count: int) -> Floats:
    """Independent users: exponential gaps of mean 1/rate."""
    return rng.standard_exponential(count) * arrivals.mean_gap_us


def gamma(arrivals: Arrivals, rng: np.random.Generator, count: int) -> Floats:
    """Gamma gaps: shape = 1/cv^2, scale = mean * cv^2. Bursty for cv > 1, regular for cv < 1."""
    shape = arrivals.cv**-2 if arrivals.shape is None else arrivals.shape
    return rng.standard_gamma(shape, count) * (arrivals.mean_gap_us / shape)


def weibull(arrivals: Arrivals, rng: np.random.Generator, count: int) -> Floats:
    """Weibull gaps: the shape k has cv^2 = G(1+2/k)/G(1+1/k)^2 - 1, the scale is mean / G(1+1/k)."""
    shape = weibull_shape(arrivals.cv) if arrivals.shape is None else arrivals.shape
    return rng.weibull(shape, count) * (arrivals.mean_gap_us / math.gamma(1 + 1 / shape))


def constant(arrivals: Arrivals, rng: np.random.Generator, count: int) -> Floats:
    """Even spacing, in whole microseconds: int(1e6 / rate)."""
    return np.full(count, max(1.0, math.floor(arrivals.mean_gap_us)))


PROCESSES: dict[str, Callable[[Arrivals, np.random.Generator, int], Floats]] = {
    "poisson": poisson,
    "gamma": gamma,
    "weibull": weibull,
    "constant": constant,
}


def gamma_residual(arrivals: Arrivals, rng: np.random.Generator) -> float:
    """Remainder of a gamma gap in progress at a given time: longer gaps are more likely."""
    shape = arrivals.cv**-2 if arrivals.shape is None else arrivals.shape
    met = float(rng.standard_gamma(shape + 1)) * (arrivals.mean_gap_us / shape)
    return float(rng.random()) * met


def weibull_residual(arrivals: Arrivals, rng: np.random.Generator) -> float:
    """Remainder of a Weibull gap in progress at a given time."""
    shape = weibull_shape(arrivals.cv) if arrivals.shape is None else arrivals.shape
    scale = arrivals.mean_gap_us / math.gamma(1 + 1 / shape)
    met = math.pow(float(rng.standard_gamma(1 + 1 / shape)), 1 / shape) * scale
    return float(rng.random()) * met


RESIDUALS: dict[str, Callable[[Arrivals, np.random.Generator], float]] = {
    "gamma": gamma_residual,
    "weibull": weibull_residual,
}
"""First gap of a process already in progress; for the others any gap will do."""
FIXED_CV = {"poisson": 1.0, "constant": 0.0}
"""Processes whose name implies their burstiness."""
WEIBULL_CV = (0.01, 10.4)
"""Range of the variation that a Weibull shape between 0.1 and 100 can have."""
GAMMA_CV = (0.001, 100.0)
"""Range of the variation; outside of it gaps are all equal, or nearly all 0."""
SHAPES = {"gamma": (1e-4, 1e6), "weibull": (0.1, 1e6)}
SCALES_US = (1e-3, 1e15)
SLOWEST_PER_S = 1e-12
"""Lowest rate, one request in thirty thousand years; slower clients do not send."""


def weibull_shape(cv: float) -> float:
    """The shape of a Weibull law with the given coefficient of variation, by bisection (it falls with k)."""
    low, high = 0.1, 130.0
    for _ in range(80):
        middle = (low + high) / 2
        squared = math.gamma(1 + 2 / middle) / math.gamma(1 + 1 / middle) ** 2 - 1
        low, high = (middle, high) if squared > cv * cv else (low, middle)
    return (low + high) / 2


def check(
    process: str,
    cv: float | None,
    shape: float | None,
    scale: float | None,
    *,
    key: str,
    file: str | Path | None = None,
    flag: str | None = None,
) -> None:
    """Refuse an invalid arrival process; `key` is its location in the file.

    With `flag`, the values come from command-line flags: `key` names the process, `flag` the variation.

    Raises:
        InputError: unknown process; cv out of range or given to a process that has none; half a pair of
            shape and scale; shape and scale given to a process that has none.
    """
    process_key, cv_key = (key, flag) if flag else (f"{key}.process", f"{key}.cv")
    if process not in PROCESSES:
        known = ", ".join(PROCESSES)
        raise InputError(
            "unknown arrival process", file=file, key=process_key, value=process, fix=f"use one of {known}"
        )
    if cv is not None and process in FIXED_CV and cv != FIXED_CV[process]:
        raise InputError(
            f"{process} arrivals have no cv to set",
            file=file,
            key=cv_key,
            value=cv,
            fix="use gamma or weibull",
        )
    if cv is not None and process not in FIXED_CV:
        low, high = WEIBULL_CV if process == "weibull" else GAMMA_CV
        if not low <= cv <= high:
            problem, fix = f"must lie in [{low}, {high}] for {process}", "1 is Poisson-like"
            raise InputError(problem, file=file, key=cv_key, value=cv, fix=fix)
    if (shape is None) != (scale is None):
        present = "shape" if scale is None else "scale"
        raise InputError(
            "shape and scale come as a pair", file=file, key=f"{key}.{present}", fix="give both, or cv"
        )
    if shape is not None and process in FIXED_CV:
        raise InputError(
            f"{process} arrivals have no shape", file=file, key=f"{key}.shape", value=shape, fix="remove it"
        )
    bounds = {"shape": SHAPES.get(process, (0, 0)), "scale": SCALES_US}
    for name, value in (("shape", shape), ("scale", scale)):
        low, high = bounds[name]
        if value is not None and not low <= value <= high:
            problem = f"must lie in [{low:g}, {high:g}] for {process}"
            raise InputError(problem, file=file, key=f"{key}.{name}", value=value)
    if shape is not None and cv is not None:
        raise InputError(
            "cv and shape say the same thing twice", file=file, key=f"{key}.cv", fix="remove one"
        )


def check_rate(rate: float, *, key: str, file: str | Path | None = None) -> None:
    """
    Raises:
        InputError: not a usable rate.
    """
    if not SLOWEST_PER_S <= rate <= MOST_ARRIVALS_PER_S:
        problem = f"must lie in [{SLOWEST_PER_S:g}, {MOST_ARRIVALS_PER_S:,.0f}]"
        raise InputError(problem, file=file, key=key, value=rate, fix="give requests per second")


def arrivals_until(
    arrivals: Arrivals, rng: np.random.Generator, until_ns: int, *, at_most: int | None = None
) -> Ints:
    """Arrival times in ns, whole microseconds, before `until_ns`; the first comes after one gap.

    With a profile the process is already in progress at its start, so that the mean number of arrivals
    follows the rate, however short the time and bursty the process.

    A longer `until_ns` continues the same sequence. `at_most` bounds the number of arrivals.
    """
    until_us, profile = until_ns / 1e3, arrivals.profile
    if arrivals.exact_count:
        times = _scattered(arrivals, rng)[:at_most]
    elif profile is None:
        times = _even(arrivals, rng, until_us, at_most)
    elif profile.runs_on:
        times = _even(arrivals, rng, min(until_us, profile.end_us), None)
        times = times[profile.on(times)][:at_most]
    else:
        times = profile.when_us(_even(arrivals, rng, profile.passed_us(until_us), at_most))
    whole_us = np.floor(times[times < until_us]).astype(np.int64)
    return whole_us * 1000


def _scattered(arrivals: Arrivals, rng: np.random.Generator) -> Floats:
    """The expected number of arrivals, in us, in order."""
    profile = arrivals.profile
    assert profile is not None
    passed_us = profile.passed_us(profile.end_us)
    times = np.sort(rng.random(round(passed_us / arrivals.mean_gap_us))) * passed_us
    return profile.when_us(times)


def _even(arrivals: Arrivals, rng: np.random.Generator, until_us: float, at_most: int | None) -> Floats:
    """Arrivals at a constant rate, in us, in order; some may lie beyond `until_us`."""
    gaps, times = PROCESSES[arrivals.process], np.empty(0)
    mean_us = arrivals.mean_gap_us
    residual = RESIDUALS.get(arrivals.process) if arrivals.profile is not None else None
    first_us = None if residual is None else residual(arrivals, rng)
    while (len(times) == 0 or times[-1] < until_us) and (at_most is None or len(times) < at_most):
        start = times[-1] if len(times) else 0.0
        expected = (until_us - start) / mean_us
        missing = math.inf if at_most is None else at_most - len(times)
        count = int(min(expected + 4 * math.sqrt(expected) + 16, missing))
        steps = gaps(arrivals, rng, count)
        if first_us is not None and len(steps) and not len(times):
            steps[0] = first_us
        steps[0] += start
        times = np.concatenate([times, np.cumsum(steps)])
    return times
