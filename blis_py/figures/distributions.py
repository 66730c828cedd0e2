"""How latencies are distributed, by SLO class where there are several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_py.figures.axes import latency_axis, limit_line
from blis_py.figures.facts import foot
from blis_py.figures.run import Limit, RunView
from blis_py.figures.style import (
    INK,
    Picture,
    class_lines,
    grid,
    in_house_style,
    label,
    legend_above,
    legend_room,
    say,
)
from blis_py.metrics.groups import Rows
from blis_py.metrics.registry import METRICS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FOUR = ("ttft", "tpot", "itl", "e2e")
_MOST_CLASSES = 8
_FAR = 20.0
"""A limit so many times beyond all values is named, but not drawn: it would press them into a corner."""


@in_house_style
def latency_cdf(run: RunView) -> Picture:
    """Cumulative distributions of TTFT, TPOT, ITL and E2E, with the limits that were promised."""
    legend = legend_room_of(run)
    figure, axes = grid(2, 2, height=6.4 + legend, above=legend, foot=foot(run.config))
    for metric, ax in zip(_FOUR, axes, strict=True):
        draw_cdf(ax, run, metric)
    legend_above(figure, _fullest(axes), from_top=0.1)
    return figure


@in_house_style
def one_latency(run: RunView, metric: str) -> Picture:
    """The cumulative distribution of one latency: `ttft`, `tpot`, `itl`, `e2e` or `scheduling_delay`."""
    legend = legend_room_of(run)
    figure, (ax,) = grid(1, 1, height=4.2 + legend, above=legend, foot=foot(run.config))
    draw_cdf(ax, run, metric)
    legend_above(figure, ax, from_top=0.1)
    return figure


def legend_room_of(run: RunView) -> float:
    """The height of the legend of classes, in inches."""
    curves = 1 + min(_MOST_CLASSES, len(run.classes))
    return legend_room(curves) if curves > 2 else 0.0


def draw_cdf(ax: Axes, run: RunView, metric: str) -> None:
    """One curve for all requests, and one for each class where there are several."""
    means = metric == "itl" and run.gaps is None
    ax.set_title("Inter-token latency, mean of each request" if means else METRICS[metric].title)
    extent = []
    for name, rows, look in _lines(run):
        samples = run.samples(metric, rows)
        if samples.count:
            reached, shares = samples.curve()
            # A single value is a step from 0, not a point that nobody sees.
            values, share = np.concatenate((reached[:1], reached)), np.concatenate(([0.0], shares))
            ax.step(values, 100 * share, where="post", label=label(name), **look)
            extent += [values[0], values[-1]]
    if not extent:
        say(ax, f"no request has a {metric.replace('_', ' ').upper()}: {fate(run)}")
        return
    extent += _draw_limits(ax, run, metric, max(extent))
    latency_axis(ax, extent)
    ax.set_ylabel("% of tokens" if metric == "itl" and not means else "% of requests")
    ax.set_ylim(0, 101)
    ax.set_yticks([0, 25, 50, 75, 90, 99])


def fate(run: RunView) -> str:
    """What became of requests of which there is nothing to show."""
    if not len(run):
        return "there were no requests"
    done = int(run.completed.sum())
    return f"{done:,} of {len(run):,} requests completed"


def _lines(run: RunView) -> list[tuple[str, Rows, dict[str, Any]]]:
    everyone: Rows = np.arange(len(run))
    if len(run.classes) < 2:
        return [("all requests", everyone, {"color": INK})]
    shown = dict(list(run.classes.items())[:_MOST_CLASSES])
    looks = class_lines(list(shown))
    lines = [("all requests", everyone, {"color": INK, "linestyle": (0, (4, 2)), "linewidth": 1.4})]
    return lines + [(name, rows, looks[name]) for name, rows in shown.items()]


def _draw_limits(ax: Axes, run: RunView, metric: str, largest_ms: float) -> list[float]:
    """Lines for what was promised; where they are."""
    limits: Sequence[Limit] = [limit for limit in run.limits if limit.metric == metric]
    looks = class_lines(list(run.classes))
    drawn = []
    for row, limit in enumerate(limits):
        colour = looks.get(limit.slo_class or "", {}).get("color", INK)
        text = f"{limit.text} ≤ {limit.ms:,g} ms"
        if limit.ms > _FAR * largest_ms:
            spot: Any = {"xy": (1, 0), "xycoords": "axes fraction", "ha": "right", "size": 8, "color": colour}
            at: Any = {"xytext": (-3, 4 + 12 * row), "textcoords": "offset points"}
            ax.annotate(f"{text}, far to the right", parse_math=False, **spot, **at)
            continue
        limit_line(ax, limit.ms, label(text), colour=colour, row=row)
        if limit.share is not None:
            ax.plot(limit.ms, limit.share, "o", ms=7, mfc="none", mec=colour, mew=1.4, clip_on=False)
        drawn.append(limit.ms)
    return drawn


def _fullest(axes: Sequence[Axes]) -> Axes:
    """The axes with most curves."""
    return max(axes, key=lambda ax: len(ax.get_legend_handles_labels()[1]))
