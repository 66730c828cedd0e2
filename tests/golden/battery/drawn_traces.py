"""Random logs of steps and random metrics of servers, and what is made of them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from drawing import HERE, digest

from blis_py.errors import InputError
from blis_py.traces.from_metrics import engine, workload
from blis_py.traces.prometheus import read_metrics
from blis_py.traces.samples import medians, read_samples, samples_of, write_samples
from blis_py.traces.steplog import StepLog, read_step_log


def logs(first: str, count: str) -> Iterator[str]:
    """Samples of logs with random times, of loops that overlap or not, with rounds of batches or without."""
    log = read_step_log(HERE / "inputs" / "scenario" / "engine" / "steps.csv")
    for seed in range(int(first), int(first) + int(count)):
        rng = np.random.default_rng(seed)
        samples = samples_of(_retimed(log, rng), f"log {seed}")
        with tempfile.TemporaryDirectory() as place:
            file = Path(place, "s.csv")
            write_samples(samples, file)
            again = read_samples(file)
            yield f"{seed} {digest(samples)} {digest(medians(samples))} {digest(again).replace(place, '')}"


def _retimed(log: StepLog, rng: np.random.Generator) -> StepLog:
    rows = len(log)
    steps = dict(log.steps)
    gaps = rng.integers(0, 4, rows) * rng.integers(0, 1000, rows)
    steps["start_ns"] = np.cumsum(gaps).tolist()
    steps["end_ns"] = (np.cumsum(gaps) + np.sort(rng.integers(1, 3000, rows))).tolist()
    for name in ("schedule_ns", "prepare_ns", "launch_ns", "sample_ns", "finish_ns", "gpu_ns"):
        steps[name] = rng.integers(0, 900, rows).tolist()
    steps["failed"] = (rng.random(rows) < 0.1).astype(int).tolist()
    ends = max(steps["end_ns"])
    requests = dict(log.requests)
    arrival = np.sort(rng.integers(0, ends, len(requests["arrival_ns"])))
    requests["arrival_ns"] = arrival.tolist()
    life = rng.integers(-200, 3000, len(arrival))
    requests["finish_ns"] = np.where(life < 0, -1, arrival + life).tolist()
    kind = rng.integers(3)
    if kind == 1:
        steps["seen_ns"] = steps["end_ns"]
        steps["launching_ns"] = rng.integers(0, 600, rows).tolist()
        steps["constrained_rows"] = rng.integers(0, 2, rows).tolist()
    elif kind == 2:
        steps["mask_exposed_ns"] = rng.integers(0, 100, rows).tolist()
    return replace(log, steps=steps, requests=requests)


def scraped(first: str, count: str) -> Iterator[str]:
    """Workloads and engines from random counters and histograms, with restarts."""
    for seed in range(int(first), int(first) + int(count)):
        rng = np.random.default_rng(seed)
        with tempfile.TemporaryDirectory() as place:
            file = Path(place, "metrics.txt")
            file.write_text("\n\n".join(_scrapes(rng)) + "\n", encoding="utf-8")
            metrics, window_s = read_metrics(file), float(rng.choice((10, 60, 100)))
            found = [digest(metrics)]
            for make in (workload, engine):
                try:
                    found.append(digest(make(metrics, window_s)))
                except InputError as error:
                    found.append(f"refused: {error}")
        yield f"{seed} {' '.join(found)}"


def _scrapes(rng: np.random.Generator) -> Iterator[str]:
    counts = {"prompt": np.zeros(4), "generation": np.zeros(3)}
    sums = {"prompt": 0.0, "generation": 0.0}
    bounds = {"prompt": ("100.0", "200.0", "500.0", "+Inf"), "generation": ("50.0", "100.0", "+Inf")}
    plain = dict.fromkeys(("request_success", "iteration", "itl_sum", "itl", "hits", "queries"), 0.0)
    has_steps, hits = rng.random() < 0.7, rng.choice((0.0, 0.3))
    now_s = 100.0
    for _ in range(int(rng.integers(2, 14))):
        ended, steps = int(rng.integers(0, 60)), int(rng.choice((0, 10, 300, 900)))
        if rng.random() < 0.1:
            plain = dict.fromkeys(plain, 0.0)
        plain["request_success"] += ended
        plain["iteration"] += steps
        plain["itl"] += steps
        plain["itl_sum"] += steps * rng.uniform(0.01, 0.04)
        plain["queries"] += ended * 150
        plain["hits"] += ended * 150 * hits
        lines = [f"# scraped_at {now_s:g}"]
        lines.append(f'vllm:request_success_total{{finished_reason="stop"}} {plain["request_success"]:g}')
        for kind, counted in counts.items():
            drawn = rng.integers(0, len(counted), ended)
            for bucket in drawn.tolist():
                counted[bucket:] += 1
            sums[kind] += float((drawn * 110 + 40).sum())
            name = f"vllm:request_{kind}_tokens"
            lines += [
                f'{name}_bucket{{le="{bound}"}} {value:g}'
                for bound, value in zip(bounds[kind], counted.tolist(), strict=True)
            ]
            lines += [f"{name}_sum {sums[kind]:g}", f"vllm:{kind}_tokens_total {sums[kind]:g}"]
        lines.append(f"vllm:inter_token_latency_seconds_sum {plain['itl_sum']:.9g}")
        lines.append(f"vllm:inter_token_latency_seconds_count {plain['itl']:g}")
        if has_steps:
            lines.append(f"vllm:iteration_tokens_total_count {plain['iteration']:g}")
        lines.append(f"vllm:prefix_cache_hits_total {plain['hits']:g}")
        lines.append(f"vllm:prefix_cache_queries_total {plain['queries']:g}")
        lines.append('vllm:cache_config_info{block_size="16",num_gpu_blocks="4000"} 1.0')
        yield "\n".join(lines)
        now_s += float(rng.choice((15, 60, 61)))
