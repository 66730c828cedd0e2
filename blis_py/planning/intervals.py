"""Intervals of the statistics that targets limit, from the scatter between consecutive parts of one run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from blis_py.metrics.latencies import Floats, Latencies, latencies
from blis_py.metrics.record import RunRecord
from blis_py.metrics.registry import METRICS
from blis_py.metrics.slo import SloCheck, limit_and_measured
from blis_py.planning.early_stop import percent_of, rows_of
from blis_py.planning.job import JobOutcome
from blis_py.requests.table import Ints

Interval = tuple[float | None, float | None]
"""Lower and upper end in the unit of the metric; None where the run is too short to have one."""
_T = {40: 2.708, 20: 2.861, 10: 3.250}
"""Student's t for 99 %, both sides, by number of blocks. The widest of the three counts: bursts that last
longer than a short block make such blocks look independent."""
_WINDOWS = 40


def intervals(record: RunRecord, checks: Sequence[SloCheck]) -> dict[str, Interval]:
    """99 % intervals by target; none of extremes, nor of the gaps between tokens."""
    if not checks:
        return {}
    columns = latencies(record)
    by_text = {check.text: _interval(check, record, columns) for check in checks}
    return {text: interval for text, interval in by_text.items() if interval is not None}


def _interval(check: SloCheck, record: RunRecord, columns: Latencies) -> Interval | None:
    metric, share = METRICS[check.metric], percent_of(check.stat)
    if metric.per_token or (share is None and check.stat != "mean") or share in (0.0, 100.0):
        return None
    values = columns.column(check.metric)[rows_of(record, check.slo_class)]
    values = values[~np.isnan(values)]
    if len(values) < max(_T):
        return None
    low, high = _of_mean(values) if share is None else _of_percentile(values, share / 100)
    scale = metric.unit.scale
    return None if low is None else low / scale, None if high is None else high / scale


def _of_mean(values: Floats) -> Interval:
    mean, half = float(values.mean()), _half_width(values)
    return mean - half, mean + half


def _of_percentile(values: Floats, share: float) -> Interval:
    """Woodruff's interval: the percentiles at both ends of the interval of the share below the estimate."""
    below = (values <= np.quantile(values, share)).astype(np.float64)
    half = _half_width(below)
    ends = (share - half, share + half)
    low, high = (float(np.quantile(values, end)) if 0 < end < 1 else None for end in ends)
    return low, high


def _half_width(values: Floats) -> float:
    """Half the interval of a mean, by the sums over consecutive blocks."""
    apart = values - values.mean()
    return max(t * _deviation(apart, blocks) for blocks, t in _T.items())


def _deviation(apart: Floats, blocks: int) -> float:
    edges = np.linspace(0, len(apart), blocks, endpoint=False).astype(np.int64)
    sums = np.add.reduceat(apart, edges)
    return float(np.sqrt(blocks / (blocks - 1) * (sums**2).sum())) / len(apart)


def dispersion(arrival_ns: Ints) -> float:
    """Variance over mean of the arrivals in equal windows: 1 of a Poisson process, cv² of gamma gaps."""
    if len(arrival_ns) < _WINDOWS or arrival_ns[-1] <= arrival_ns[0]:
        return 1.0
    counts = np.histogram(arrival_ns, _WINDOWS)[0]
    return float(counts.var(ddof=1) / counts.mean())


def undecided(outcome: JobOutcome) -> list[tuple[str, Interval]]:
    """Targets whose limit lies within the interval of what was measured, and that interval."""
    known = outcome.facts.get("intervals", {})
    open_targets = []
    for each in outcome.slo:
        low, high = known.get(each["slo"], (0.0, 0.0))
        limit, _, _ = limit_and_measured(each)
        if (low is None or low <= limit) and (high is None or high > limit):
            open_targets.append((each["slo"], (low, high)))
    return open_targets
