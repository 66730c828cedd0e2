"""The section `PD Metrics` of the text that BLIS prints: prefill and decode on instances of their own."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from blis_py.metrics.distribution import Distribution
from blis_py.metrics.handovers import HandOvers
from blis_py.metrics.latencies import Latencies
from blis_py.metrics.record import Outcome, RunRecord
from blis_py.metrics.visits import Onward, Role
from blis_py.requests.table import Ints


def disaggregation_lines(
    record: RunRecord, columns: Latencies, duration_s: float, *, contended: bool
) -> Iterator[str]:
    """The lines of the section; none without hand-overs.

    The throughput of a side counts what its instances completed, those that do both on either side. The
    imbalance is the larger throughput over the smaller.

    Args:
        duration_s: time over which rates are taken.
        contended: whether transfers share the links, and how many do is reported.
    """
    handed = record.handovers
    if handed is None or not len(handed):
        return
    rows = np.unique(handed.request)
    yield f"Disaggregated Requests: {len(rows)}"
    yield f"Dropped at Decode KV: {int((record.outcome[rows] == Outcome.UNSERVABLE).sum())}"
    prefill, decode = (_completed(record, side) for side in (Role.PREFILL, Role.DECODE))
    yield f"Prefill Throughput: {prefill / duration_s if duration_s else 0:.4f} sub-req/s"
    yield f"Decode Throughput: {decode / duration_s if duration_s else 0:.4f} sub-req/s"
    yield f"Load Imbalance Ratio: {_imbalance(prefill, decode)}"
    ttft_ns = columns.ttft_ns[rows]
    yield _times_us("Parent TTFT", Distribution.of(ttft_ns[~np.isnan(ttft_ns)] / 1e3))
    yield _times_us("KV Transfer Duration", Distribution.of((handed.end_ns - handed.begin_ns) / 1e3))
    if contended:
        active = _active(handed)
        yield f"Peak Concurrent Transfers: {int(active.max())}"
        yield f"Mean Transfer Queue Depth: {float(active.mean()):.4f}"


def _completed(record: RunRecord, side: Role) -> int:
    """Visits that instances of a side, or of both, completed."""
    visits = record.visits
    ended = np.isin(visits.outcome, (Onward.HANDED_OVER, Outcome.COMPLETED, Outcome.LENGTH_CAPPED))
    return int((ended & np.isin(visits.role, (side, Role.BOTH))).sum())


def _imbalance(prefill: int, decode: int) -> str:
    low, high = sorted((prefill, decode))
    return f"{high / low:.4f}" if low else "inf (one pool idle)"


def _active(handed: HandOvers) -> Ints:
    """Transfers in progress at the begin of each, itself included."""
    order = np.argsort(handed.begin_ns, kind="stable")
    ended = np.searchsorted(np.sort(handed.end_ns), handed.begin_ns[order], side="right")
    return np.arange(1, len(order) + 1) - ended


def _times_us(title: str, times: Distribution) -> str:
    p50, p95, p99 = (f"{times.percentile(percent):.1f}" for percent in (50, 95, 99))
    return f"{title} (us): mean={times.mean():.1f} p50={p50} p95={p95} p99={p99}"
