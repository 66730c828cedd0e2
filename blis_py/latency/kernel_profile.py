"""Kernel times of one model on one GPU, whatever folder they were read from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from blis_py.latency.hardware import GpuSpec
from blis_py.latency.model_shape import ModelShape

Array = NDArray[np.float64]
Axes = tuple[Array, Array, Array, Array]


@dataclass(frozen=True)
class Curve:
    """Measured points of a quantity, in ns, over one axis; linear in between and beyond."""

    at: Array
    ns: Array


@dataclass(frozen=True)
class KernelProfile:
    """Kernel times of one model at one TP degree, in ns."""

    source: str
    """What was measured with what, for reports."""
    tokens: Curve
    """Everything that depends on the number of tokens alone: projections, norms, FFN or experts
    (by expected active experts), all-reduce, embedding."""
    sequences: Curve
    """LM head and sampler."""
    axes: Axes
    """Grid of the attention table: prefill chunk, its cached tokens, decodes, context of each."""
    attention: Array
    """Attention of all layers on that grid."""
    skew: float
    """How far a batch's attention lies between that of its mean context (0) and of its longest (1)."""


def load_kernel_profile(folder: str | Path, shape: ModelShape, gpu: GpuSpec, tp: int) -> KernelProfile:
    """Reads a folder in one of two layouts: kernels measured in the model's own layers
    (`layer_profile`), or tables of operators over their shapes (`operator_tables`).

    Raises:
        InputError: the folder is neither, is damaged, or does not cover the model.
    """
    from blis_py.latency.layer_profile import read_layer_profile
    from blis_py.latency.operator_tables import is_operator_folder, read_operator_tables

    if is_operator_folder(Path(folder)):
        return read_operator_tables(Path(folder), shape, gpu, tp)
    return read_layer_profile(Path(folder), shape, gpu, tp)


def weighted_sum(parts: list[tuple[float, Curve]]) -> Curve:
    """Of curves, on the union of their points."""
    at = np.unique(np.concatenate([curve.at for _, curve in parts]))
    ns = np.zeros_like(at)
    for weight, curve in parts:
        ns += weight * np.interp(at, curve.at, curve.ns)
    return Curve(at, ns)


def lines(grid: Array, axis: int) -> Iterator[Array]:
    """Views of all lines of the grid along one axis."""
    moved = np.moveaxis(grid, axis, -1)
    return (moved[index] for index in np.ndindex(moved.shape[:-1]))


def fill_gaps(axis: Array, line: Array) -> None:
    """Closes gaps (NaN) between measured points: a profile may be made of several sweeps."""
    known = ~np.isnan(line)
    inside = np.flatnonzero(known)
    if len(inside) >= 2:
        part = slice(inside[0], inside[-1] + 1)
        line[part] = np.interp(axis[part], axis[known], line[known])


def extend(axis: Array, line: Array) -> None:
    """Continues a line beyond its last measured point along its last slope."""
    known = np.flatnonzero(~np.isnan(line))
    if 2 <= len(known) < len(line) and known[-1] == len(known) - 1:
        last, before = known[-1], known[-2]
        slope = (line[last] - line[before]) / (axis[last] - axis[before])
        line[last + 1 :] = line[last] + slope * (axis[last + 1 :] - axis[last])


def cell(axis: Array, value: float) -> tuple[int, float]:
    """The grid cell a value lies in (the last one if beyond), and how far into it."""
    i = min(max(int(np.searchsorted(axis, value, side="right")) - 1, 0), len(axis) - 2)
    return i, float((value - axis[i]) / (axis[i + 1] - axis[i]))


def value_at(curve: Curve, value: float) -> float:
    """Linear between the points and beyond them."""
    if len(curve.at) == 1:
        return float(curve.ns[0])
    i, weight = cell(curve.at, value)
    return float((1 - weight) * curve.ns[i] + weight * curve.ns[i + 1])


def interpolate(axes: Sequence[Array], grid: Array, point: Sequence[float]) -> float:
    """Multilinear in a grid; beyond its edge along the last slope."""
    for axis, value in zip(axes, point, strict=True):
        i, weight = cell(axis, value)
        grid = (1 - weight) * grid[i] + weight * grid[i + 1]
    return float(grid)
