"""The standard output of BLIS (inference-sim): JSON of every instance and of the cluster, and text.

Sections have its order and wording and appear only with content; quantities that BLIS defines differently
follow our definitions (docs/metrics.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blis_py.cluster.ingress.flow_control import EVICTED, SHED, TTL
from blis_py.cluster.ingress.gateway_queue import BAND_FULL, QUEUE_FULL
from blis_py.metrics.distribution import Distribution
from blis_py.metrics.groups import Rows, rows_by_name, with_default
from blis_py.metrics.latencies import Latencies, latencies
from blis_py.metrics.record import NOT_SERVED, Outcome, RunRecord
from blis_py.metrics.slo import ANY_CLASS, GoodputTargets
from blis_py.report._blis_disaggregation import disaggregation_lines
from blis_py.report.blis import blis_metrics, cache_hit_rate, duration_s

Lines = Iterator[str]
_STANDARD = "standard"
_ADMISSION = "Rejected Requests (Admission)"
_GATEWAY = (
    "Gateway Queue Shed",
    "Gateway Queue Rejected",
    "Gateway Evicted (in-flight)",
    "Gateway Expired (TTL)",
)
"""Counters printed only if not zero."""


def blis_blocks(
    record: RunRecord, goodput: GoodputTargets | None = None, *, every_class: bool = False
) -> list[dict[str, Any]]:
    """The JSON blocks: of each instance, if there are several, and of the cluster.

    Args:
        goodput, every_class: see `blis_metrics`.
    """
    blocks = []
    if len(record.instances) > 1:
        for index in range(len(record.instances)):
            metrics = blis_metrics(record.on([index]), whole=False)
            blocks.append(metrics | {"instance_id": f"instance_{index}"})
    return [*blocks, blis_metrics(record, goodput=goodput, every_class=every_class)]


def blis_sections(
    record: RunRecord,
    goodput: GoodputTargets | None = None,
    *,
    every_class: bool = False,
    fitness: Mapping[str, float] | None = None,
    block_size: int = 16,
    contended: bool = False,
) -> Lines:
    """The lines of text behind the JSON.

    Args:
        contended: whether transfers between instances share the links.
        block_size: see `blis_metrics`.
        fitness: the result of `blis_py.metrics.fitness`, if requested.
    """
    columns = latencies(record)
    limited = goodput is not None and bool(goodput.limits_ns or every_class)
    for title, lines in {
        "Fitness Evaluation": _fitness(fitness or {}),
        "Anomaly Counters": _anomalies(record),
        "KV Cache Metrics": _kv_cache(record, columns, block_size),
        "PD Metrics": disaggregation_lines(record, columns, duration_s(record), contended=contended),
        "Per-SLO Metrics": _classes(record, columns, limited),
        "Per-Model Metrics": _models(record, columns),
        "Per-Tenant Metrics": _tenants(record, columns),
        "Session Metrics": _sessions(record, columns),
        "Trace Summary": _decisions(record),
    }.items():
        own = list(lines)
        if own:
            yield f"=== {title} ==="
            yield from own


def _fitness(values: Mapping[str, float]) -> Lines:
    for name, value in values.items():
        yield f"Score: {value:.6f}" if name == "score" else f"  {name}: {value:.6f}"


def _anomalies(record: RunRecord) -> Lines:
    """Counters of anomalies; no section if all are zero."""
    count = np.bincount(record.outcome, minlength=len(Outcome)).tolist()
    lost = _lost(record)
    waiting = 0
    if record.gateway_ns is not None:
        waiting = int(((record.outcome == Outcome.QUEUED) & (record.instance < 0)).sum())
    counters = {
        "Priority Inversions": sum(one.priority_inversions for one in record.instances),
        "HOL Blocking Events": sum(one.head_of_line_events for one in record.instances),
        _ADMISSION: len(lost[_ADMISSION]),
        "Rejected Requests (Routing)": len(lost["Rejected Requests (Routing)"]),
        "Dropped Unservable": count[Outcome.UNSERVABLE],
        "Timed Out Requests": count[Outcome.TIMED_OUT],
        "Length-Capped Requests": count[Outcome.LENGTH_CAPPED],
    }
    gateway = {"Gateway Queue Depth (horizon)": waiting} | {name: len(lost[name]) for name in _GATEWAY}
    if not any((*counters.values(), *gateway.values())):
        return
    for title, counted in counters.items():
        yield f"{title}: {counted}"
        if title == _ADMISSION:
            yield from _shed(record, lost)
    yield from (f"{title}: {counted}" for title, counted in gateway.items() if counted)


def _lost(record: RunRecord) -> dict[str, Rows]:
    """Rows of rejected requests, by counter."""
    why = record.rejection
    counters = ["Rejected Requests (Routing)", _ADMISSION, *_GATEWAY]
    if why is None:
        return dict.fromkeys(counters, np.zeros(0, dtype=np.intp))
    of_code = np.array([counters.index(_counter_of(name)) if name else -1 for name in why.names])
    labels = of_code[why.codes]
    return {name: np.flatnonzero(labels == index) for index, name in enumerate(counters)}


def _counter_of(why: str) -> str:
    """Counter of a rejection reason; the reasons are defined in the cluster."""
    if why == NOT_SERVED:
        return "Rejected Requests (Routing)"
    if why in (QUEUE_FULL, BAND_FULL):
        return "Gateway Queue Rejected"
    if why.startswith(SHED.partition("{")[0]):
        return "Gateway Queue Shed"
    return {EVICTED: "Gateway Evicted (in-flight)", TTL: "Gateway Expired (TTL)"}.get(why, _ADMISSION)


def _shed(record: RunRecord, lost: Mapping[str, Rows]) -> Lines:
    """Requests shed in favour of others, by class; those rejected by a full queue are not among them."""
    rows = np.concatenate(
        [lost[name] for name in (_ADMISSION, *_GATEWAY) if name != "Gateway Queue Rejected"]
    )
    by_class = rows_by_name(with_default(record.table.slo_class, _STANDARD).take(rows))
    yield from (f"  Shed ({name}): {len(own)}" for name, own in sorted(by_class.items()))


def _kv_cache(record: RunRecord, columns: Latencies, block_size: int) -> Lines:
    done, preemptions = int(columns.completed.sum()), int(record.preemptions.sum())
    hits = sum(one.prefix_hit_tokens for one in record.instances)
    if not (preemptions or hits):
        return
    yield f"Preemption Rate: {preemptions / done if done else 0:.4f}"
    yield f"Cache Hit Rate: {cache_hit_rate(record, block_size):.4f}"
    yield "KV Thrashing Rate: 0.0000"


def _classes(record: RunRecord, columns: Latencies, limited: bool) -> Lines:
    """Latencies by class in µs, of completed requests; a request without class belongs to `default`."""
    done = np.flatnonzero(columns.completed)
    by_class = rows_by_name(with_default(record.table.slo_class, ANY_CLASS).take(done))
    if len(by_class) < 2 and not limited:
        return
    for name in sorted(by_class):
        rows = done[by_class[name]]
        yield f"  {name}:"
        for title, column in (
            ("TTFT: ", columns.ttft_ns),
            ("ITL:  ", columns.itl_mean_ns),
            ("E2E:  ", columns.e2e_ns),
        ):
            times = _us(np.nan_to_num(column[rows]))
            yield f"    {title}mean={times.mean():.2f} p99={times.percentile(99):.2f} (n={len(rows)})"


def _models(record: RunRecord, columns: Latencies) -> Lines:
    done = np.flatnonzero(columns.completed)
    span_s = duration_s(record)
    for name, own in sorted(rows_by_name(record.table.model.take(done)).items()):
        if not name:
            continue
        rows = done[own]
        yield f"  {name}:"
        for title, column in (("TTFT", columns.ttft_ns), ("E2E: ", columns.e2e_ns)):
            times = _us(column[rows])
            label = f"{title}:" if title == "TTFT" else title
            percentiles = f"p50={times.percentile(50):.2f} p99={times.percentile(99):.2f}"
            yield f"    {label} {percentiles} (n={len(rows)})"
        tokens = int(record.emitted_tokens[rows].sum())
        yield f"    Throughput: {len(rows) / span_s:.2f} req/s, {tokens / span_s:.2f} tok/s"


def _tenants(record: RunRecord, columns: Latencies) -> Lines:
    """Figures by tenant, with Jain's index over their output tokens."""
    done = np.flatnonzero(columns.completed)
    by_tenant = {
        name: done[own] for name, own in rows_by_name(record.table.tenant.take(done)).items() if name
    }
    if not by_tenant:
        return
    tokens = {name: int(record.emitted_tokens[rows].sum()) for name, rows in sorted(by_tenant.items())}
    for name, total in tokens.items():
        yield f"  {name}: requests={len(by_tenant[name])}, tokens={total}"
    shares = np.array([*tokens.values()], dtype=np.float64)
    squares = float((shares**2).sum())
    yield f"  Jain Fairness Index: {float(shares.sum()) ** 2 / (len(shares) * squares) if squares else 0:.4f}"


