"""Early verdicts from the first part of the arrivals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from blis_py.core.slo import DEFAULT_CLASS
from blis_py.metrics.groups import rows_by_name, slo_classes
from blis_py.metrics.latencies import Latencies, latencies
from blis_py.metrics.record import Outcome as End
from blis_py.metrics.record import RunRecord
from blis_py.metrics.registry import METRICS
from blis_py.metrics.slo import SloCheck
from blis_py.planning.job import FINE, HOPELESS
from blis_py.requests.table import Ints, RequestTable

SHARE = 1 / 8
"""Share of the time from the first to the last arrival that is simulated first."""
_MIN = 400
"""Fewest requests for an early verdict; a smaller run ends soon anyway."""
_EASY, _SAMPLE = 0.5, 50


def worth_it(table: RequestTable, checks: Sequence[SloCheck]) -> bool:
    """Whether an early verdict is worthwhile: enough requests, and SLOs to judge by."""
    return len(table) >= _MIN and bool(checks)


def horizon_ns(table: RequestTable) -> int:
    """End of the first part of the arrivals, in ns."""
    first_ns, last_ns = int(table.arrival_ns[0]), int(table.arrival_ns[-1])
    return first_ns + max(round((last_ns - first_ns) * SHARE), 1)


def judge(
    part: RunRecord, whole: RequestTable, checks: Sequence[SloCheck], max_lost: float = 0.0
) -> str | None:
    """The early verdict: `hopeless`, `fine`, or None if the rest has to be simulated.

    Args:
        max_lost: share of the requests that may be lost, for which no latency counts.

    Later events do not change past latencies. A limit is certainly missed if so many requests exceed it
    already that the percentile over all requests lies among them (or the sum behind a mean is reached), even
    if the others took no time. Success is never certain: `fine` means that half of the KV memory is free and
    every request meets every limit with a factor of two to spare; a configuration chosen on that ground must
    still be run as a whole.
    """
    spare = math.floor(max_lost * len(whole))
    if any(_missed(check, part, whole, spare) for check in checks):
        return HOPELESS
    return FINE if _easy(checks, part, latencies(part)) else None


def _missed(check: SloCheck, part: RunRecord, whole: RequestTable, spare: int) -> bool:
    total = _count(whole, check.slo_class)
    if not METRICS[check.metric].reached or not total:  # others can decrease while a request is in progress
        return False
    waits_ns = _waits_ns(part, check)
    if check.stat == "mean":
        return not spare and bool(waits_ns.sum() > check.limit_ns * total)
    percent = percent_of(check.stat)
    if percent is None:
        return False
    beyond = total - math.floor(percent / 100 * (total - 1))
    return bool((waits_ns > check.limit_ns).sum() >= beyond + (spare + 1 if spare else 0))


def percent_of(stat: str) -> float | None:
    """The percentile that a statistic is; None of a mean and a standard deviation."""
    if stat in ("median", "max"):
        return 50.0 if stat == "median" else 100.0
    return float(stat[1:]) if stat[0] == "p" else None


def _waits_ns(part: RunRecord, check: SloCheck) -> Ints:
    """Latencies so far, in ns; for waiting requests, the time waited."""
    rows = rows_of(part, check.slo_class)
    reached_ns = getattr(part, METRICS[check.metric].reached)[rows]
    arrival_ns = part.table.arrival_ns[rows]
    waits_ns: Ints = np.where(reached_ns >= 0, reached_ns, part.end_ns) - arrival_ns
    return waits_ns


def _easy(checks: Iterable[SloCheck], part: RunRecord, columns: Latencies) -> bool:
    """Whether half of the memory is free, no request is lost, and every limit is met twice over."""
    ended = part.outcome <= End.LENGTH_CAPPED
    lost = np.isin(part.outcome, (End.REJECTED, End.UNSERVABLE, End.TIMED_OUT, End.EVICTED))
    fullest = max((each.peak_kv_blocks / each.num_kv_blocks for each in part.instances), default=1.0)
    if lost.any() or ended.sum() < _SAMPLE or fullest > _EASY:
        return False
    return all(_kept_twice(check, part, columns) for check in checks)


def _kept_twice(check: SloCheck, part: RunRecord, columns: Latencies) -> bool:
    if METRICS[check.metric].per_token or check.stat in ("min", "std"):
        return False
    rows = rows_of(part, check.slo_class)
    values = columns.column(check.metric)[rows]
    values = values[~np.isnan(values)]
    if len(values) < _SAMPLE:
        return False
    worst = values.mean() if check.stat == "mean" else values.max()
    return bool(worst <= _EASY * check.limit_ns)


def rows_of(part: RunRecord, slo_class: str | None) -> Ints:
    """The requests of an SLO class; None = all."""
    all_rows = np.arange(len(part.table))
    if slo_class is None:
        return all_rows
    rows: Ints = rows_by_name(slo_classes(part)).get(slo_class, all_rows[:0])
    return rows


def _count(table: RequestTable, slo_class: str | None) -> int:
    if slo_class is None:
        return len(table)
    codes = [code for code, name in enumerate(table.slo_class.names) if (name or DEFAULT_CLASS) == slo_class]
    return int(np.isin(table.slo_class.codes, codes).sum())
