"""Monotone regression: the nearest times that more work never makes shorter.

Measured kernels and curves between them fall here and there where the work grows, by noise or because another
kernel is chosen. Neighbours in the wrong order are replaced by their mean (pool adjacent violators).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def rising(ns: Array) -> Array:
    """The nearest sequence that does not fall."""
    if (np.diff(ns) >= 0).all():
        return ns
    means: list[float] = []
    counts: list[int] = []
    for value in ns.tolist():
        mean, count = value, 1
        while means and means[-1] > mean:
            other = counts.pop()
            mean = (mean * count + means.pop() * other) / (count + other)
            count += other
        means.append(mean)
        counts.append(count)
    return np.repeat(means, counts)


def with_work(work: Array, ns: Array) -> Array:
    """The nearest times that grow with the work, and no faster than it: twice the work takes at most twice as
    long."""
    per_unit = -rising(-(ns / work))
    return rising(per_unit * work)


def rising_grid(ns: Array) -> Array:
    """Times over two kinds of work, the nearest along the second that do not fall, and along the first none
    below those of less work."""
    grid = np.stack([rising(line) for line in ns])
    return np.maximum.accumulate(np.stack([rising(line) for line in grid.T]).T, axis=1)