def _sessions(record: RunRecord, columns: Latencies) -> Lines:
    """Session figures in ms: first turns and later ones, and the span from first arrival to last answer."""
    session = record.table.session
    if session is None:
        return
    rows = np.flatnonzero(session >= 0)
    rows = rows[np.argsort(session[rows], kind="stable")]
    first = np.diff(session[rows], prepend=-1) != 0
    if not len(rows):
        return
    yield f"  Sessions: {int(first.sum())}"
    ttft_ms = columns.ttft_ns[rows] / 1e6
    answered = ~np.isnan(ttft_ms)
    yield from _spread("TTFT cold (round 0):", ttft_ms[first & answered])
    yield from _spread("TTFT warm (round≥1):", ttft_ms[~first & answered])
    starts = np.flatnonzero(first)
    done = columns.completed[rows]
    last_ns = np.maximum.reduceat(np.where(done, record.finish_ns[rows], -1), starts)
    spans_ms = (last_ns - record.table.arrival_ns[rows][starts]) / 1e6
    yield from _spread("Session duration:   ", spans_ms[last_ns >= 0])


def _spread(title: str, values_ms: NDArray[np.float64]) -> Lines:
    if not len(values_ms):
        return
    times = Distribution.of(values_ms)
    p50, p95, p99 = (f"{times.percentile(percent):.2f}" for percent in (50, 95, 99))
    yield f"  {title} mean={times.mean():.2f} p50={p50} p95={p95} p99={p99} ms (n={len(values_ms)})"


def _decisions(record: RunRecord) -> Lines:
    """Routing decisions, if recorded; each is preceded by an admission decision."""
    kept = record.decisions
    if kept is None:
        return
    rejected = len(_lost(record)[_ADMISSION])
    admitted = len(record.table) - rejected
    yield f"Total Decisions: {admitted + rejected}"
    yield f"  Admitted: {admitted}"
    yield f"  Rejected: {rejected}"
    targets, counts = np.unique(kept.instance, return_counts=True)
    yield f"Unique Targets: {len(targets)}"
    if len(targets):
        yield "Target Distribution:"
        by_name = {f"instance_{index}": n for index, n in zip(targets.tolist(), counts.tolist(), strict=True)}
        yield from (f"  {name}: {by_name[name]}" for name in sorted(by_name))
    yield f"Mean Regret: {float(kept.regret.mean()) if len(kept) else 0:.6f}"
    yield f"Max Regret: {float(kept.regret.max(initial=0.0)):.6f}"


def _us(column_ns: NDArray[np.float64]) -> Distribution:
    return Distribution.of(column_ns / 1e3)
