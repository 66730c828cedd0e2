"""Sending times of the clients of a workload spec: windows, days, spikes and drains."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from blis_py.errors import InputError
from blis_py.workload.profile import Profile, of_a_day, ramp_down
from blis_py.workload.spec_base import DistributionSpec, Positive, Strict, TimeUs, as_tuple


class ArrivalSpec(Strict):
    """`shape` and `scale` (us) together replace `cv` and the client's rate."""

    process: Literal["poisson", "gamma", "weibull", "constant"]
    """The law of the gaps between arrivals."""
    cv: Positive | None = None
    """Standard deviation of the gaps over their mean, of `gamma` and `weibull`; 1 is as bursty as Poisson.
    Absent: 1."""
    shape: Positive | None = None
    """The law's shape, with `scale` instead of `cv`."""
    scale: Positive | None = None
    """The law's scale in us, with `shape`."""
    exact_count: bool = False
    """Whether a `poisson` window has exactly the expected number of requests, at random times."""


class WindowSpec(Strict):
    """A time in which a client sends, from `start_us` on and before `end_us`.

    What it says of rate, arrivals and lengths holds in it instead of what the client says. A client with a
    window that says any of that begins each of its windows anew, one gap after the start; a request that is
    due just at the end comes.
    """

    start_us: TimeUs
    """From when on it sends."""
    end_us: TimeUs
    """Before when it sends."""
    trace_rate: Positive | None = None
    """Requests/s in the window. With an `aggregate_rate`, the proportion in which those who send at a time
    share it."""
    arrival: ArrivalSpec | None = None
    """Instead of the client's."""
    input_distribution: DistributionSpec | None = None
    """Instead of the client's."""
    output_distribution: DistributionSpec | None = None
    """Instead of the client's."""

    @property
    def overrides(self) -> bool:
        own = (self.trace_rate, self.arrival, self.input_distribution, self.output_distribution)
        return any(value is not None for value in own)


class LifecycleSpec(Strict):
    """A client sends in its windows only. Where no window says more than when, its arrivals run on all the
    time, and those outside are left out."""

    windows: Annotated[tuple[WindowSpec, ...], BeforeValidator(as_tuple)]
    """Windows in which it sends."""


class DiurnalSpec(Strict):
    """A day, repeated, that begins at midnight: a cosine with the cohort's rate at `peak_hour`, and that
    divided by `peak_to_trough_ratio` twelve hours later."""

    peak_hour: Annotated[float, Field(ge=0, lt=24)] = 0.0
    """Hours after midnight, which is when the run begins."""
    peak_to_trough_ratio: Annotated[float, Field(ge=1, le=1e9)]
    """Ratio of the peak to the trough."""


class SpikeSpec(Strict):
    """The cohort sends for `duration_us` from `start_time_us` on, and at no other time; `trace_rate` is of
    all its members together."""

    start_time_us: TimeUs
    """Beginning."""
    duration_us: Annotated[TimeUs, Field(ge=1)]
    """Duration."""
    trace_rate: Positive | None = None
    """Requests/s of the spike, as of a window."""


class DrainSpec(Strict):
    """The cohort sends until `start_time_us`, and then less and less, in a straight line to nothing."""

    start_time_us: TimeUs
    """Time at which the rate begins to fall."""
    ramp_duration_us: TimeUs = 0
    """Time for which it falls; 0: it ends at once."""


def check_windows(windows: Sequence[WindowSpec], key: str, path: Path | None) -> None:
    """
    Raises:
        InputError: no windows, one that ends before it begins, or overlapping windows with their own
        settings.
    """
    if not windows:
        fix = "give some, or remove lifecycle"
        raise InputError("at least one window is needed", file=path, key=key, fix=fix)
    for number, window in enumerate(windows):
        if window.end_us <= window.start_us:
            problem, where = f"must be after start_us ({window.start_us})", f"{key}[{number}].end_us"
            raise InputError(problem, file=path, key=where, value=window.end_us)
    if not any(window.overrides for window in windows):
        return
    order = sorted(range(len(windows)), key=lambda number: windows[number].start_us)
    for first, second in pairwise(order):
        if windows[second].start_us < windows[first].end_us:
            problem, fix = f"overlaps {key}[{first}]", "make two clients of them, or end the first earlier"
            raise InputError(problem, file=path, key=f"{key}[{second}].start_us", fix=fix)


def bounds_of(windows: Sequence[WindowSpec]) -> list[tuple[float, float]]:
    return [(float(window.start_us), float(window.end_us)) for window in windows]


def changing(diurnal: DiurnalSpec | None, drain: DrainSpec | None) -> Profile | None:
    """Profile of a cohort's changing rate; None = constant."""
    if diurnal is not None:
        return of_a_day(diurnal.peak_hour, diurnal.peak_to_trough_ratio)
    return None if drain is None else ramp_down(float(drain.start_time_us), float(drain.ramp_duration_us))
