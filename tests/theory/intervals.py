"""Confidence intervals of means of queues, whose values depend on one another."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

BATCHES = 20
T_999 = 3.883
"""Quantile of Student's t, 19 degrees of freedom, for a two-sided interval of 99.9 %."""


def agree(values: NDArray[Any], expected: float, widest: float = 0.2) -> None:
    """The expected mean lies in the interval of 99.9 %, by means of batches; the interval is narrow enough.

    Args:
        widest: half width, in shares of the expected mean.
    """
    means = np.array([batch.mean() for batch in np.array_split(values, BATCHES)])
    half = T_999 * means.std(ddof=1) / np.sqrt(BATCHES)
    assert half < widest * expected, f"too few requests: ±{half / expected:.1%}"
    assert abs(means.mean() - expected) < half, f"{means.mean():.6g}, expected {expected:.6g} ±{half:.2g}"
