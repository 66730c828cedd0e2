"""Reader of kernel times measured layer by layer: the folder layout of LLMServingSim's vLLM profiler.

A folder holds `meta.yaml` and, beside it or under `tp<N>/`, tables in µs (plain or gzipped):

    dense.csv          layer, tokens, time_us                   one operator of one layer
    per_sequence.csv   layer, sequences, time_us                LM head and sampler, once a step
    attention.csv      prefill_chunk, kv_prefill, n_decode, kv_decode, time_us
                       one layer's attention of a mixed batch: one chunk on top of kv_prefill cached
                       tokens, and n_decode sequences of kv_decode tokens each
    moe.csv            tokens, activated_experts, time_us       one sparse layer (MoE models only)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from blis_py.errors import InputError
from blis_py.files.csv_files import table_rows
from blis_py.files.parts import FilePart
from blis_py.files.paths import exists, is_folder
from blis_py.files.profiles import squeeze, stem_of
from blis_py.files.yaml_files import load_mapping
from blis_py.hardware.gpu import GpuSpec
from blis_py.latency.kernel_profile import (
    LARGEST_IN_TABLE,
    Array,
    Axes,
    Curve,
    KernelProfile,
    continued,
    empty_grid,
    extend,
    fill_gaps,
    interpolate,
    lines,
    longest_known,
    weighted_sum,
)
from blis_py.latency.work import distinct_experts
from blis_py.models.model_shape import ModelShape, known_models, load_model, same_sizes

_ONCE = ("embedding", "final_layernorm")
"""Operators that run once per step; all others run in every layer."""
_TWICE = ("layernorm",)
"""Before attention and before the FFN."""


def read_layer_profile(root: Path, shape: ModelShape, gpu: GpuSpec, tp: int) -> KernelProfile:
    """Read the profile of a model.

    Raises:
        InputError: a table is missing or damaged, measured for another model, or there is none for
            this TP degree.
    """
    meta = load_mapping(root / "meta.yaml")
    stated = FilePart(meta, root / "meta.yaml", "")
    _check_model(str(meta.get("model", "")), shape, root)
    tables = root / f"tp{tp}" if is_folder(root / f"tp{tp}") else root
    degrees = (
        [each.whole(1, 4096) for each in stated.of("tp_degrees").items()] if "tp_degrees" in meta else [1]
    )
    if tables == root and tp not in degrees:
        fix = f"use --tp {degrees[0]}" if degrees else "name the degree in tp_degrees"
        raise InputError(f"holds no tables for TP {tp}", file=root / "meta.yaml", key="tp_degrees", fix=fix)
    dense = _curves(tables, "dense", "tokens")
    once = [curve for name, curve in dense.items() if name in _ONCE]
    each = [curve for name, curve in dense.items() if name not in (*_ONCE, "layer")]
    each += [dense[name] for name in _TWICE if name in dense]
    per_sequence = _curves(tables, "per_sequence", "sequences")
    attention = _attention(tables)
    parts = [(float(shape.layers), curve) for curve in each] + [(1.0, curve) for curve in once]
    if shape.moe_layers and "layernorm" not in dense:
        raise InputError("holds no layernorm", file=tables / "dense")
    if shape.moe_layers:
        parts.append((shape.moe_layers, _moe(tables, shape, dense["layernorm"])))
    if tp > 1:
        parts.append((2.0 * shape.layers, _all_reduce(shape, gpu, tp)))
    return KernelProfile(
        source=f"kernels of {meta.get('model')} measured on {meta.get('gpu')} "
        f"with vLLM {meta.get('vllm_version')}" + (", all-reduce from the datasheet" if tp > 1 else ""),
        tokens=weighted_sum(parts),
        sequences=weighted_sum([(1.0, curve) for curve in per_sequence.values()]),
        axes=attention.axes,
        attention=shape.layers * attention.grid,
        skew=_skew(stated, tp),
        mixed_decodes=attention.mixed_decodes,
        longest=attention.longest,
    )


def _check_model(measured: str, shape: ModelShape, folder: Path) -> None:
    if squeeze(measured.rsplit("/", 1)[-1]) == squeeze(shape.name.rsplit("/", 1)[-1]):
        return
    bundled = stem_of("models", measured) if measured else None
    if bundled in known_models() and same_sizes(load_model(str(bundled)), shape):
        return
    fix = f"use --model {measured}, with its config.json as --model-config"
    if bundled in known_models():
        fix = f"use --model {measured}"
    elif not measured:
        fix = "name the model in meta.yaml"
    raise InputError(
        f"was measured for another model than {shape.name}", file=folder, value=measured, fix=fix
    )


def _skew(meta: FilePart, tp: int) -> float:
    """The coefficient fitted to all of the profile's skewed batches, if the profile enables it.

    Its finer tables hold two to eight samples per cell and scatter from -1 to 5.
    """
    if not meta.mapping().get("skew_fit") or not meta.of("skew_fit").mapping().get("enabled"):
        return 0.0
    fit = meta.of("skew_fit")
    if not fit.mapping().get("per_tp") or tp not in fit.of("per_tp").mapping(int):
        return 0.0
    skew = fit.of("per_tp").of(tp)
    return skew.of("alpha_default").number(-100, 100) if "alpha_default" in skew.mapping() else 0.0


def _rows(folder: Path, name: str, keys: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The rows of a table, with the columns `keys` and `time_us`."""
    plain = folder / f"{name}.csv"
    path = plain if exists(plain) else folder / f"{name}.csv.gz"
    columns = (*keys, "time_us")
    for _, cells in table_rows(path, columns):
        yield tuple(cells)


