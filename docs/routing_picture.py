"""The picture of the guide to routing: hits and waiting over the rate, by policy, on two workloads."""

from __future__ import annotations

from typing import Any

import blis_py as blis
from blis_py.figures.style import (
    DASHES,
    Picture,
    grid,
    in_house_style,
    legend_above,
    legend_room,
    series_lines,
)

SETTINGS: dict[str, Any] = {"model": "llama-3.1-8b", "num_instances": 4, "num_requests": 1200}
WORKLOADS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "hot-prefix": ({"num_kv_blocks": 2500}, (10, 20, 30, 40, 50, 60, 80, 100)),
    "multi-turn-chat": ({"num_kv_blocks": 4000}, (10, 20, 30, 40, 60, 80, 100)),
}
SHARE = {"prefix-affinity": 1.0, "load-balance": 1.0}
ROUTERS: dict[str, dict[str, Any]] = {
    "round-robin": {"routing_policy": "round-robin"},
    "least-loaded": {"routing_policy": "least-loaded"},
    "weighted, default profile": {"routing_policy": "weighted"},
    "weighted, share of the prompt": {"routing_policy": "weighted", "routing_scorers": SHARE},
    "session-affinity": {"routing_policy": "session-affinity"},
}
FOOT = (
    "1,200 requests · 4 instances of llama-3.1-8b on H100, few KV blocks · engine vllm · step times trained"
)


@in_house_style
def figure() -> Picture:
    """Prefix hits, and the median E2E, of each router."""
    above = legend_room(len(ROUTERS), columns=3)
    picture, axes = grid(2, len(WORKLOADS), height=6.6 + above, foot=FOOT, above=above)
    for hits, waits, (workload, (settings, rates)) in zip(axes[:2], axes[2:], WORKLOADS.items(), strict=True):
        for index, (name, router) in enumerate(ROUTERS.items()):
            clusters = [measured(workload, rate, settings | router) for rate in rates]
            look = series_lines(index) | {"linestyle": DASHES[index % len(DASHES)], "markersize": 4}
            hits.plot(rates, [100 * cluster["prefix_hit_rate"] for cluster in clusters], label=name, **look)
            waits.plot(rates, [cluster["e2e_ms"]["p50"] / 1000 for cluster in clusters], **look)
        hits.set(title=f"{workload}: prefix hits, % of prompt tokens", ylim=(0, 100))
        waits.set(title=f"{workload}: median E2E, s", xlabel="requests a second")
        waits.set_ylim(bottom=0)
    legend_above(picture, axes[:1], from_top=0.12, columns=3)
    return picture


def measured(workload: str, rate: float, settings: dict[str, Any]) -> dict[str, Any]:
    """What the run of a router comes to."""
    result = blis.run(workload=workload, rate=rate, **SETTINGS, **settings)
    cluster: dict[str, Any] = result.summary["cluster"]
    return cluster
