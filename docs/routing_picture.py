"""The picture of the guide to routing: hits and waiting over the rate, by policy, on two workloads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import blis_py as blis

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SETTINGS: dict[str, Any] = {"model": "llama-3.1-8b", "num_instances": 4, "num_requests": 1200}
WORKLOADS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "hot-prefix": ({"num_kv_blocks": 2500}, (10, 20, 30, 40, 50, 60, 80, 100)),
    "multi-turn-chat": ({"num_kv_blocks": 4000}, (10, 20, 30, 40, 60, 80, 100)),
}
SHARE = {"prefix-affinity": 1.0, "load-balance": 1.0}
ROUTERS: dict[str, tuple[dict[str, Any], str]] = {
    "round-robin": ({"routing_policy": "round-robin"}, "#8a8f98"),
    "least-loaded": ({"routing_policy": "least-loaded"}, "#1b4a94"),
    "weighted, default profile": ({"routing_policy": "weighted"}, "#d9642a"),
    "weighted, share of the prompt": ({"routing_policy": "weighted", "routing_scorers": SHARE}, "#2a9d5c"),
    "session-affinity": ({"routing_policy": "session-affinity"}, "#7b4bb3"),
}


def figure() -> Figure:
    """Prefix hits, and the median E2E, of each router."""
    from matplotlib import pyplot as plt

    drawing, grid = plt.subplots(2, len(WORKLOADS), figsize=(11, 6.4), sharex="col", layout="constrained")
    for (hits, waits), (workload, (settings, rates)) in zip(grid.T, WORKLOADS.items(), strict=True):
        for name, (router, colour) in ROUTERS.items():
            clusters = [measured(workload, rate, settings | router) for rate in rates]
            style: dict[str, Any] = {"marker": "o", "markersize": 3, "color": colour, "label": name}
            hits.plot(rates, [100 * cluster["prefix_hit_rate"] for cluster in clusters], **style)
            waits.plot(rates, [cluster["e2e_ms"]["p50"] / 1000 for cluster in clusters], **style)
        hits.set_title(workload, loc="left", fontsize=11)
        hits.set_ylim(0, 100)
        waits.set_ylim(bottom=0)
        waits.set_xlabel("requests a second")
    grid[0][0].set_ylabel("prefix hits, % of prompt tokens")
    grid[1][0].set_ylabel("median E2E, s")
    grid[0][1].legend(fontsize=9, frameon=False, loc="lower right")
    for axes in grid.flat:
        axes.spines[["top", "right"]].set_visible(False)
    return drawing


def measured(workload: str, rate: float, settings: dict[str, Any]) -> dict[str, Any]:
    """What the run of a router comes to."""
    result = blis.run(workload=workload, rate=rate, **SETTINGS, **settings)
    cluster: dict[str, Any] = result.summary["cluster"]
    return cluster
