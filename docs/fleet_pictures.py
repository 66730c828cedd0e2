"""The pictures of the guides to fleets: prefill and decode apart or not, and two kinds of GPUs."""

from __future__ import annotations

from typing import Any

import blis_py as blis
from blis_py.figures.style import (
    DASHES,
    INK,
    Picture,
    grid,
    in_house_style,
    legend_above,
    legend_room,
    series_lines,
)

LOAD: dict[str, Any] = {"model": "llama-3.1-8b", "workload": "chat", "num_requests": 300}
LAYOUTS = {"6 that do both": "6", "4 prefill, 2 decode": "4p2d", "2 prefill, 4 decode": "2p4d"}
RATES = (6, 12, 20, 30, 45, 60)
TARGETS = {"ttft_ms": 200.0, "itl_ms": 14.0}
FLEET = [
    {"name": "new", "count": 2, "gpu": "h100"},
    {"name": "old", "count": 2, "gpu": "l40s"},
]
POLICIES = ("round-robin", "least-loaded")
FLEET_RATES = (4, 8, 12, 16, 20, 24)
_APART_FOOT = (
    "300 requests of chat · 6 instances of llama-3.1-8b on H100 · hand-over vllm over 400 Gb/s · "
    "engine vllm · step times trained"
)
_FLEET_FOOT = (
    "300 requests of chat · 2 instances of llama-3.1-8b on H100, 2 on L40S · engine vllm · step times trained"
)


@in_house_style
def apart() -> Picture:
    """p99 of TTFT and of ITL over the rate, for three layouts of six instances, with their targets."""
    above = legend_room(len(LAYOUTS), columns=3)
    picture, axes = grid(1, 2, height=3.6 + above, foot=_APART_FOOT, above=above)
    for index, (name, xpyd) in enumerate(LAYOUTS.items()):
        clusters = [_cluster(gpu="h100", xpyd=xpyd, rate=rate) for rate in RATES]
        for ax, metric in zip(axes, TARGETS, strict=True):
            ax.plot(RATES, [cluster[metric]["p99"] for cluster in clusters], label=name, **_look(index))
    for ax, limit, title in zip(axes, TARGETS.values(), ("TTFT", "ITL"), strict=True):
        ax.axhline(limit, color=INK, linewidth=1.0, linestyle=(0, (3, 2)))
        ax.annotate(
            f"target {limit:g} ms", (RATES[-1], limit), (0, -11), textcoords="offset points", ha="right"
        )
        ax.set(title=f"p99 {title}, ms", xlabel="requests a second")
        ax.set_ylim(bottom=0)
    legend_above(picture, axes[:1], from_top=0.12, columns=3)
    return picture


@in_house_style
def two_kinds() -> Picture:
    """Mean ITL over the rate, and the share of the new GPUs, for two policies."""
    above = legend_room(len(POLICIES), columns=2)
    picture, axes = grid(1, 2, height=3.6 + above, foot=_FLEET_FOOT, above=above)
    for index, policy in enumerate(POLICIES):
        runs = [_run(pools=FLEET, rate=rate, routing_policy=policy) for rate in FLEET_RATES]
        gaps = [run.summary["cluster"]["itl_ms"]["mean"] for run in runs]
        shares = [100 * run.summary["pools"]["new"]["visits"] / LOAD["num_requests"] for run in runs]
        axes[0].plot(FLEET_RATES, gaps, label=policy, **_look(index))
        axes[1].plot(FLEET_RATES, shares, **_look(index))
    axes[0].set(title="mean ITL, ms", xlabel="requests a second", xticks=FLEET_RATES)
    axes[0].set_ylim(bottom=0)
    axes[1].set(title="requests on the new GPUs, %", xlabel="requests a second", ylim=(0, 100))
    axes[1].set_xticks(FLEET_RATES)
    legend_above(picture, axes[:1], from_top=0.12, columns=2)
    return picture


def _look(index: int) -> dict[str, Any]:
    return series_lines(index) | {"linestyle": DASHES[index % len(DASHES)], "markersize": 4}


def _run(**settings: Any) -> blis.Result:
    return blis.build(**LOAD, **settings).run(record_steps=False)


def _cluster(**settings: Any) -> dict[str, Any]:
    found: dict[str, Any] = _run(**settings).summary["cluster"]
    return found
