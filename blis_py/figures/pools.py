"""Latencies of each pool, and what hand-overs between pools waited for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from blis_py.figures.axes import in_words, latency_axis, metric_axis
from blis_py.figures.facts import foot
from blis_py.figures.over_time import pool_line
from blis_py.figures.run import RunView, points
from blis_py.figures.style import (
    QUIET,
    Picture,
    in_house_style,
    label,
    legend_above,
    legend_room,
    panels,
    say,
)
from blis_py.metrics.registry import METRICS, per_request

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WAITS = {
    "handover_reservation_ms": "blocks of the decode instance",
    "handover_link_queue_ms": "other transfers on the link",
    "handover_wire_ms": "own KV on the link",
}
"""Mean waits of a hand-over in a summary, by cause."""


@in_house_style
def by_pool(run: RunView) -> Picture | None:
    """Main latencies (TTFT, TPOT, E2E) of the visits to each pool, and mean waits of hand-overs by cause;
    `None` with one pool."""
    if not run.pools:
        return None
    legend = legend_room(len(run.pools))
    shown = [metric.name for metric in per_request()]
    figure, axes = panels(len(shown) + bool(run.handovers), 2, 3.2, legend, foot=foot(run.config))
    for metric, ax in zip(shown, axes, strict=False):
        _draw_latency(ax, run, metric)
    if run.handovers:
        _draw_waits(axes[-1], run.handovers)
    legend_above(figure, axes[: len(shown)], from_top=0.1)
    return figure


def _draw_latency(ax: Axes, run: RunView, metric: str) -> None:
    """A line for each pool through its percentiles."""
    ax.set_title(METRICS[metric].title)
    extent: list[float] = []
    of_pools, looks = points(run, metric), {name: pool_line(at) for at, name in enumerate(run.pools)}
    for name, (values, shares) in of_pools.items():
        ax.plot(values, shares, marker="o", markersize=4, label=label(name), **looks[name])
        extent += values
    if not extent:
        say(ax, f"no pool has a {METRICS[metric].label}")
        return
    metric_axis(ax, METRICS[metric], extent)
    ax.set_ylabel("% of visits")
    ax.set_ylim(0, 101)
    ax.set_yticks([0, 50, 90, 99])


def _draw_waits(ax: Axes, handovers: Mapping[str, Any]) -> None:
    """A bar for each cause, from the end of the one before it."""
    ax.set_title("Mean wait of a hand-over")
    begin = 0.0
    for row, (key, cause) in enumerate(WAITS.items()):
        mean = float(handovers.get(key) or 0.0)
        ax.barh(row, mean, left=begin, color=QUIET, height=0.6)
        ax.annotate(f"{cause}: {in_words(float(f'{mean:.3g}'))}", (0, row - 0.48), fontsize=9, va="center")
        begin += mean
    ax.set_ylim(len(WAITS) - 0.5, -0.8)
    ax.set_yticks([])
    latency_axis(ax, [0.0, begin], text=f"of {handovers.get('handovers', 0):,} hand-overs")
