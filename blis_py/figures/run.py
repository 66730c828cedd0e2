"""Data behind the figures of a run, whether just simulated or read from files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blis_py.metrics.distribution import Distribution
from blis_py.metrics.groups import Rows, rows_by_name, slo_classes
from blis_py.metrics.itl import TokenGaps
from blis_py.metrics.latencies import latencies
from blis_py.metrics.record import RunRecord
from blis_py.metrics.registry import METRICS, main
from blis_py.metrics.slo import ANY_CLASS, GoodputTargets, parse_slos

Floats = NDArray[np.float64]
Columns = Mapping[str, NDArray[Any]]
SHARES = {"min": 0, "p50": 50, "p90": 90, "p95": 95, "p99": 99, "max": 100}
"""Statistics of a summary by the share of requests at or below them."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit on a metric, in its unit."""

    metric: str
    value: float
    text: str
    slo_class: str | None = None
    share: float | None = None
    """The percentile the limit applies to, if any."""


@dataclass(frozen=True, slots=True)
class InstanceView:
    """One instance over time."""

    num_kv_blocks: int
    steps: Columns | None
    """Columns of the steps table; `None` = not recorded."""
    pool: str = ""
    """Name of its pool."""


@dataclass(frozen=True)
class RunView:
    """Data of one run; request columns have one row per request, in order of arrival."""

    config: Mapping[str, Any]
    classes: Mapping[str, Rows]
    """Rows of each SLO class, the most urgent first."""
    completed: NDArray[np.bool_]
    arrival_s: Floats
    finish_s: Floats
    output_tokens: NDArray[np.int64]
    latency_ms: Mapping[str, Floats]
    """The metrics of each request in their units, by the name of the column; NaN if not reached."""
    instances: Sequence[InstanceView]
    end_s: float
    gaps: Callable[[Rows], Distribution] | None
    """All inter-token latencies of some requests, in ns; `None` = only means per request are known."""
    limits: Sequence[Limit] = ()
    pools: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Figures of each pool, as the summary has them; empty with one pool."""
    handovers: Mapping[str, Any] = field(default_factory=dict)
    """Figures of the hand-overs between pools, as the summary has them."""

    def __len__(self) -> int:
        return len(self.completed)

    def samples(self, metric: str, rows: Rows) -> Distribution:
        """A metric of these requests in its unit; for ITL the gaps of all tokens, if known."""
        of = METRICS[metric]
        if of.per_token and self.gaps is not None:
            gaps = self.gaps(rows[self.completed[rows]])
            return Distribution(gaps.values / of.unit.scale, gaps.weights, gaps.upto)
        values = self.latency_ms[of.column][rows]
        return Distribution.of(values[~np.isnan(values)])

    @classmethod
    def of(
        cls,
        record: RunRecord,
        targets: GoodputTargets | None = None,
        summary: Callable[[], Mapping[str, Any]] = dict,
    ) -> RunView:
        """View of a run that was just simulated.

        Args:
            targets: the goodput targets.
            summary: makes its summary, which only figures of pools need.
        """
        several = len({one.pool for one in record.instances}) > 1
        columns = latencies(record)
        return cls(
            config=record.config,
            classes=rows_by_name(slo_classes(record)),
            completed=columns.completed,
            arrival_s=record.table.arrival_ns / 1e9,
            finish_s=np.where(record.finish_ns >= 0, record.finish_ns / 1e9, np.nan),
            output_tokens=record.emitted_tokens,
            latency_ms={of.column: columns.column(of.name) / of.unit.scale for of in METRICS.values()},
            instances=[
                InstanceView(one.num_kv_blocks, _columns(one.runs), one.pool) for one in record.instances
            ],
            end_s=record.end_ns / 1e9,
            gaps=TokenGaps(record).distribution,
            limits=limits_of(record.config, targets),
            **of_pools(summary() if several else {}),
        )


def of_pools(summary: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The fields of a view that are parts of a summary."""
    return {name: part for name in ("pools", "handovers") if isinstance(part := summary.get(name), Mapping)}


def _columns(runs: Any) -> Columns | None:
    """All columns of a steps table, in one pass."""
    if runs is None or isinstance(runs, Mapping):
        return runs
    parts = list(runs.parts())
    return {name: np.concatenate([part[name] for part in parts]) for name in runs.names}


def limits_of(config: Mapping[str, Any], targets: GoodputTargets | None = None) -> list[Limit]:
    """Limits on the run (`--slo`), and on every request (`--goodput` and similar)."""
    listed = []
    for check in parse_slos(config.get("slo") or ()):
        share = float(check.stat[1:]) if check.stat.startswith("p") else None
        of = METRICS[check.metric]
        text = f"{check.slo_class + ' ' if check.slo_class else ''}{of.label} {check.stat}"
        listed.append(Limit(of.name, check.limit_ns / of.unit.scale, text, check.slo_class, share))
    for name, limits in (targets.limits_ns if targets else {}).items():
        for of in main():
            if of.name in limits:
                own = None if name == ANY_CLASS else name
                text = f"good{f' {own}' if own else ''} {of.label}"
                listed.append(Limit(of.name, limits[of.name] / of.unit.scale, text, own))
    return listed


def fate(run: RunView) -> str:
    """Outcomes of requests without a latency to show."""
    if not len(run):
        return "there were no requests"
    done = int(run.completed.sum())
    return f"{done:,} of {len(run):,} requests completed"


def points(run: RunView, metric: str) -> dict[str, tuple[list[float], list[int]]]:
    """Statistics of a latency in each pool that has any: their values, and the shares of requests."""
    values = {}
    for name, pool in run.pools.items():
        stated: Mapping[str, Any] = pool.get(METRICS[metric].key) or {}
        known = {stat: share for stat, share in SHARES.items() if stated.get(stat) is not None}
        if known:
            values[name] = [float(stated[stat]) for stat in known], list(known.values())
    return values
