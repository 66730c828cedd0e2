"""The picture of cache_aware.py: what a stream's hit rate costs in waiting time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKERS = {
    "fcfs": ("s", "#444444"),
    "sjf": ("v", "#9467bd"),
    "hrrn": ("D", "#2ca02c"),
    "dfs-weight": ("^", "#ff7f0e"),
}


def draw(measured: Mapping[str, Any], target: Path) -> None:
    """A panel per stream: hit rate over p99 waiting time, with the two bounds as lines."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False})
    streams = list(measured.values())
    places = len(streams) + 1  # the last one is the legend's
    figure, grid = plt.subplots(
        -(-places // 3), 3, figsize=(14, 4 * -(-places // 3)), layout="constrained", squeeze=False
    )
    panels = grid.flatten()
    for panel, stream in zip(panels, streams, strict=False):
        _panel(panel, stream)
    for panel in panels[len(streams) :]:
        panel.axis("off")
    for row in grid:
        row[0].set_ylabel("prefix hits, % of prompt tokens")
    panels[len(streams)].legend(*panels[0].get_legend_handles_labels(), loc="center", fontsize=11)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=120)
    plt.close(figure)


def _panel(axes: Axes, stream: Mapping[str, Any]) -> None:
    points = stream["points"]
    curve = [point for point in points if "fairness_ms" in point]
    axes.axhline(
        100 * stream["ceiling"], color="#d62728", lw=1.2, ls="--", label="ceiling: nothing forgotten"
    )
    axes.axhline(100 * stream["belady"], color="#d62728", lw=1.2, ls=":", label="Belady, order of arrival")
    xs, ys = [point["wait_p99_s"] for point in curve], [100 * point["hit_rate"] for point in curve]
    axes.plot(xs, ys, "o-", color="#1f77b4", ms=5, lw=1.2, label="lpm, by fairness bound")
    _label_bounds(axes, curve)
    for scheduler, (marker, color) in MARKERS.items():
        for point in points:
            if (point["scheduler"], point["prefix_cache"]) == (scheduler, "radix"):
                axes.plot(
                    point["wait_p99_s"],
                    100 * point["hit_rate"],
                    marker,
                    color=color,
                    ms=7,
                    mfc="none",
                    mew=1.6,
                    ls="none",
                    label=scheduler,
                )
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    steps = (1, 2, 5) if high > 10 * low else (1, 1.5, 2, 3, 4, 5, 7)
    ticks = [step * decade for decade in (0.01, 0.1, 1, 10, 100, 1000) for step in steps]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlim(low / 2, high * 1.1)
    axes.set_ylim(0, 104 * stream["ceiling"])
    axes.set_xlabel("p99 waiting time, s (log)")
    axes.set_title(stream["title"], fontsize=10, loc="left")
    axes.grid(color="#ececec")


def _label_bounds(axes: Axes, curve: list[dict[str, Any]]) -> None:
    """The bounds to the left of their points; points close to each other share a label."""
    groups: list[list[dict[str, Any]]] = []
    for point in curve:
        if groups and _are_close(groups[-1][0], point):
            groups[-1].append(point)
        else:
            groups.append([point])
    for group in groups:
        names = [_bound(group[0]), _bound(group[-1])]
        text = names[0] if len(group) == 1 else " … ".join(names)
        place = (group[0]["wait_p99_s"], 100 * group[0]["hit_rate"])
        axes.annotate(
            text, place, xytext=(-8, -3), textcoords="offset points", ha="right", fontsize=8, color="#1f77b4"
        )


def _are_close(one: dict[str, Any], other: dict[str, Any]) -> bool:
    ratio = max(one["wait_p99_s"], 1e-3) / max(other["wait_p99_s"], 1e-3)
    return 1 / 1.25 < ratio < 1.25 and 0.85 < one["hit_rate"] / other["hit_rate"] < 1.15


def _bound(point: dict[str, Any]) -> str:
    bound = point["fairness_ms"]
    return "∞" if bound is None else f"{bound / 1000:g} s"