def _numbers(folder: Path, name: str, row: tuple[str, ...]) -> tuple[float, ...]:
    try:
        numbers = tuple(map(float, row))
    except (TypeError, ValueError):
        numbers = ()
    if not numbers or not all(0 <= number <= LARGEST_IN_TABLE for number in numbers):
        problem = f"must be numbers from 0 to {LARGEST_IN_TABLE:g}"
        raise InputError(problem, file=folder / name, value=",".join(map(str, row)))
    return numbers


def _curves(folder: Path, name: str, axis: str) -> dict[str, Curve]:
    points: dict[str, dict[float, float]] = {}
    for layer, *row in _rows(folder, name, ("layer", axis)):
        at, us = _numbers(folder, name, tuple(row))
        points.setdefault(layer, {})[at] = us * 1e3
    if not points:
        raise InputError("holds no measurement", file=folder / name)
    return {
        layer: Curve(np.array(sorted(curve)), np.array([curve[at] for at in sorted(curve)]), max(curve))
        for layer, curve in points.items()
    }


class _Attention(NamedTuple):
    """See `KernelProfile`; for one layer."""

    axes: Axes
    grid: Array
    mixed_decodes: float
    longest: Array


def _attention(folder: Path) -> _Attention:
    """The attention table on a full grid; cells too large to be measured are extrapolated.

    An axis value of 0 means that the part is absent, so its length axis has no meaning there.
    """
    keys = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
    table: dict[tuple[float, ...], float] = {}
    for row in _rows(folder, "attention", keys):
        numbers = _numbers(folder, "attention", row)
        table[numbers[:4]] = numbers[4] * 1e3
    if not table:
        raise InputError("holds no measurement", file=folder / "attention")
    axes = tuple(np.array(sorted({0.0} | {point[i] for point in table})) for i in range(4))
    for i in (0, 2, 3):
        if len(axes[i]) == 1:
            raise InputError("holds no measurement above 0", file=folder / "attention", key=keys[i])
    grid = empty_grid(axes, folder / "attention")
    place = [{value: i for i, value in enumerate(axis)} for axis in axes]
    for point, ns in table.items():
        grid[tuple(place[i][value] for i, value in enumerate(point))] = ns
    grid[0, :, 0, :] = 0.0
    grid[0, 1:] = grid[0, :1]
    grid[:, :, 0, 1:] = grid[:, :, 0, :1]
    # A decode has at least one cached token: below the first measured context it costs the same.
    grid[:, :, 1:, 0] = grid[:, :, 1:, 1]
    for i in (3, 1, 0, 2):
        for column in lines(grid, i):
            fill_gaps(axes[i], column)
    beside = np.atleast_1d(~np.isnan(grid[1:, :, :, 1:]).all(axis=(0, 1, 3)))
    beside[0] = True
    mixed_decodes, longest = axes[2][beside][-1], longest_known(axes[3], grid[0, 0])
    for column in lines(grid, 3):
        extend(axes[3], column)
    _fill_mixed(axes[2], grid)
    return _Attention(axes, grid, mixed_decodes, longest)  # type: ignore[arg-type]


