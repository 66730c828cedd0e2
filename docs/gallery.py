"""The pictures of the guide to the figures: the runs that its commands make, drawn by the same functions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import blis_py as blis
from blis_py import figures
from blis_py.calibrate.compare import calibrate
from blis_py.calibrate.read_times import read_token_times

RECORDED = Path(__file__).resolve().parent / "recorded"
MIXED: dict[str, Any] = {
    "workload": "mixed-slo",
    "num_requests": 3000,
    "model": "qwen3-14b",
    "num_instances": 4,
    "scheduler": "priority-fcfs",
    "slo": ["critical.ttft.p99=500ms", "tpot.p90=50ms"],
}
HOT: dict[str, Any] = {
    "workload": "hot-prefix",
    "num_requests": 600,
    "model": "llama-3.1-8b",
    "num_kv_blocks": 4000,
    "prefix_cache": "radix",
    "slo": "ttft.p99=2s",
}
APART: dict[str, Any] = {
    "workload": "chat",
    "rate": 20,
    "num_requests": 1000,
    "model": "llama-3.1-8b",
    "xpyd": "2p1d",
    "handoff": "sglang",
    "pd_link": "roce200",
}
REPLAY: dict[str, Any] = {"num_kv_blocks": 128, "max_num_seqs": 32}


def figures_of_a_run() -> Iterator[tuple[str, figures.Picture]]:
    plot = blis.run(**MIXED).plot
    for name in ("overview", "latency_cdf", "ttft", "timeline", "instances", "batch"):
        yield name, getattr(plot, name)()
    yield "pools", blis.run(**APART).plot.pools()


def figures_of_several() -> Iterator[tuple[str, figures.Picture]]:
    runs = [
        blis.run(**HOT, rate=rate, scheduler=scheduler)
        for scheduler in ("fcfs", "sjf", "lpm")
        for rate in (5, 10, 20, 30, 40)
    ]
    yield "throughput_latency", figures.throughput_latency(runs)
    yield "pareto", figures.pareto(runs)
    yield "hit_rate", figures.hit_rate(runs)


def predicted_measured() -> figures.Picture:
    run = RECORDED / "tiny-run"
    result = blis.replay(run / "trace.csv", profile=str(RECORDED / "tiny-profile"), **REPLAY)
    measured, predicted = read_token_times(run), result.token_times()
    return figures.predicted_measured(calibrate(measured, predicted), result.settings)


def all_figures() -> Iterator[tuple[str, figures.Picture]]:
    """Every figure of the guide and its name."""
    yield from figures_of_a_run()
    yield from figures_of_several()
    yield "predicted_measured", predicted_measured()
