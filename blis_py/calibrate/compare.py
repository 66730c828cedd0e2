"""Predicted and measured latencies, compared request by request."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from blis_py.calibrate._goodput import Good, goodput
from blis_py.calibrate.matching import Rows, matched
from blis_py.calibrate.token_times import Seconds, TokenTimes
from blis_py.errors import InputError
from blis_py.metrics.slo import GoodputTargets
from blis_py.requests.table import Labels

PERCENTILES = (50, 90, 99)
BYTES_PER_TOKEN = 4
"""Bytes per token on the network, as in BLIS."""
QUALITIES = (("excellent", 0.10, 0.95), ("good", 0.20, 0.85), ("fair", 0.35, 0.70))
"""Name, largest MAPE, smallest Pearson r: BLIS's grades; below all of them, poor."""


@dataclass(frozen=True)
class Statistic:
    """A statistic of a latency, in s, or of the throughput, per s."""

    name: str
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """Predicted over measured, minus one."""
        return self.predicted / self.measured - 1 if self.measured else float("nan")


@dataclass(frozen=True)
class LatencyError:
    """Prediction error of one latency over a group of requests.

    The statistics of ITL are over all gaps between tokens, pooled; comparisons by request use the mean gap of
    each.
    """

    latency: str
    group: str
    requests: int
    statistics: tuple[Statistic, ...]
    per_request: dict[str, float]
    """Percentiles of |predicted/measured - 1| over requests: `p50`, `p90`, `p99`."""
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
    """A simulated run compared with the measured one."""

    measured: TokenTimes
    predicted: TokenTimes
    """Both contain the same requests in the same order."""
    only_measured: int
    only_predicted: int
    errors: tuple[LatencyError, ...]
    throughput: tuple[Statistic, ...]
    """Output tokens and requests per second, from the first sending to the last token."""
    notes: tuple[str, ...] = ()
    """Comparisons that were not possible, and why."""
    goodput: tuple[Good, ...] = ()
    """Goodput by class, if targets are given."""


def calibrate(
    measured: TokenTimes,
    predicted: TokenTimes,
    *,
    warm_up_requests: int = 0,
    skip_first_s: float = 0.0,
    network_rtt_s: float = 0.0,
    network_mbps: float = 0.0,
    targets: GoodputTargets | None = None,
) -> Calibration:
    """Compare the requests that both runs completed.

    Args:
        warm_up_requests: requests with a smaller id are left out, as in BLIS.
        skip_first_s: requests sent in this initial period of the measured run are left out.
        network_rtt_s: network time included in the client's measurement but not in the simulation; added to
            every predicted TTFT and E2E.
        network_mbps: bandwidth of that network, for prompts and answers at 4 bytes per token. 0:
            unlimited.
        targets: targets of a good request.

    Raises:
        InputError: the runs are not of the same requests, or none is left.
    """
    ours, theirs = matched(measured, predicted)
    without_send_times = [
        f"{run.source} has no send times: requests are matched by number and lengths alone"
        for run in (measured, predicted)
        if not run.has_send_times
    ]
    measured, predicted = _sent_alike(measured, predicted, ours, theirs)
    if skip_first_s and not measured.has_send_times:
        fix = "leave out requests with --warm-up-requests"
        raise InputError("has no send times", file=measured.source, fix=fix)
    since_s = np.nan_to_num(measured.sent_s[ours] - measured.sent_s.min())
    kept = np.flatnonzero((measured.request_id[ours] >= warm_up_requests) & (since_s >= skip_first_s))
    if not len(kept):
        fix = "leave out fewer with --skip-first, --warm-up-requests"
        raise InputError("no request of both runs is left", file=predicted.source, fix=fix)
    real, sim = measured.take(ours[kept]), predicted.take(theirs[kept])
    errors = tuple(
        error
        for group, rows in _groups(real.slo_class).items()
        for error in _errors(group, real.take(rows), _at_client(sim.take(rows), network_rtt_s, network_mbps))
    )
    client_view = _at_client(sim, network_rtt_s, network_mbps)
    return Calibration(
        measured=real,
        predicted=sim,
        only_measured=len(measured.request_id) - len(ours),
        only_predicted=len(predicted.request_id) - len(ours),
        errors=errors,
        throughput=_throughput(real, sim),
        notes=(*without_send_times, *_notes(measured, predicted)),
        goodput=() if targets is None else goodput(real, client_view, targets),
    )


def _groups(slo_class: Labels) -> dict[str, Rows]:
    """All requests and, if there are several classes, those of each."""
    codes = slo_class.codes
    groups: dict[str, Rows] = {"all": np.arange(len(codes))}
    if len(set(codes.tolist())) > 1:
        for code, name in enumerate(slo_class.names):
            rows = np.flatnonzero(codes == code)
            groups |= {name or "no class": rows} if len(rows) else {}
    return groups


def _sent_alike(
    measured: TokenTimes, predicted: TokenTimes, ours: Rows, theirs: Rows
) -> tuple[TokenTimes, TokenTimes]:
    """Copy sending times from the other run if one lacks them."""
    if not predicted.has_send_times and measured.has_send_times:
        sent_s = predicted.sent_s.copy()
        sent_s[theirs] = measured.sent_s[ours]
        predicted = replace(predicted, sent_s=sent_s)
    elif predicted.has_send_times and not measured.has_send_times:
        sent_s = measured.sent_s.copy()
        sent_s[ours] = predicted.sent_s[theirs]
        measured = replace(measured, sent_s=sent_s)
    return measured, predicted