def _fill_mixed(decodes: Array, grid: Array) -> None:
    """Fill in batches of a chunk and decodes that were not measured together.

    The two costs at least add up. Decodes beside a chunk take longer than alone, though, so larger numbers of
    them are extrapolated from the measured ones. And more work never costs less.
    """
    missing = np.isnan(grid)
    added = grid.copy()
    alone = grid[:, :, :1, :1]
    np.copyto(added, alone + grid[:, :1] - grid[:, :1, :1, :1], where=missing)
    np.copyto(added, alone + grid[:1], where=np.isnan(added))
    for column in lines(grid, 2):
        extend(decodes, column)
    np.copyto(grid, np.fmax(grid, added), where=missing)
    if np.isnan(grid).any():
        raise InputError("attention table has too few points to fill its grid")
    for i in range(grid.ndim):
        np.copyto(grid, np.maximum.accumulate(grid, axis=i), where=missing)


def _moe(folder: Path, shape: ModelShape, like: Curve) -> Curve:
    """One sparse layer at the expected number of active experts, at the points of another curve."""
    rows = [_numbers(folder, "moe", row) for row in _rows(folder, "moe", ("tokens", "activated_experts"))]
    if not rows:
        raise InputError("holds no measurement", file=folder / "moe")
    axes = tuple(np.array(sorted({row[i] for row in rows})) for i in range(2))
    grid = empty_grid(axes, folder / "moe")
    for count, active, us in rows:
        grid[np.searchsorted(axes[0], count), np.searchsorted(axes[1], active)] = us * 1e3
    for line in grid:
        fill_gaps(axes[1], line)
        extend(axes[1], line)
    _fill_corners(grid)
    longer, grid = continued(axes, grid, (0, 1))
    active_experts = [distinct_experts(shape.experts, shape.experts_per_token, int(n)) for n in like.at]
    ns = [interpolate(longer, grid, (n, e)) for n, e in zip(like.at, active_experts, strict=True)]
    return Curve(like.at, np.array(ns), float(axes[0][-1]))


def _fill_corners(grid: Array) -> None:
    """Complete a table (tokens, active experts) that is a triangle or a band.

    Few tokens cannot activate many experts, and many hardly few: such cells cannot be measured. They are
    rarely looked up, but contribute to sums with those that are. Each follows the line of the next number of
    tokens, relative to the last cell that both have, and never costs less than less work.
    """
    missing = np.isnan(grid)
    known = [np.flatnonzero(~np.isnan(line)) for line in grid]
    for i in reversed(range(len(grid))):
        last, line = known[i][-1], grid[i]
        like = grid[i + 1] if i + 1 < len(grid) else line
        line[last + 1 :] = line[last] * _relative(like, last)[last + 1 :]
    for i, line in enumerate(grid):
        first = known[i][0]
        like = grid[i - 1] if i else line
        line[:first] = line[first] * _relative(like, first)[:first]
    for axis in range(grid.ndim):
        np.copyto(grid, np.maximum.accumulate(grid, axis=axis), where=missing)


def _relative(line: Array, at: int) -> Array:
    """A line divided by its value at a cell; 1 if either is unknown."""
    relative: Array = np.nan_to_num(line / line[at], nan=1.0)
    return relative


def _all_reduce(shape: ModelShape, gpu: GpuSpec, tp: int) -> Curve:
    """A ring over the datasheet's link."""
    tokens = np.array([0.0, 65536.0])
    volume = tokens * shape.hidden * shape.dtype_bytes * 2 * (tp - 1) / tp
    gpu.require_links(tp)
    ns = gpu.all_reduce_overhead_ns + volume / (gpu.link_bytes_per_s * gpu.link_efficiency / 1e9)
    return Curve(tokens, ns, math.inf)
