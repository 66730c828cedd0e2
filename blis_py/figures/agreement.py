"""Predicted against measured latencies, a point per request."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_py.calibrate.compare import Calibration, LatencyError
from blis_py.calibrate.token_times import Seconds, TokenTimes
from blis_py.figures._matplotlib import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from blis_py.figures.axes import in_words
from blis_py.figures.facts import foot
from blis_py.figures.style import BLUE, INK, QUIET, SKY, Picture, grid, headline, in_house_style, say

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLUMNS = 2


@in_house_style
def predicted_measured(calibration: Calibration, config: Mapping[str, Any] | None = None) -> Picture:
    """Predicted over measured latencies of every request (for ITL its mean), with a ±10 % band.

    Args:
        config: of the predicted run, for the foot.
    """
    errors = [error for error in calibration.errors if error.group == "all"]
    columns = min(_COLUMNS, len(errors))
    rows = -(-len(errors) // columns)
    side = 4.1 if columns > 1 else 5.0
    room: Any = {"above": 0.35, "left": 0.85, "beside": 0.95}
    figure, axes = grid(rows, columns, height=0.9 + side * rows, foot=foot(config or {}), **room)
    for ax, error in zip(axes, errors, strict=False):
        _draw(ax, calibration, error)
    for ax in axes[len(errors) :]:
        ax.remove()
    measured, predicted = (Path(run.source).name for run in (calibration.measured, calibration.predicted))
    compared = f"{len(calibration.measured.request_id):,} requests"
    headline(figure, f"{compared}, measured in {measured}, predicted in {predicted}")
    return figure


def _draw(ax: Axes, calibration: Calibration, error: LatencyError) -> None:
    runs = calibration.measured, calibration.predicted
    ax.set_title(f"{error.latency}: MAPE {error.mape:.1%}, bias {error.bias:+.1%}, r {error.pearson_r:.3f}")
    x, y = (_of_each(times, error.latency) * 1e3 for times in runs)
    scatter(ax, x, y)


def scatter(
    ax: Axes, measured_ms: Seconds, predicted_ms: Seconds, colour: str = BLUE, narrow: bool = False
) -> None:
    """Predicted over measured times of the same requests.

    Args:
        narrow: whether the axes have room for few labels only.
    """
    shown = (measured_ms > 0) & (predicted_ms > 0)
    if not shown.any():
        say(ax, "no request has it in both runs")
        return
    x, y = measured_ms[shown], predicted_ms[shown]
    low, high = min(x.min(), y.min()) * 0.9, max(x.max(), y.max()) * 1.1
    line = np.array([low, high])
    ax.fill_between(line, 0.9 * line, 1.1 * line, color=SKY, alpha=0.3, lw=0, label="±10 %")
    ax.plot(line, line, color=QUIET, lw=1)
    ax.plot(x, y, "o", ms=3, alpha=0.45, color=colour, mec="none")
    _scale(ax, high / low, narrow)
    ax.set(xlim=(low, high), ylim=(low, high), xlabel="measured", ylabel="predicted")
    free: Any = "lower right" if np.mean(y > x) > 0.5 else "upper left"
    ax.legend(loc=free, borderaxespad=0.6, labelcolor=INK)


def _scale(ax: Axes, span: float, narrow: bool) -> None:
    """Identical scales on both axes: logarithmic from a factor of twenty."""
    subs = (1.0, 2.0, 5.0) if span < 200 and not narrow else (1.0, 3.0) if span < 2000 else (1.0,)
    for axis in (ax.xaxis, ax.yaxis):
        if span > 20:
            axis.axes.set(**{f"{axis.axis_name}scale": "log"})
            axis.set_major_locator(LogLocator(subs=subs))
            axis.set_minor_formatter(NullFormatter())
        else:
            axis.set_major_locator(MaxNLocator(4 if narrow else 7, steps=[1, 2, 5, 10]))
        axis.set_major_formatter(FuncFormatter(lambda ms, _: in_words(ms)))


def _of_each(times: TokenTimes, latency: str) -> Seconds:
    """One latency of every request, in s."""
    if latency == "ITL":
        assert times.gaps is not None
        return times.gaps.means()
    return {"TTFT": times.ttft_s, "TPOT": times.tpot_s, "E2E": times.e2e_s}[latency]
