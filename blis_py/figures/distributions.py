"""Latency distributions, by SLO class where there are several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_py.figures.axes import limit_line, metric_axis
from blis_py.figures.facts import foot
from blis_py.figures.run import Limit, RunView, fate
from blis_py.figures.style import (
    INK,
    Picture,
    class_lines,
    in_house_style,
    label,
    legend_above,
    legend_room,
    panels,
    say,
)
from blis_py.metrics.groups import Rows
from blis_py.metrics.registry import METRICS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MAX_CLASSES = 8
_FAR = 20.0
"""Multiple of the largest value beyond which a limit is named but not drawn, to keep the curves readable."""


@in_house_style
def latency_cdf(run: RunView) -> Picture:
    """Cumulative distributions of the main latencies (TTFT, TPOT, ITL, E2E), with their limits."""
    legend = legend_room_of(run)
    shown = [name for name, each in METRICS.items() if each.shown.distributions]
    figure, axes = panels(len(shown), 2, 3.2, legend, foot=foot(run.config))
    for metric, ax in zip(shown, axes, strict=True):
        draw_cdf(ax, run, metric)
    legend_above(figure, axes, from_top=0.1)
    return figure


@in_house_style
def one_latency(run: RunView, metric: str) -> Picture:
    """The cumulative distribution of one latency: `ttft`, `tpot`, `itl`, `e2e` or `scheduling_delay`."""
    legend = legend_room_of(run)
    figure, (ax,) = panels(1, 1, 4.2, legend, foot=foot(run.config))
    draw_cdf(ax, run, metric)
    legend_above(figure, [ax], from_top=0.1)
    return figure


def legend_room_of(run: RunView) -> float:
    """Height of the legend of classes, in inches."""
    curves = 1 + min(_MAX_CLASSES, len(run.classes))
    return legend_room(curves) if curves > 2 else 0.0


def draw_cdf(ax: Axes, run: RunView, metric: str) -> None:
    """One curve for all requests, and one for each class where there are several."""
    of = METRICS[metric]
    means = of.per_token and run.gaps is None
    ax.set_title(f"{of.plain_title}, mean of each request" if means else of.title)
    extent = []
    for name, rows, look in _lines(run):
        samples = run.samples(metric, rows)
        if samples.count:
            reached, shares = samples.curve()
            # Draw a single value as a step from 0, since a point would be invisible.
            values, share = np.concatenate((reached[:1], reached)), np.concatenate(([0.0], shares))
            ax.step(values, 100 * share, where="post", label=label(name), **look)
            extent += [values[0], values[-1]]
    if not extent:
        say(ax, f"no request has a {of.label}: {fate(run)}")
        return
    extent += _draw_limits(ax, run, metric, max(extent))
    metric_axis(ax, of, extent)
    ax.set_ylabel("% of tokens" if of.per_token and not means else "% of requests")
    ax.set_ylim(0, 101)
    ax.set_yticks([0, 25, 50, 75, 90, 99])


def _lines(run: RunView) -> list[tuple[str, Rows, dict[str, Any]]]:
    all_rows: Rows = np.arange(len(run))
    if len(run.classes) < 2:
        return [("all requests", all_rows, {"color": INK})]
    shown = dict(list(run.classes.items())[:_MAX_CLASSES])
    looks = class_lines(list(shown))
    lines = [("all requests", all_rows, {"color": INK, "linestyle": (0, (4, 2)), "linewidth": 1.4})]
    return lines + [(name, rows, looks[name]) for name, rows in shown.items()]


def _draw_limits(ax: Axes, run: RunView, metric: str, largest: float) -> list[float]:
    """Draw the limits of a metric; return their positions."""
    limits: Sequence[Limit] = [limit for limit in run.limits if limit.metric == metric]
    looks = class_lines(list(run.classes))
    drawn = []
    for row, limit in enumerate(limits):
        colour = looks.get(limit.slo_class or "", {}).get("color", INK)
        text = f"{limit.text} ≤ {limit.value:,g} {METRICS[metric].unit.name}".rstrip()
        if limit.value > _FAR * largest:
            spot: Any = {"xy": (1, 0), "xycoords": "axes fraction", "ha": "right", "size": 8, "color": colour}
            at: Any = {"xytext": (-3, 4 + 12 * row), "textcoords": "offset points"}
            ax.annotate(f"{text}, far to the right", parse_math=False, **spot, **at)
            continue
        limit_line(ax, limit.value, label(text), colour=colour, row=row)
        if limit.share is not None:
            ax.plot(limit.value, limit.share, "o", ms=7, mfc="none", mec=colour, mew=1.4, clip_on=False)
        drawn.append(limit.value)
    return drawn
