"""A workload, and a first engine, from the metrics of a server: rates, lengths, prefix hits, step times.

What a histogram does not say is assumed, and every assumption is named in a note.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blis_py.errors import InputError
from blis_py.files.packages import scipy
from blis_py.traces.prometheus import Metrics

Floats = NDArray[np.float64]
_ENDED = ("vllm:request_success_total", "sglang:num_requests_total")
_PROMPTS = ("vllm:request_prompt_tokens", "sglang:prompt_tokens_histogram")
_OUTPUTS = ("vllm:request_generation_tokens", "sglang:generation_tokens_histogram")
_HITS, _QUERIES = ("vllm:prefix_cache_hits_total",), ("vllm:prefix_cache_queries_total",)
_POINTS = 5
"""Lengths by which the requests of a bucket are represented."""
_MIN_STEPS = 20
"""Fewest steps of a window whose mean step time is used."""


def workload(metrics: Metrics, window_s: float) -> tuple[dict[str, Any], list[str]]:
    """A workload spec, and what was assumed.

    Raises:
        InputError: metrics without requests, or without their lengths.
    """
    times, rates, total = _rates(metrics, window_s)
    notes = ["rates are those of ended requests: arrivals came earlier by their latency"]
    prompts, mean_prompt, problem = _law(metrics, _PROMPTS, "prompts")
    outputs, _, other = _law(metrics, _OUTPUTS, "outputs")
    notes += [*problem, *other, "lengths of prompt and output are independent of each other and of time"]
    client: dict[str, Any] = {
        "id": "metrics",
        "arrival": {"process": "poisson"},
        "input_distribution": prompts,
        "output_distribution": outputs,
        "lifecycle": {
            "windows": [
                {"start_us": int(begin * 1e6), "end_us": int(end * 1e6), "trace_rate": round(rate, 6)}
                for (begin, end), rate in zip(times, rates.tolist(), strict=True)
                if rate > 0
            ]
        },
    }
    notes.append(f"arrivals are Poisson within windows of {window_s:g} s")
    hit = _share(metrics)
    if hit is not None and hit > 0.005:
        shared = max(int(hit * mean_prompt), 1)
        client |= {"prefix_group": "metrics", "prefix_length": shared}
        client["input_distribution"] = _shortened(prompts, shared)
        text = f"all prompts share their first {shared} tokens"
        notes.append(f"prefix hits of {hit:.1%} of prompt tokens: {text}")
    return {"version": "2", "seed": 42, "num_requests": max(round(total), 1), "clients": [client]}, notes


def engine(metrics: Metrics, window_s: float) -> tuple[dict[str, Any], list[str]]:
    """Settings of an instance: linear step times and KV blocks, and what was assumed.

    Raises:
        InputError: metrics without inter-token latencies.
    """
    edges = _edges(metrics, window_s)
    itl = _mean(metrics, edges, "vllm:inter_token_latency_seconds")
    if itl is None or not np.isfinite(itl).any():
        fix = "scrape vllm:inter_token_latency_seconds"
        raise InputError("no inter-token latencies", key="--engine-file", fix=fix)
    steps = _increase(metrics, edges, ("vllm:iteration_tokens_total_count",))
    generated = _increase(metrics, edges, ("vllm:generation_tokens_total",))
    prompts = _increase(metrics, edges, ("vllm:prompt_tokens_total",))
    hit = _share(metrics) or 0.0
    notes = ["a step takes as long as the mean inter-token latency of its window; time is linear in tokens"]
    if steps is None or generated is None or prompts is None:
        gpu = {"step": float(np.nanmean(itl) * 1e9)}
        notes.append("no counts of steps: every step takes the mean inter-token latency")
    else:
        gpu, remarks = _fitted(itl, steps, generated, prompts * (1 - hit))
        notes += remarks
    settings: dict[str, Any] = {"latency": {"model": "linear", "linear": {"gpu": gpu}}}
    blocks, size = metrics.labels.get("num_gpu_blocks", ""), metrics.labels.get("block_size", "")
    if f"{blocks}{size}".isascii() and blocks.isdecimal() and size.isdecimal():
        settings["scheduler"] = {"num_kv_blocks": int(blocks), "block_size": int(size)}
    return settings, notes


def _fitted(
    itl: Floats, steps: Floats, generated: Floats, computed: Floats
) -> tuple[dict[str, float], list[str]]:
    """Time per step, per decode and per prompt token, in ns, by non-negative least squares."""
    usable = (steps >= _MIN_STEPS) & np.isfinite(itl) & (generated > 0)
    if usable.sum() < 4:
        problem = f"{usable.sum()} windows with steps are too few to tell terms apart"
        return {"step": float(np.nanmean(itl) * 1e9)}, [f"{problem}: every step takes the mean"]
    n = steps[usable]
    columns = np.column_stack((np.ones(len(n)), generated[usable] / n, computed[usable] / n))
    weights = np.sqrt(n)[:, None]
    coefficients, _ = scipy().optimize.nnls(columns * weights, itl[usable] * weights[:, 0])
    error = float(np.abs(columns @ coefficients / itl[usable] - 1).mean())
    names = ("step", "decode_seqs", "prefill_tokens")
    gpu = {name: float(value * 1e9) for name, value in zip(names, coefficients, strict=True) if value > 0}
    return gpu, [f"step times are fitted to {usable.sum()} windows, with a mean error of {error:.1%}"]


# -- series ----------------------------------------------------------------------------------------------


def _edges(metrics: Metrics, window_s: float) -> list[int]:
    """Samples that begin and end windows of at least this length."""
    edges = [0]
    for place, time_s in enumerate(metrics.times_s):
        if time_s - metrics.times_s[edges[-1]] >= window_s:
            edges.append(place)
    if len(edges) == 1:
        edges.append(len(metrics.times_s) - 1)
    return edges


def _grown(series: Sequence[float]) -> Floats:
    """A counter without its resets, from 0 at the first sample."""
    total, before, totals = 0.0, math.nan, []
    for value in series:
        if not math.isnan(value):
            if not math.isnan(before):
                total += value - before if value >= before else value
            before = value
        totals.append(total)
    return np.array(totals)


def _increase(metrics: Metrics, edges: Sequence[int], names: Sequence[str]) -> Floats | None:
    series = metrics.of(*names)
    return None if series is None else np.diff(_grown(series)[list(edges)])


def _mean(metrics: Metrics, edges: Sequence[int], histogram: str) -> Floats | None:
    """Mean of a histogram in each window; NaN where it has no entries."""
    over, under = (_increase(metrics, edges, (f"{histogram}_{part}",)) for part in ("sum", "count"))
    if over is None or under is None:
        return None
    return np.divide(over, under, out=np.full_like(over, np.nan), where=under > 0)


def _rates(metrics: Metrics, window_s: float) -> tuple[list[tuple[float, float]], Floats, float]:
    edges = _edges(metrics, window_s)
    ended = _increase(metrics, edges, _ENDED)
    if ended is None or not ended.sum():
        raise InputError("no requests ended", key="--metrics", fix=f"scrape {' or '.join(_ENDED)}")
    at_s = np.array(metrics.times_s)[edges] - metrics.times_s[0]
    spans = list(zip(at_s[:-1].tolist(), at_s[1:].tolist(), strict=True))
    return spans, ended / np.diff(at_s), float(ended.sum())


def _share(metrics: Metrics) -> float | None:
    hits, queries = metrics.of(*_HITS), metrics.of(*_QUERIES)
    if hits is None or queries is None or not _grown(queries)[-1]:
        return None
    return float(_grown(hits)[-1] / _grown(queries)[-1])


# -- lengths ---------------------------------------------------------------------------------------------


def _law(metrics: Metrics, names: Sequence[str], what: str) -> tuple[dict[str, Any], float, list[str]]:
    """Lengths as weights, whose mean is that of the histogram's sum."""
    buckets = metrics.buckets(*names)
    if not buckets:
        raise InputError(f"no histogram of {what}", key="--metrics", fix=f"scrape {' or '.join(names)}")
    counts = np.diff([0.0, *(_grown(series)[-1] for series in buckets.values())])
    bounds, notes = list(buckets), []
    total = float(counts.sum())
    if total <= 0:
        raise InputError(f"the histogram of {what} is empty", key="--metrics", fix="scrape for longer")
    sums = metrics.of(*(f"{name}_sum" for name in names))
    if math.isinf(bounds[-1]):
        bounds[-1] = 2 * bounds[-2] if len(bounds) > 1 else 1.0
        if counts[-1]:
            notes.append(f"{what} beyond the last bucket are at most {bounds[-1]:g} tokens")
    low, high = np.array([0.0, *bounds[:-1]]) + 1, np.maximum(np.array(bounds), 1.0)
    low = np.minimum(low, high)
    mean = None if sums is None else float(_grown(sums)[-1]) / total
    place = 0.5 if mean is None else _place(counts, low, high, mean)
    right = ", so that the mean is right" if mean else ""
    notes.append(f"{what} lie evenly about {place:.0%} of their bucket{right}")
    half = np.minimum(place, 1 - place)
    weights: dict[int, float] = {}
    for count, first, last in zip(counts, low, high, strict=True):
        for point in np.linspace(place - half, place + half, _POINTS):
            length = max(round(first + point * (last - first)), 1)
            if count > 0:
                weights[length] = weights.get(length, 0.0) + float(count) / _POINTS
    own = sum(length * weight for length, weight in weights.items()) / total
    return {"type": "empirical", "params": weights}, mean or own, notes


def _place(counts: Floats, low: Floats, high: Floats, mean: float) -> float:
    """Average position of the requests within their buckets, 0 to 1."""
    least, span = float((counts * low).sum()), float((counts * (high - low)).sum())
    return 0.5 if span <= 0 else min(max((mean * float(counts.sum()) - least) / span, 0.0), 1.0)


def _shortened(law: dict[str, Any], tokens: int) -> dict[str, Any]:
    """Lengths without a shared prefix."""
    weights: dict[int, float] = {}
    for length, weight in law["params"].items():
        own = max(length - tokens, 1)
        weights[own] = weights.get(own, 0.0) + weight
    return {**law, "params": weights}
