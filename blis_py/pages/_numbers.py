"""Numbers as text, in the form of `assets/format.js`."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

_DIGITS = 5


def number(value: float | None) -> str:
    """Three significant digits or more, thousands grouped; a dash if undefined."""
    if value is None or not math.isfinite(value):
        return "–"
    value, size = value + 0.0, abs(value)  # no negative zero
    if size >= 100 or value == int(value):
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 0.1 else f"{value:.2g}"


def percent(share: float | None) -> str:
    """A share as a percentage."""
    return "–" if share is None else f"{100 * share:.1f} %"


def change(share: float | None) -> str:
    """A relative change as a signed percentage."""
    if share is None:
        return "–"
    return "=" if abs(share) < 0.0005 else f"{100 * share:+,.1f} %".replace("-", "−")


def rounded(values: NDArray[np.float64]) -> list[float | None]:
    """Values for a chart: five significant digits, null if undefined."""
    return [float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None for value in values.tolist()]
