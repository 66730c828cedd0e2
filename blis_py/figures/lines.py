"""Lines through several runs, and their legend."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_py.figures._matplotlib import Line2D
from blis_py.figures.several import Series, Several
from blis_py.figures.style import FAINT, GREY, LEGEND_COLUMNS, Picture, label, series_lines

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_SERIES = 16
"""Number of distinguishable lines; further ones are grey."""
_HEADLINE = 0.3
_HOLLOW = "hollow: could not keep up"


def draw_line(
    ax: Axes, series: Series, index: int, across: str, up: str, of_x: Callable[[float], float] = float
) -> None:
    """Draw medians of one figure over another, with a band where there are several seeds.

    Args:
        across, up: names of the figures, as in `summary.json`.
        of_x: transformation of the x values before drawing.
    """
    known = [group for group in series.groups if group.values(across) and group.values(up)]
    if not known:
        return
    look: Any = (
        series_lines(index) if index < MAX_SERIES else {"color": FAINT, "linestyle": "-", "marker": "."}
    )
    x, y = [of_x(group.middle(across)) for group in known], [group.middle(up) for group in known]
    ax.plot(x, y, ms=5, mfc="none", **look)
    full = [place for place, group in enumerate(known) if not group.saturated]
    solid: Any = {"marker": look["marker"], "ms": 5, "color": look["color"], "linestyle": "none"}
    ax.plot([x[place] for place in full], [y[place] for place in full], **solid)
    if max(len(group.runs) for group in known) > 1:
        least, most = ([pick(group.values(up)) for group in known] for pick in (min, max))
        order = np.argsort(x)
        across_sorted, low, high = (np.array(part)[order] for part in (x, least, most))
        ax.fill_between(across_sorted, low, high, color=look["color"], alpha=0.15, linewidth=0)


def room_for(drawn: Several) -> float:
    """Inches above the axes for the headline and the legend."""
    entries, columns = len(_legend(drawn)), _columns(drawn)
    lines = -(-entries // columns)
    return (_HEADLINE if drawn.about else 0.0) + (0.25 * lines + 0.1 if entries else 0.0)


def legend_of_series(figure: Picture, drawn: Several) -> None:
    """Draw one legend for all axes: the series, and the meaning of a hollow point."""
    entries = _legend(drawn)
    handles = [Line2D([], [], **look) for look in entries.values()]
    labels = [label(name) for name in entries]
    if labels:
        top = 1 - (0.12 + (_HEADLINE if drawn.about else 0.0)) / figure.get_figheight()
        figure.legend(
            *(handles, labels),
            loc="upper left",
            bbox_to_anchor=(0.012, top),
            ncols=_columns(drawn),
            borderaxespad=0,
        )


def _legend(drawn: Several) -> dict[str, dict[str, Any]]:
    """Legend labels and their line styles."""
    shown = drawn.series[:MAX_SERIES] if len(drawn.series) > 1 else ()
    entries = {each.name: {**series_lines(index), "ms": 5} for index, each in enumerate(shown)}
    if any(group.saturated for series in drawn.series for group in series.groups):
        entries[_HOLLOW] = {"color": GREY, "marker": "o", "mfc": "none", "linestyle": "none"}
    if len(drawn.series) > MAX_SERIES:
        entries[f"{len(drawn.series) - MAX_SERIES} more"] = {"color": FAINT, "marker": "."}
    return entries


def _columns(drawn: Several) -> int:
    """Legend columns that fit side by side."""
    longest = max([len(label(name)) for name in _legend(drawn)], default=1)
    return max(1, min(LEGEND_COLUMNS, 135 // (longest + 7)))
