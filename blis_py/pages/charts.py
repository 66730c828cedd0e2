"""Specifications of the charts of a run, for `assets/chart.js`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blis_py.figures.run import Limit, RunView, fate, points
from blis_py.figures.timeline import TimelineFigure, timeline
from blis_py.metrics.groups import Rows
from blis_py.metrics.registry import METRICS, per_request
from blis_py.pages._numbers import rounded
from blis_py.pages.parts import Chart

Floats = NDArray[np.float64]
_CLASSES, _POINTS, _SLICES = 6, 160, 240
_FAR = 20.0
"""Multiple of the largest value beyond which a limit is named at the edge."""
_TAIL = (0.95, 0.99, 0.995, 0.999)


def distributions(run: RunView) -> list[Chart]:
    """Cumulative distributions by SLO class, with the limits."""
    return [distribution(run, name) for name, each in METRICS.items() if each.shown.distributions]


def distribution(run: RunView, metric: str) -> Chart:
    """The cumulative distribution of one metric."""
    of = METRICS[metric]
    means = of.per_token and run.gaps is None
    series = [each for name, rows in _lines(run) if (each := _curve(run, metric, name, rows))]
    most = max((one["x"][-1] for one in series), default=0.0)
    return {
        "title": f"{of.plain_title}, mean of each request" if means else of.title,
        "x": {"label": of.unit.name, "log": True},
        "y": {"label": "% of tokens" if of.per_token and not means else "% of requests", "to": 100},
        "series": series,
        "limits": [_limit(one, most, row) for row, one in enumerate(_limits(run, metric))],
        "nothing": f"No request has a {of.label}: {fate(run)}.",
    }


def _lines(run: RunView) -> list[tuple[str, Rows]]:
    all_rows: Rows = np.arange(len(run))
    if len(run.classes) < 2:
        return [("all requests", all_rows)]
    return [("all requests", all_rows), *list(run.classes.items())[:_CLASSES]]


def _curve(run: RunView, metric: str, name: str, rows: Rows) -> Chart | None:
    samples = run.samples(metric, rows)
    if not samples.count:
        return None
    shares = np.unique(np.concatenate((np.linspace(0, 1, _POINTS), _TAIL)))
    ranks = np.unique(np.ceil(shares * samples.count).clip(1, samples.count).astype(np.int64))
    values = samples.values[np.searchsorted(samples.upto, ranks)]
    return {
        "name": name,
        "kind": "step",
        "always": True,
        "x": rounded(np.asarray(values, dtype=np.float64).clip(1e-6)),
        "y": rounded(100 * ranks / samples.count),
    }


def by_pool(run: RunView) -> list[Chart]:
    """Percentiles of the main latencies in each pool; empty with one pool."""
    return [_pools(run, metric.name) for metric in per_request()] if run.pools else []


def _pools(run: RunView, metric: str) -> Chart:
    series = [
        {"name": name, "kind": "line", "always": True, "x": rounded(np.array(values)), "y": shares}
        for name, (values, shares) in points(run, metric).items()
    ]
    return {
        "title": f"{METRICS[metric].title}, by pool",
        "x": {"label": METRICS[metric].unit.name, "log": True},
        "y": {"label": "% of visits", "to": 100},
        "series": series,
        "note": "A line through p50, p90, p95 and p99, from the least to the largest value.",
        "nothing": f"No pool has a {METRICS[metric].label}.",
    }


def _limits(run: RunView, metric: str) -> list[Limit]:
    return [limit for limit in run.limits if limit.metric == metric]


def _limit(limit: Limit, largest_ms: float, row: int) -> Chart:
    return {
        "x": limit.value,
        "label": f"{limit.text} ≤ {limit.value:,g} {METRICS[limit.metric].unit.name}".rstrip(),
        "share": limit.share,
        "far": limit.value > _FAR * largest_ms,
        "row": row,
    }


def over_time(run: RunView) -> list[Chart]:
    """Queue, running requests, KV cache and batch composition over time; empty without recorded steps."""
    state = timeline(run, _SLICES)
    if state is None:
        return []
    unit, seconds = _unit(run.end_s)
    moments = rounded(state.time_s / seconds)
    return [
        _state("Waiting and running requests", "requests", unit, moments, _queue(state)),
        _state("KV cache in use", "%", unit, moments, _kv(state), to=100),
        _state("Batch composition", "tokens/s", unit, moments, _tokens(state)),
        _state("Tokens of a step", "tokens per step", unit, moments, _per_step(state)),
    ]


def _unit(end_s: float) -> tuple[str, float]:
    for unit, seconds in (("hours", 3600.0), ("minutes", 60.0)):
        if end_s > 2 * seconds:
            return f"simulated time, {unit}", seconds
    return "simulated time, s", 1.0


def _state(
    title: str,
    label: str,
    unit: str,
    moments: list[float | None],
    series: Mapping[str, Floats],
    to: float | None = None,
) -> Chart:
    lines = [
        {"name": name, "kind": "line" if index else "area", "x": moments, "y": rounded(values)}
        for index, (name, values) in enumerate(series.items())
    ]
    y: dict[str, Any] = {"label": label} | ({} if to is None else {"to": to})
    return {"title": title, "x": {"label": unit, "from": 0}, "y": y, "series": lines}


def _queue(state: TimelineFigure) -> dict[str, Floats]:
    return {"running": state.running.sum(axis=0), "waiting": state.waiting.sum(axis=0)}


def _kv(state: TimelineFigure) -> dict[str, Floats]:
    mean = {"mean": state.kv_pct.mean(axis=0)}
    return mean if len(state.kv_pct) == 1 else mean | {"fullest instance": state.kv_pct.max(axis=0)}


def _tokens(state: TimelineFigure) -> dict[str, Floats]:
    return {
        "prefill": state.prefill_tokens.sum(axis=0) / state.slice_s,
        "decode": state.decode_tokens.sum(axis=0) / state.slice_s,
    }


def _per_step(state: TimelineFigure) -> dict[str, Floats]:
    steps = state.steps.sum(axis=0)
    steps[steps == 0] = np.nan
    return {
        "prefill": state.prefill_tokens.sum(axis=0) / steps,
        "decode": state.decode_tokens.sum(axis=0) / steps,
    }
