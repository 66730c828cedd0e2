"""Curves of a sweep: metrics against the first numeric axis, a line for each other setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_py.figures.style import (
    Picture,
    headline,
    in_house_style,
    label,
    legend_above,
    legend_room,
    panels,
    series_lines,
)
from blis_py.metrics.registry import headings_in
from blis_py.planning.student import two_sided

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_OF_THE_CLUSTER = {
    "throughput.output_tokens_per_s": "output tokens/s",
    "kv_peak_pct": "KV cache, most in use, %",
}
CONFIDENCE = 0.9
_MAX_LINES = 12


def save_curves(
    table: pd.DataFrame, axes: Mapping[str, Sequence[Any]], folder: Path, foot: str = ""
) -> list[Path]:
    """Write `curves.png`; nothing if no run succeeded or nothing was varied. Each kind is drawn anew."""
    picture = curves(table, axes, foot)
    return [] if picture is None else [picture.save(folder / "curves.png")]


@in_house_style
def curves(table: pd.DataFrame, axes: Mapping[str, Sequence[Any]], foot: str = "") -> Picture | None:
    """Means over the seeds, with 90 % confidence intervals of the mean.

    Args:
        table: of a sweep.
        axes: values of the varied settings, by name.
        foot: the settings common to all runs.
    """
    ran = table[table["status"] == "ok"]
    if not len(ran) or not axes:
        return None
    across = _across(axes)
    others = [name for name in axes if name != across]
    groups = list(ran.groupby(others, sort=False, dropna=False)) if others else [((), ran)]
    shown = groups[:_MAX_LINES]
    above = 0.45 + legend_room(len(shown), columns=3)
    titles = headings_in("curves") | _OF_THE_CLUSTER
    figure, drawn = panels(len(titles), 2, 3.6, above, foot=foot)
    for axis, (metric, title) in zip(drawn, titles.items(), strict=True):
        for index, (key, part) in enumerate(shown):
            _line(axis, part, across, metric, _named(others, key), index)
        axis.set_title(title)
        axis.set_xlabel(across)
        if metric in ran and (ran[metric].max() or 0) > 30 * max(ran[metric].min() or 0, 1e-9):
            axis.set_yscale("log")
        else:
            axis.set_ylim(bottom=0)
    seeds = int(ran["seed"].nunique())
    text = f"mean of {seeds} seeds, band: 90 % confidence" if seeds > 1 else "one run each"
    left_out = f"; the first {len(shown)} of {len(groups)} lines" if len(groups) > len(shown) else ""
    headline(figure, f"{len(ran):,} runs over {across}: {text}{left_out}")
    legend_above(figure, drawn, from_top=0.45, columns=3)
    return figure


def _across(axes: Mapping[str, Sequence[Any]]) -> str:
    """The first numeric setting; the first of all if none is numeric."""
    numbers = [name for name, values in axes.items() if all(map(_is_number, values))]
    return (numbers or list(axes))[0]


def _line(axis: Axes, part: pd.DataFrame, across: str, metric: str, name: str, index: int) -> None:
    if metric not in part or not part[metric].notna().any():
        return
    spread = part.groupby(across, dropna=False)[metric].agg(["mean", "sem", "count"])
    x = list(spread.index) if all(map(_is_number, spread.index)) else [str(v) for v in spread.index]
    look = series_lines(index)
    axis.plot(x, spread["mean"], label=label(name), markersize=4, **look)
    half = [_half_width(sem, int(count)) for sem, count in zip(spread["sem"], spread["count"], strict=True)]
    if any(half):
        low, high = spread["mean"] - half, spread["mean"] + half
        axis.fill_between(x, low, high, color=look["color"], alpha=0.15, linewidth=0)


def _half_width(sem: float, count: int) -> float:
    """Half width of the confidence interval of a mean, by Student's distribution."""
    return two_sided(CONFIDENCE, count - 1) * sem if count > 1 else 0.0


def _named(names: Sequence[str], key: Any) -> str:
    values = key if isinstance(key, tuple) else (key,)
    return ", ".join(f"{name} {value}" for name, value in zip(names, values, strict=True)) or "all"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
