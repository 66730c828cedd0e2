"""Predicted against measured latencies, request by request."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from blis_py.calibrate.token_times import Seconds, TokenTimes
from blis_py.errors import InputError

PERCENTILES = (50, 90, 99)
QUALITIES = (("excellent", 0.10, 0.95), ("good", 0.20, 0.85), ("fair", 0.35, 0.70))
"""Name, largest MAPE, smallest Pearson r: BLIS's grades; what meets none is poor."""


@dataclass(frozen=True)
class Statistic:
    """One figure of a latency, in s."""

    name: str
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """Predicted over measured, minus one."""
        return self.predicted / self.measured - 1 if self.measured else float("nan")


@dataclass(frozen=True)
class LatencyError:
    """How well one latency of a group of requests is predicted."""

    latency: str
    group: str
    requests: int
    statistics: tuple[Statistic, ...]
    mape: float
    """Mean of |predicted/measured - 1| over requests."""
    bias: float
    """Mean of predicted/measured - 1."""
    pearson_r: float

    @property
    def quality(self) -> str:
        """BLIS's grade, from MAPE and correlation."""
        met = (name for name, mape, r in QUALITIES if self.mape < mape and self.pearson_r > r)
        return next(met, "poor")


@dataclass(frozen=True)
class Calibration:
    """A simulated run beside the measured one."""

    measured: TokenTimes
    predicted: TokenTimes
    """Both hold the same requests in the same order."""
    only_measured: int
    only_predicted: int
    errors: tuple[LatencyError, ...]
    throughput: Statistic
    """Output tokens per second, from the first sending to the last token."""


def calibrate(
    measured: TokenTimes, predicted: TokenTimes, *, warm_up_requests: int = 0, network_rtt_s: float = 0.0
) -> Calibration:
    """Compares the requests both runs completed.

    Args:
        warm_up_requests: requests with a smaller id are left out, as in BLIS.
        network_rtt_s: time on the network that the client measured and the simulation knows nothing of;
            added to every predicted TTFT and E2E.

    Raises:
        InputError: no request completed in both.
    """
    ids, ours, theirs = np.intersect1d(measured.request_id, predicted.request_id, return_indices=True)
    kept = np.flatnonzero(ids >= warm_up_requests)
    if not len(kept):
        fix = "calibrate a trace against the simulation of that same trace"
        raise InputError("no request completed in both runs", file=predicted.source, fix=fix)
    real, sim = measured.take(ours[kept]), predicted.take(theirs[kept])
    groups = {"all": np.arange(len(kept))}
    names = real.slo_class.names
    if len(set(real.slo_class.codes.tolist())) > 1:
        for code, name in enumerate(names):
            rows = np.flatnonzero(real.slo_class.codes == code)
            groups |= {name or "no class": rows} if len(rows) else {}
    errors = tuple(
        error
        for group, rows in groups.items()
        for error in _errors(group, real.take(rows), sim.take(rows), network_rtt_s)
    )
    return Calibration(
        measured=real,
        predicted=sim,
        only_measured=len(measured.request_id) - len(ids),
        only_predicted=len(predicted.request_id) - len(ids),
        errors=errors,
        throughput=Statistic("throughput", _throughput(real), _throughput(sim)),
    )


def _errors(group: str, real: TokenTimes, sim: TokenTimes, rtt_s: float) -> Iterator[LatencyError]:
    pairs = {
        "TTFT": (real.ttft_s, sim.ttft_s + rtt_s),
        "TPOT": (real.tpot_s, sim.tpot_s),
        "E2E": (real.e2e_s, sim.e2e_s + rtt_s),
    }
    for latency, (truth, guess) in pairs.items():
        known = ~(np.isnan(truth) | np.isnan(guess))
        if known.any():
            yield _error(latency, group, truth[known], guess[known])


def _error(latency: str, group: str, truth: Seconds, guess: Seconds) -> LatencyError:
    statistics = [Statistic("mean", float(truth.mean()), float(guess.mean()))]
    for share in PERCENTILES:
        at = (float(np.percentile(values, share)) for values in (truth, guess))
        statistics.append(Statistic(f"p{share}", *at))
    relative = guess[truth > 0] / truth[truth > 0] - 1
    spread = truth.std() * guess.std()
    r = float(((truth - truth.mean()) * (guess - guess.mean())).mean() / spread) if spread else float("nan")
    return LatencyError(
        latency,
        group,
        len(truth),
        tuple(statistics),
        mape=float(np.abs(relative).mean()),
        bias=float(relative.mean()),
        pearson_r=r,
    )


def _throughput(times: TokenTimes) -> float:
    span_s = float((times.sent_s + times.e2e_s).max() - times.sent_s.min())
    return float(times.output_tokens.sum()) / span_s if span_s else float("nan")


def as_dict(calibration: Calibration) -> dict[str, Any]:
    """Plain data: seconds, shares, and null where a figure is not defined."""

    def number(value: float) -> float | None:
        return None if np.isnan(value) else value

    def statistic(s: Statistic) -> dict[str, float | None]:
        return {"measured": s.measured, "predicted": s.predicted, "error": number(s.error)}

    return {
        "requests": len(calibration.measured.request_id),
        "only_measured": calibration.only_measured,
        "only_predicted": calibration.only_predicted,
        "output_tokens_per_s": statistic(calibration.throughput),
        "latencies": [
            {
                "latency": e.latency.lower(),
                "group": e.group,
                "requests": e.requests,
                "mape": number(e.mape),
                "bias": number(e.bias),
                "pearson_r": number(e.pearson_r),
                "quality": e.quality,
                "seconds": {s.name: statistic(s) for s in e.statistics},
            }
            for e in calibration.errors
        ],
    }