def _at_client(sim: TokenTimes, rtt_s: float, mbps: float) -> TokenTimes:
    """The simulated times as seen by a client behind the network.

    Raises:
        InputError: a bandwidth is given, and prompt lengths are not known.
    """
    up_s, down_s = np.zeros(len(sim.request_id)), np.zeros(len(sim.request_id))
    if mbps:
        bytes_per_s = mbps * 1e6 / 8
        if sim.prompt_tokens is None:
            raise InputError("has no prompt lengths for the network", file=sim.source)
        up_s = sim.prompt_tokens * BYTES_PER_TOKEN / bytes_per_s
        down_s = sim.output_tokens * BYTES_PER_TOKEN / bytes_per_s
    return replace(sim, ttft_s=sim.ttft_s + rtt_s + up_s, e2e_s=sim.e2e_s + rtt_s + up_s + down_s)


def _notes(measured: TokenTimes, predicted: TokenTimes) -> tuple[str, ...]:
    """Notes on ITL, if only one side has it."""
    if measured.gaps is not None and predicted.gaps is None:
        return (f"no ITL in {predicted.source}: simulate with --record-itl",)
    if measured.gaps is None and predicted.gaps is not None:
        return (f"no ITL in {measured.source}: only the first and last tokens were timed",)
    return ()


def _errors(group: str, real: TokenTimes, sim: TokenTimes) -> Iterator[LatencyError]:
    yield from _error("TTFT", group, real.ttft_s, sim.ttft_s)
    if real.gaps is not None and sim.gaps is not None:
        pooled = real.gaps.values, sim.gaps.values
        yield from _error("ITL", group, real.gaps.means(), sim.gaps.means(), pooled)
    yield from _error("TPOT", group, real.tpot_s, sim.tpot_s)
    yield from _error("E2E", group, real.e2e_s, sim.e2e_s)


def _error(
    latency: str, group: str, truth: Seconds, guess: Seconds, pooled: tuple[Seconds, Seconds] | None = None
) -> Iterator[LatencyError]:
    """The error of one latency, or none if no request has it in both runs.

    Args:
        truth, guess: values by request; NaN if undefined.
        pooled: samples for the statistics, in place of these.
    """
    known = ~(np.isnan(truth) | np.isnan(guess))
    if not known.any():
        return
    truth, guess = truth[known], guess[known]
    samples = pooled or (truth, guess)
    statistics = [Statistic("mean", *(float(values.mean()) for values in samples))]
    for share in PERCENTILES:
        statistics.append(Statistic(f"p{share}", *(float(np.percentile(v, share)) for v in samples)))
    relative = guess[truth > 0] / truth[truth > 0] - 1
    yield LatencyError(
        latency,
        group,
        len(truth),
        tuple(statistics),
        per_request={f"p{share}": _percentile(np.abs(relative), share) for share in PERCENTILES},
        mape=float(np.abs(relative).mean()) if len(relative) else float("nan"),
        bias=float(relative.mean()) if len(relative) else float("nan"),
        pearson_r=_pearson_r(truth, guess),
    )


def _percentile(values: Seconds, share: float) -> float:
    return float(np.percentile(values, share)) if len(values) else float("nan")


def _pearson_r(x: Seconds, y: Seconds) -> float:
    spread = x.std() * y.std()
    return float(((x - x.mean()) * (y - y.mean())).mean() / spread) if spread else float("nan")


def _throughput(real: TokenTimes, sim: TokenTimes) -> tuple[Statistic, ...]:
    tokens, requests = zip(*(_rates(times) for times in (real, sim)), strict=True)
    return Statistic("output_tokens_per_s", *tokens), Statistic("requests_per_s", *requests)


def _rates(times: TokenTimes) -> tuple[float, float]:
    """Output tokens and requests per second."""
    span_s = float((times.sent_s + times.e2e_s).max() - times.sent_s.min()) or float("nan")
    return float(times.output_tokens.sum()) / span_s, len(times.request_id) / span_s


def as_dict(calibration: Calibration) -> dict[str, Any]:
    """Plain data: seconds, shares, and null for undefined figures."""

    def number(value: float) -> float | None:
        return None if np.isnan(value) else value

    def statistic(s: Statistic) -> dict[str, float | None]:
        return {"measured": number(s.measured), "predicted": number(s.predicted), "error": number(s.error)}

    return {
        "requests": len(calibration.measured.request_id),
        "only_measured": calibration.only_measured,
        "only_predicted": calibration.only_predicted,
        "notes": list(calibration.notes),
        **{s.name: statistic(s) for s in calibration.throughput},
        **({"goodput": [asdict(good) for good in calibration.goodput]} if calibration.goodput else {}),
        "latencies": [
            {
                "latency": e.latency.lower(),
                "group": e.group,
                "requests": e.requests,
                "mape": number(e.mape),
                "per_request": {name: number(value) for name, value in e.per_request.items()},
                "bias": number(e.bias),
                "pearson_r": number(e.pearson_r),
                "quality": e.quality,
                "seconds": {s.name: statistic(s) for s in e.statistics},
            }
            for e in calibration.errors
        ],
    }
