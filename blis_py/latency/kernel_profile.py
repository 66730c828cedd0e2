"""Kernel times of one model on one GPU, independent of the folder layout."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from blis_py.errors import InputError

Array = NDArray[np.float64]
Axes = tuple[Array, Array, Array, Array]
LARGEST_IN_TABLE = 1e12
"""Upper bound of any time or size in a table of kernel times."""
_MAX_CELLS = 20_000_000


@dataclass(frozen=True)
class Curve:
    """Points of a quantity, in ns, over one axis; linear in between, `slope_beyond` after the last."""

    at: Array
    ns: Array
    measured_to: float
    """Upper end of the measured points; infinite if they follow from a formula."""


@dataclass(frozen=True)
class KernelProfile:
    """Kernel times of one model at one TP degree, in ns."""

    source: str
    """Description of the measurement, for reports."""
    tokens: Curve
    """Everything that depends on the number of tokens only: projections, norms, FFN or experts (by expected
    active experts), all-reduce, embedding."""
    sequences: Curve
    """LM head and sampler."""
    axes: Axes
    """Grid of the attention table: prefill chunk, its cached tokens, decodes, context of each."""
    attention: Array
    """Attention of all layers on that grid."""
    skew: float
    """Position of a batch's attention between that of its mean context (0) and of its longest (1)."""
    mixed_decodes: float
    """Largest number of decodes measured beside a chunk."""
    longest: Array
    """Longest context measured for each number of decodes on the grid."""


def empty_grid(axes: Sequence[Array], table: Path) -> Array:
    """A grid with a cell for every combination, all unknown.

    Raises:
        InputError: there are too many; a table that was measured on a grid has some thousands.
    """
    cells = math.prod(map(len, axes))
    if cells > _MAX_CELLS:
        problem = f"{cells:,} combinations of the sizes in it are more than {_MAX_CELLS:,}"
        raise InputError(problem, file=table, fix="measure on a grid of fewer sizes")
    return np.full([len(axis) for axis in axes], np.nan)


def weighted_sum(parts: list[tuple[float, Curve]]) -> Curve:
    """Weighted sum of curves on the union of their points; measured as far as all of them."""
    at = np.unique(np.concatenate([curve.at for _, curve in parts]))
    ns = np.zeros_like(at)
    for weight, curve in parts:
        inside = np.interp(at, curve.at, curve.ns)
        beyond = float(slope_beyond(curve.at, curve.ns)) * np.maximum(at - curve.at[-1], 0.0)
        ns += weight * (inside + beyond)
    return Curve(at, ns, min(curve.measured_to for _, curve in parts))


def lines(grid: Array, axis: int) -> Iterator[Array]:
    """Views of all lines of the grid along one axis."""
    moved = np.moveaxis(grid, axis, -1)
    return (moved[index] for index in np.ndindex(moved.shape[:-1]))


def fill_gaps(axis: Array, line: Array) -> None:
    """Fill gaps (NaN) between measured points: a profile may combine several sweeps."""
    known = ~np.isnan(line)
    inside = np.flatnonzero(known)
    if len(inside) >= 2:
        part = slice(inside[0], inside[-1] + 1)
        line[part] = np.interp(axis[part], axis[known], line[known])


def slope_beyond(axis: Array, values: Array) -> Array:
    """Slope along the last axis of `values` for extrapolation beyond the last point.

    It is that of the last octave: a kernel's times form a staircase of tiles, and over a doubling neither a
    single step nor the noise of a point matters much. Never negative, and at most twice the average cost per
    unit at the last point, the maximum that a doubling can show.
    """
    if len(axis) == 1:
        return np.zeros_like(values[..., -1])
    before = max(int(np.searchsorted(axis, axis[-1] / 2, side="right")) - 1, 0)
    slope = (values[..., -1] - values[..., before]) / (axis[-1] - axis[before])
    bounded: Array = np.clip(slope, 0.0, 2 * values[..., -1] / axis[-1])
    return bounded


def extend(axis: Array, line: Array) -> None:
    """Extrapolate a line beyond its last measured point."""
    known = np.flatnonzero(~np.isnan(line))
    if len(known) >= 2 and known[-1] == len(known) - 1:
        last, end = known[-1], len(known)
        slope = slope_beyond(axis[:end], line[:end])
        line[end:] = line[last] + slope * (axis[end:] - axis[last])


def continued(axes: Sequence[Array], grid: Array, along: Iterable[int]) -> tuple[list[Array], Array]:
    """The grid with an additional point at twice the end of each of the axes `along`, so that lookups beyond
    the end follow `slope_beyond`. The new points are raised where the noise of the old ones would make them
    fall along another axis."""
    longer = list(axes)
    for i in along:
        axis = axes[i]
        far = 2 * axis[-1] if axis[-1] else 1.0
        line = np.moveaxis(grid, i, -1)
        edge = line[..., -1] + slope_beyond(axis, line) * (far - axis[-1])
        for j in range(edge.ndim):
            edge = np.maximum.accumulate(edge, axis=j)
        longer[i] = np.append(axis, far)
        grid = np.concatenate([grid, np.expand_dims(edge, i)], axis=i)
    return longer, grid


def continued_curve(curve: Curve) -> Curve:
    """`continued`, for a curve."""
    (at,), ns = continued((curve.at,), curve.ns, (0,))
    return Curve(at, ns, curve.measured_to)


def longest_known(contexts: Array, table: Array) -> Array:
    """The last context that is not NaN in each row of (decodes, contexts); 0 if none is."""
    known: Array = np.where(np.isnan(table), 0.0, contexts).max(axis=1)
    return known


def cell(axis: Array, value: float) -> tuple[int, float]:
    """Index of the grid cell of a value (the last one if beyond), and the position in it."""
    i = min(max(int(np.searchsorted(axis, value, side="right")) - 1, 0), len(axis) - 2)
    return i, float((value - axis[i]) / (axis[i + 1] - axis[i]))


def value_at(curve: Curve, value: float) -> float:
    """Linear interpolation between the points, and extrapolation beyond them."""
    if len(curve.at) == 1:
        return float(curve.ns[0])
    i, weight = cell(curve.at, value)
    return float((1 - weight) * curve.ns[i] + weight * curve.ns[i + 1])


def interpolate(axes: Sequence[Array], grid: Array, point: Sequence[float]) -> float:
    """Multilinear interpolation in a grid; beyond its edge along the last slope."""
    for axis, value in zip(axes, point, strict=True):
        i, weight = cell(axis, value)
        grid = (1 - weight) * grid[i] + weight * grid[i + 1]
    return float(grid)
