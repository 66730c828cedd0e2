"""Prefix hit rate against the queueing delay of requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from blis_py.figures.axes import latency_axis, limit_line
from blis_py.figures.lines import draw_line, legend_of_series, room_for
from blis_py.figures.several import Runs, Several, several
from blis_py.figures.style import Picture, grid, headline, in_house_style, say

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HITS, CEILING = "prefix_hit_rate", "prefix_hit_ceiling"
_WAITS = {"p50": "Waiting before the first step, median", "p99": "Waiting before the first step, p99"}


@in_house_style
def hit_rate(runs: Runs, by: Sequence[str] = ()) -> Picture:
    """Prefix hit rate over the median and p99 scheduling delay, with the upper bound for any cache.

    Args:
        runs: results, or the table of a sweep.
        by: settings that separate lines; see `blis_py.figures.several`.
    """
    drawn = several(runs, by)
    above = room_for(drawn)
    figure, axes = grid(1, 2, height=4.4 + above, above=above, left=0.9, beside=0.95, foot=drawn.foot)
    for (statistic, title), ax in zip(_WAITS.items(), axes, strict=True):
        ax.set_title(title)
        _draw(ax, drawn, f"scheduling_delay_ms.{statistic}")
    headline(figure, drawn.about)
    legend_of_series(figure, drawn)
    return figure


def _draw(ax: Axes, drawn: Several, delay: str) -> None:
    for index, series in enumerate(drawn.series):
        draw_line(ax, series, index, delay, HITS)
    if not ax.lines:
        say(ax, "no run looked up any block in a prefix cache")
        return
    ceilings = {value for point in drawn.points if not np.isnan(value := point.value(CEILING))}
    if len(ceilings) == 1:
        limit_line(ax, ceilings.pop(), "no cache finds more", along="y")
    waits = [value for point in drawn.points if not np.isnan(value := point.value(delay))]
    latency_axis(ax, waits, "x", "waiting")
    ax.set_ylim(0, 1.03)
    ax.yaxis.set_major_formatter("{x:.0%}")
    ax.set_ylabel("prompt tokens found")
