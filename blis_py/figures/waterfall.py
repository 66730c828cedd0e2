"""Waterfall of the causes of a prediction's error, from the predicted to the measured value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blis_py.calibrate.autopsy import Autopsy
from blis_py.figures.style import BLUE, QUIET, VERMILLION, Picture, in_house_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TOO_HIGH, TOO_LOW, WHOLE = VERMILLION, BLUE, QUIET


@in_house_style
def autopsy(
    result: Autopsy, metrics: tuple[tuple[str, str], ...] = (("TTFT", "mean"), ("E2E", "mean"))
) -> Picture:
    """One waterfall per metric, side by side."""
    figure = Picture(figsize=(5 * len(metrics), 3.9), layout="constrained")
    panels = figure.subplots(1, len(metrics), sharey=True, squeeze=False)[0]
    for axes, (latency, statistic) in zip(panels, metrics, strict=True):
        waterfall(axes, result, latency, statistic)
    return figure


def waterfall(axes: Axes, result: Autopsy, latency: str, statistic: str) -> None:
    """A bar per contributing cause, from the value before its correction to the value after.

    Vermillion: the cause makes the prediction too high; blue: too low. Grey: predicted and measured.
    """
    index = result.metrics.index((latency, statistic))
    shown = [cause for cause in result.causes if result.contributes(cause)]
    predicted_ms, measured_ms = result.predicted_ns[index] / 1e6, result.measured_ns[index] / 1e6
    labels = ["predicted", *(cause.title for cause in shown), "measured"]
    axes.barh(0, predicted_ms, color=WHOLE)
    for row, cause in enumerate(shown, start=1):
        after_ms, share_ms = cause.values_ns[index] / 1e6, cause.shares_ns[index] / 1e6
        axes.barh(row, share_ms, left=after_ms, color=TOO_HIGH if share_ms > 0 else TOO_LOW)
        beyond_ms = max(after_ms, after_ms + share_ms)
        axes.annotate(
            f"{share_ms:+,.1f}",
            (beyond_ms, row),
            (3, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    axes.barh(len(shown) + 1, measured_ms, color=WHOLE)
    axes.axvline(measured_ms, color=WHOLE, lw=0.8, ls=":")
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.set_xlim(0, 1.16 * max(predicted_ms, measured_ms, *(c.values_ns[index] / 1e6 for c in shown)))
    axes.set_xlabel(f"{latency} {statistic}, ms")
    error = f" ({predicted_ms / measured_ms - 1:+.0%})" if measured_ms else ""
    axes.set_title(f"{latency} {statistic}{error}", loc="left")
