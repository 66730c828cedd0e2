"""Throughput against latency, over several runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from blis_py.figures.axes import limit_line, metric_axis, rate_axis
from blis_py.figures.lines import draw_line, legend_of_series, room_for
from blis_py.figures.several import Runs, Several, several
from blis_py.figures.style import Picture, headline, in_house_style, label, panels, say
from blis_py.metrics.registry import Metric, shown_in
from blis_py.metrics.slo import parse_slos

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_THROUGHPUT = "throughput.output_tokens_per_s"


@in_house_style
def throughput_latency(runs: Runs, by: Sequence[str] = ()) -> Picture:
    """The main latencies (TTFT, TPOT, E2E) over output tokens per second, a line for each setting.

    The statistic is p99, or that of the runs' `--slo`. Hollow points are runs that could not keep up.

    Args:
        runs: results, or the table of a sweep.
        by: settings that separate lines; see `blis_py.figures.several`.
    """
    drawn = several(runs, by)
    above = room_for(drawn)
    shown = shown_in("load")
    figure, axes = panels(len(shown), 3, 3.9, above, beside=0.95, left=0.85, foot=drawn.foot)
    for (metric, statistic), ax in zip(shown, axes, strict=True):
        _draw(ax, drawn, metric, statistic)
    headline(figure, drawn.about)
    legend_of_series(figure, drawn)
    return figure


def _draw(ax: Axes, drawn: Several, metric: Metric, usual: str) -> None:
    checks = [
        check for check in parse_slos(drawn.slos) if check.metric == metric.name and not check.slo_class
    ]
    statistic = checks[0].stat if checks else usual
    name = f"{metric.key}.{statistic}"
    ax.set_title(f"{metric.plain_title}, {statistic}")
    values = [value for point in drawn.points if not np.isnan(value := point.value(name))]
    if not values:
        say(ax, f"no run has a {metric.label} {statistic}")
        return
    for index, series in enumerate(drawn.series):
        draw_line(ax, series, index, _THROUGHPUT, name)
    for check in checks[:1]:
        limit = check.limit_ns / metric.unit.scale
        limit_line(ax, limit, label(check.text), along="y")
        values.append(limit)
    metric_axis(ax, metric, values, "y", "")
    rate_axis(ax, "x")
    ax.locator_params(axis="x", nbins=4)
    ax.set_xlabel("output tokens/s")
