"""Measured and predicted goodput."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from blis_py.calibrate.token_times import TokenTimes
from blis_py.metrics.slo import GoodputTargets


@dataclass(frozen=True)
class Good:
    """Share of a class's compared requests that meet all their limits."""

    group: str
    requests: int
    measured: float
    predicted: float


def goodput(real: TokenTimes, sim: TokenTimes, targets: GoodputTargets) -> tuple[Good, ...]:
    """Goodput by class of the measured run, for classes with targets; ITL if both runs have it.

    Args:
        real, sim: the same requests in the same order, as seen by their clients.
    """
    both = real.gaps is not None and sim.gaps is not None
    figures = []
    for code, name in enumerate(real.slo_class.names):
        rows = np.flatnonzero(real.slo_class.codes == code)
        limits = targets.of_class(name)
        if not both:
            limits = {dimension: limit for dimension, limit in limits.items() if dimension != "itl"}
        if len(rows) and limits:
            shares = [_share(run.take(rows), limits) for run in (real, sim)]
            figures.append(Good(name or "no class", len(rows), *shares))
    return tuple(figures)


def _share(run: TokenTimes, limits: dict[str, float]) -> float:
    met = np.ones(len(run.request_id), dtype=np.bool_)
    for dimension, limit_ns in limits.items():
        values = {"ttft": run.ttft_s, "e2e": run.e2e_s, "tpot": run.tpot_s}.get(dimension)
        if values is None:
            assert run.gaps is not None
            values = run.gaps.means()
        met &= np.nan_to_num(values) <= limit_ns / 1e9
    return float(met.mean())
