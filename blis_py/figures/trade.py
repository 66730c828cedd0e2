"""GPU throughput against user-perceived speed, the trade-off of every serving setting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_py.figures.axes import limit_line, rate_axis
from blis_py.figures.lines import draw_line, legend_of_series, room_for
from blis_py.figures.several import Runs, Several, several
from blis_py.figures.style import INK, Picture, grid, headline, in_house_style, label, say
from blis_py.metrics.slo import parse_slos

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PER_GPU = "output_tokens_per_s_per_gpu"
TPOT = "tpot_ms.p50"
_APART = 0.09
"""Share of the width below which two labels would overlap."""


@in_house_style
def pareto(runs: Runs, by: Sequence[str] = ()) -> Picture:
    """Output tokens per second and GPU over tokens per second and user (the inverse of the median TPOT).

    The step line joins the Pareto-optimal runs among those that keep up.

    Args:
        runs: results, or the table of a sweep.
        by: settings that separate lines; see `blis_py.figures.several`.
    """
    drawn = several(runs, by)
    above = room_for(drawn)
    figure, (ax,) = grid(1, 1, height=5.4 + above, above=above, left=0.95, foot=drawn.foot)
    ax.set_title("Tokens/s of a GPU against tokens/s of a user; stairs: the best that keep up")
    for index, series in enumerate(drawn.series):
        draw_line(ax, series, index, TPOT, PER_GPU, _per_user)
    if not ax.lines:
        say(ax, "no run has both a TPOT and a throughput")
    else:
        _draw_frontier(ax, drawn)
        _draw_limit(ax, drawn)
        rate_axis(ax, "x")
        rate_axis(ax, "y")
        ax.set(xlabel="tokens/s per user (1 / median TPOT)", ylabel="output tokens/s per GPU")
    headline(figure, drawn.about)
    legend_of_series(figure, drawn)
    return figure


def _per_user(tpot_ms: float) -> float:
    return 1000 / tpot_ms


def _draw_frontier(ax: Axes, drawn: Several) -> None:
    spots = [
        (_per_user(group.middle(TPOT)), group.middle(PER_GPU), group.load)
        for series in drawn.series
        for group in series.groups
        if group.values(TPOT) and group.values(PER_GPU) and not group.saturated
    ]
    best = [spots[place] for place in frontier([(x, y) for x, y, _ in spots])]
    x, y = ([spot[axis] for spot in best] for axis in (0, 1))
    ax.step(x, y, where="pre", color=INK, linewidth=0.9, linestyle=(0, (2, 2)), zorder=1.6)
    if drawn.along is not None:
        _name_loads(ax, best, drawn.along.rpartition(".")[2].replace("_", " "))


def _name_loads(ax: Axes, best: Sequence[tuple[float, float, Any]], what: str) -> None:
    """Label points with their load where they are far enough apart."""
    (_, right), (_, top) = ax.get_xlim(), ax.get_ylim()
    named: list[tuple[float, float]] = []
    for x, y, load in best:
        spot = (x / right, y / top)
        if any(abs(spot[0] - a) < _APART and abs(spot[1] - b) < _APART / 2 for a, b in named):
            continue
        named.append(spot)
        text = f"{what} {load:g}" if isinstance(load, int | float) else f"{what} {load}"
        side: Any = {"xytext": (-7, 6), "ha": "right"} if spot[0] > 0.85 else {"xytext": (7, 6), "ha": "left"}
        ax.annotate(text, (x, y), textcoords="offset points", size=8, parse_math=False, **side)


def frontier(spots: Sequence[tuple[float, float]]) -> list[int]:
    """Indices of the Pareto-optimal points, from left to right."""
    best, highest = [], -np.inf
    for place in sorted(range(len(spots)), key=lambda place: (-spots[place][0], -spots[place][1])):
        if spots[place][1] > highest:
            best.append(place)
            highest = spots[place][1]
    return best[::-1]


def _draw_limit(ax: Axes, drawn: Several) -> None:
    """Draw the speed implied by a limit on TPOT."""
    for check in parse_slos(drawn.slos):
        if check.metric == "tpot" and not check.slo_class:
            limit_line(ax, 1e9 / check.limit_ns, label(check.text))
            return
