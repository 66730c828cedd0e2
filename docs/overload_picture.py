"""The picture of the guide to overload: latency, and requests within the target, over the rate."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import blis_py as blis
from blis_py.figures.style import Picture, grid, in_house_style, legend_above, legend_room, series_lines

GUIDE = Path(__file__).resolve().parent / "overload.md"
RATES = (40, 50, 60, 65, 70, 80, 90, 100, 120)
SETTINGS: dict[str, Any] = {"model": "llama-3.1-8b", "num_instances": 2, "max_num_seqs": 128}
TIERS: dict[str, Any] = {"admission_policy": "tier-shed", "tier_shed_threshold": 260}
QUEUE: dict[str, Any] = {
    "flow_control": True,
    "saturation_detector": "concurrency",
    "max_concurrency_per_instance": 128,
    "dispatch_order": "priority",
    "request_ttl": 900_000,
}
WAYS: dict[str, dict[str, Any]] = {
    "queue, in order of arrival": {},
    "queue, by priority": {"scheduler": "priority-fcfs"},
    "token-bucket": {
        "admission_policy": "token-bucket",
        "token_bucket_capacity": 60_000,
        "token_bucket_refill_rate": 45_000,
    },
    "tenant budget": {"tenant_budgets": {"reports": 0.3}},
    "tier-shed": TIERS,
    "tier-shed, and by priority": {**TIERS, "scheduler": "priority-fcfs"},
    "gateway queue, by priority, 0.9 s": QUEUE,
    "the same, with eviction": {**QUEUE, "in_flight_eviction": True},
}


@in_house_style
def figure() -> Picture:
    """What each way to meet too much traffic comes to."""
    foot = (
        "overload.yaml of the guide, 3,000 requests · llama-3.1-8b on 2 × H100, engine vllm, max_num_seqs 128"
    )
    above = legend_room(len(WAYS), 3) + 0.1
    picture, (waits, good, met) = grid(1, 3, height=4.2, foot=foot, above=above, left=0.75, beside=0.8)
    with tempfile.TemporaryDirectory() as folder:
        spec = Path(folder) / "overload.yaml"
        spec.write_text(workload())
        for index, (name, way) in enumerate(WAYS.items()):
            runs = [
                blis.run(workload=str(spec), rate=rate, goodput="ttft:1000", **SETTINGS, **way)
                for rate in RATES
            ]
            found = [run.summary for run in runs]
            look = {**series_lines(index), "markersize": 4, "label": name}
            waits.plot(RATES, [one["classes"]["critical"]["ttft_ms"]["p99"] for one in found], **look)
            good.plot(RATES, [one["cluster"]["goodput"]["requests_per_s"] for one in found], **look)
            met.plot(RATES, [within_target(one) for one in found], **look)
    waits.set(yscale="log", title="critical: TTFT p99, ms")
    good.set(ylim=(0, None), title="all: within 1 s, requests/s")
    met.set(ylim=(0, 104), title="critical: within 1 s, %")
    for axes in (waits, good, met):
        axes.set_xlabel("requests a second")
    legend_above(picture, [waits], 0.1, 3)
    return picture


def workload() -> str:
    """The spec that the guide shows."""
    _, _, after = GUIDE.read_text().partition("```yaml overload.yaml\n")
    return after.partition("```")[0]


def within_target(summary: dict[str, Any]) -> float:
    """Share of the critical requests with a first token in time, in %; who is rejected has none."""
    return float(100 * summary["classes"]["critical"]["goodput"]["attainment"])
