"""Efficiency of operators: measured over roofline time, as a function of an operator's sizes.

A surface is multilinear between a few knots on logarithmic axes and constant beyond the last ones. The files
in `profiles/operators` hold one surface for each kind of operator and number format of a GPU and an engine,
and a curve over the tokens for experts of the sizes of every bundled model, whose kernels differ from size to
size; `benchmarks/accuracy/train_operators.py` learns them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blis_py.errors import InputError
from blis_py.files import bundled
from blis_py.files.json_files import load_object
from blis_py.files.paths import is_file
from blis_py.latency.operator_work import Priced

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Surface:
    """Natural logarithms of measured over roofline time at the knots."""

    knots: tuple[Array, ...]
    logs: Array

    def ns(self, priced: Priced) -> Array:
        """Measured time of operators of these sizes."""
        ns: Array = priced.ns * np.exp(self.at(priced.at))
        return ns

    def at(self, where: Sequence[Array]) -> Array:
        """At the first of these coordinates; a curve has one knot axis alone."""
        where = where[: len(self.knots)]
        shape = np.broadcast_shapes(*(np.shape(axis) for axis in where))
        total = np.zeros(shape)
        for place, weight in corners_of(self.knots, where):
            total = total + weight * self.logs[place]
        return total


def corners_of(knots: Sequence[Array], where: Sequence[Array]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Indices of the knots around each point, one corner of the cell at a time, with their weights."""
    below, share = [], []
    for axis, at in zip(knots, where, strict=True):
        at = np.clip(at, axis[0], axis[-1])
        i = np.clip(np.searchsorted(axis, at, side="right") - 1, 0, max(len(axis) - 2, 0))
        width = axis[i + 1] - axis[i] if len(axis) > 1 else 1.0
        below.append(i)
        share.append((at - axis[i]) / width)
    for corner in product(*((0, 1) if len(axis) > 1 else (0,) for axis in knots)):
        weight: Any = 1.0
        for up, part in zip(corner, share, strict=True):
            weight = weight * (part if up else 1.0 - part)
        yield tuple(i + up for i, up in zip(below, corner, strict=True)), weight


@dataclass(frozen=True, eq=False)
class Surfaces:
    """Learned kernel times of one engine on one GPU."""

    gpu: str
    engine: str
    source: str
    of: dict[str, Surface]
    """By kind of operator and number format, as `gemm/fp8`."""
    launch_ns: float = 0.0
    """Host time to launch the attention of a layer for one token of a prompt; 0 = not measured."""
    curve_knots: tuple[float, ...] = ()
    curves: dict[str, list[int]] = field(default_factory=dict)
    """By kind, format, routing and `sizes_of`: logarithms in hundredths at `curve_knots`."""

    def has(self, name: str) -> bool:
        return name in self.of or name in self.curves

    def named(self, name: str) -> Surface:
        """The surface or curve of this name."""
        if name in self.of:
            return self.of[name]
        return Surface((np.array(self.curve_knots),), np.array(self.curves[name], dtype=float) / 100.0)


def sizes_of(hidden: float, width: float, local: float, experts: float, top_k: float) -> str:
    """Name of experts of these sizes on a rank.

    Args:
        width: of an expert on the rank.
        local: experts of the rank.
    """
    return f"{hidden:g}x{width:g},{local:g}of{experts:g},{top_k:g}"


def surface_file(gpu: str, engine: str) -> Path:
    name = gpu.lower().replace(" ", "-")
    return bundled.root("profiles") / "operators" / f"{name}-{engine}.json"


@cache
def load_surfaces(gpu: str, engine: str) -> Surfaces | None:
    """The surfaces of a GPU (by the name of its profile) under an engine; None if none were measured.

    Raises:
        InputError: the file is damaged.
    """
    path = surface_file(gpu, engine)
    return read_surfaces(path) if is_file(path) else None


def read_surfaces(path: Path) -> Surfaces:
    """The operator surfaces in a file.

    Raises:
        InputError: the file has no operator surfaces, or damaged ones.
    """
    top = load_object(path)
    try:
        of = {name: _surface(entry) for name, entry in top["surfaces"].items()}
        launch_ns = float(top.get("launch_ns", 0.0))
        knots = tuple(map(float, top.get("curve_knots", ())))
        curves = top.get("curves", {})
        return Surfaces(str(top["gpu"]), str(top["engine"]), str(top["source"]), of, launch_ns, knots, curves)
    except (KeyError, TypeError, ValueError) as error:
        fix = "write it with benchmarks/accuracy/train_operators.py"
        raise InputError("no operator surfaces", file=path, value=str(error), fix=fix) from None


def _surface(entry: dict[str, Any]) -> Surface:
    knots = tuple(np.array(axis, dtype=float) for axis in entry["knots"])
    logs = np.array(entry["percent"], dtype=float) / 100.0
    return Surface(knots, logs.reshape([len(axis) for axis in knots]))


def launching(gpu: str, engine: str, reference: str) -> float:
    """Host time to launch a layer beside a GPU, over that beside a reference; 1 where it was not measured."""
    here, there = (load_surfaces(name, engine) for name in (gpu, reference))
    return here.launch_ns / there.launch_ns if here and there and here.launch_ns and there.launch_ns else 1.0
