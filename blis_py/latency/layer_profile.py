"""Reads kernel times measured layer by layer: the folder layout of LLMServingSim's vLLM profiler.

A folder holds `meta.yaml` and, beside it or under `tp<N>/`, tables in µs (plain or gzipped):

    dense.csv          layer, tokens, time_us                   one operator of one layer
    per_sequence.csv   layer, sequences, time_us                LM head and sampler, once a step
    attention.csv      prefill_chunk, kv_prefill, n_decode, kv_decode, time_us
                       one layer's attention of a mixed batch: one chunk on top of kv_prefill cached
                       tokens, and n_decode sequences of kv_decode tokens each
    moe.csv            tokens, activated_experts, time_us       one sparse layer (MoE models only)
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blis_py.errors import InputError

Array = NDArray[np.float64]

_ONCE = ("embedding", "final_layernorm")
"""Operators that run once a step; all others run in every layer."""
_TWICE = ("layernorm",)
"""Before attention and before the FFN."""


@dataclass(frozen=True)
class Curve:
    """Measured points of a quantity, in ns, over one axis; linear in between and beyond."""

    at: Array
    ns: Array


@dataclass(frozen=True)
class LayerProfile:
    """Kernel times of one model at one TP degree, in ns."""

    model: str
    gpu: str
    source: str
    """What was measured with what, for reports."""
    tokens: Curve
    """All token-wise operators of `layers` layers, and those that run once."""
    sequences: Curve
    """LM head and sampler."""
    axes: tuple[Array, Array, Array, Array]
    """Grid of the attention table: prefill chunk, its cached tokens, decodes, context of each."""
    attention: Array
    """Attention of all layers on that grid."""
    skew: float
    """How far a batch's attention lies between that of its mean context (0) and of its longest (1)."""
    moe: tuple[Array, Array, Array] | None
    """Tokens, active experts, and the sparse part of all layers on that grid."""


def load_layer_profile(folder: str | Path, tp: int, layers: int, moe_layers: int = 0) -> LayerProfile:
    """Reads the profile of a model with `layers` layers, `moe_layers` of them sparse.

    Raises:
        InputError: a table is missing or damaged, or there is none for this TP degree.
    """
    root = Path(folder)
    meta = _meta(root / "meta.yaml")
    tables = root / f"tp{tp}" if (root / f"tp{tp}").is_dir() else root
    if tables == root and tp not in meta.get("tp_degrees", [1]):
        fix = f"use --tp {meta.get('tp_degrees', [1])[0]}"
        raise InputError(f"holds no tables for TP {tp}", file=root / "meta.yaml", key="tp_degrees", fix=fix)
    dense = _curves(tables, "dense", "tokens")
    once = [curve for name, curve in dense.items() if name in _ONCE]
    each = [curve for name, curve in dense.items() if name not in (*_ONCE, "layer")]
    each += [dense[name] for name in _TWICE if name in dense]
    axes, attention = _attention(tables)
    moe = _moe(tables, moe_layers) if moe_layers else None
    return LayerProfile(
        model=str(meta.get("model", "")),
        gpu=str(meta.get("gpu", "")),
        source=f"kernels of {meta.get('model')} measured on {meta.get('gpu')} "
        f"with vLLM {meta.get('vllm_version')}",
        tokens=_sum([(layers, curve) for curve in each] + [(1, curve) for curve in once]),
        sequences=_sum([(1, curve) for curve in _curves(tables, "per_sequence", "sequences").values()]),
        axes=axes,
        attention=layers * attention,
        skew=_skew(meta, tp),
        moe=moe,
    )


def _meta(path: Path) -> Mapping[str, Any]:
    import yaml

    try:
        meta = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        fix = "give the folder that holds meta.yaml and the tables"
        raise InputError("cannot be read", file=path, value=error.strerror, fix=fix) from None
    except yaml.YAMLError as error:
        raise InputError(f"not YAML: {' '.join(str(error).split())}", file=path) from None
    if not isinstance(meta, dict):
        raise InputError("must be a mapping", file=path)
    return meta


def _skew(meta: Mapping[str, Any], tp: int) -> float:
    """The one coefficient fitted to all of the profile's skewed batches, where it says to apply it.

    Its finer tables hold two to eight samples a cell and scatter from -1 to 5.
    """
    fit = meta.get("skew_fit") or {}
    if not fit.get("enabled"):
        return 0.0
    return float((fit.get("per_tp") or {}).get(tp, {}).get("alpha_default", 0.0))


def _rows(folder: Path, name: str, keys: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The rows of a table, with the columns `keys` and `time_us`."""
    plain, packed = folder / f"{name}.csv", folder / f"{name}.csv.gz"
    path = plain if plain.exists() else packed
    columns = (*keys, "time_us")
    try:
        with path.open("rt", encoding="utf-8") if path == plain else gzip.open(path, "rt") as file:
            reader = csv.DictReader(file)
            missing = [key for key in columns if key not in (reader.fieldnames or ())]
            if missing:
                raise InputError("missing column", file=path, key=missing[0])
            for row in reader:
                yield tuple(row[key] for key in columns)
    except (OSError, EOFError) as error:
        raise InputError("cannot be read", file=path, value=str(error)) from None


def _numbers(folder: Path, name: str, row: tuple[str, ...]) -> tuple[float, ...]:
    try:
        numbers = tuple(map(float, row))
    except (TypeError, ValueError):
        numbers = ()
    if not numbers or not all(np.isfinite(numbers)) or min(numbers) < 0:
        raise InputError("must be numbers, not negative", file=folder / name, value=",".join(map(str, row)))
    return numbers


def _curves(folder: Path, name: str, axis: str) -> dict[str, Curve]:
    points: dict[str, dict[float, float]] = {}
    for layer, *row in _rows(folder, name, ("layer", axis)):
        at, us = _numbers(folder, name, tuple(row))
        points.setdefault(layer, {})[at] = us * 1e3
    if not points:
        raise InputError("holds no measurement", file=folder / name)
    return {
        layer: Curve(np.array(sorted(curve)), np.array([curve[at] for at in sorted(curve)]))
        for layer, curve in points.items()
    }


def _sum(parts: list[tuple[int, Curve]]) -> Curve:
    """The weighted sum of curves, on the union of their points."""
    at = np.unique(np.concatenate([curve.at for _, curve in parts]))
    ns = np.zeros_like(at)
    for weight, curve in parts:
        ns += weight * np.interp(at, curve.at, curve.ns)
    return Curve(at, ns)


def _attention(folder: Path) -> tuple[tuple[Array, Array, Array, Array], Array]:
    """The attention table on a full grid; what was too large to be measured is extrapolated.

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
    grid = np.full([len(axis) for axis in axes], np.nan)
    place = [{value: i for i, value in enumerate(axis)} for axis in axes]
    for point, ns in table.items():
        grid[tuple(place[i][value] for i, value in enumerate(point))] = ns
    grid[0, :, 0, :] = 0.0
    grid[0, 1:] = grid[0, :1]
    grid[:, :, 0, 1:] = grid[:, :, 0, :1]
    # A decode has at least a token in the cache: below the first measured context it costs as much.
    grid[:, :, 1:, 0] = grid[:, :, 1:, 1]
    for i in (3, 1, 0):
        for column in _columns(grid, i):
            _fill(axes[i], column)
    for column in _columns(grid, 3):
        _extend(axes[3], column)
    _add_up(grid)
    return axes, grid  # type: ignore[return-value]


def _columns(grid: Array, axis: int) -> Iterator[Array]:
    """Views of all lines of the grid along one axis."""
    moved = np.moveaxis(grid, axis, -1)
    return (moved[index] for index in np.ndindex(moved.shape[:-1]))


def _fill(axis: Array, column: Array) -> None:
    """Closes gaps between measured points of a column: a profile may be made of several sweeps."""
    known = ~np.isnan(column)
    inside = np.flatnonzero(known)
    if len(inside) >= 2:
        part = slice(inside[0], inside[-1] + 1)
        column[part] = np.interp(axis[part], axis[known], column[known])


def _extend(axis: Array, column: Array) -> None:
    """Continues a column beyond its last measured value along its last slope."""
    known = np.flatnonzero(~np.isnan(column))
    if 2 <= len(known) < len(column) and known[-1] == len(known) - 1:
        last, before = known[-1], known[-2]
        slope = (column[last] - column[before]) / (axis[last] - axis[before])
        column[last + 1 :] = column[last] + slope * (axis[last + 1 :] - axis[last])


def _add_up(grid: Array) -> None:
    """Where a chunk on top of a long past was not measured with decodes: the two costs added."""
    alone = grid[:, :, :1, :1]
    together = alone + grid[:, :1] - grid[:, :1, :1, :1]
    np.copyto(grid, together, where=np.isnan(grid))
    np.copyto(grid, alone + grid[:1], where=np.isnan(grid))
    if np.isnan(grid).any():
        raise InputError("attention table has too few points to fill its grid")


def _moe(folder: Path, layers: int) -> tuple[Array, Array, Array]:
    table: dict[tuple[float, float], float] = {}
    for row in _rows(folder, "moe", ("tokens", "activated_experts")):
        tokens, experts, us = _numbers(folder, "moe", row)
        table[tokens, experts] = us * 1e3 * layers
    tokens_axis = np.array(sorted({tokens for tokens, _ in table}))
    experts_axis = np.array(sorted({experts for _, experts in table}))
    grid = np.full((len(tokens_axis), len(experts_axis)), np.nan)
    for (tokens, experts), ns in table.items():
        grid[np.searchsorted(tokens_axis, tokens), np.searchsorted(experts_axis, experts)] = ns
    # Few tokens cannot activate many experts: such cells are never looked up, but take part in sums.
    for row_ns in grid:
        _extend(experts_axis, row_ns)
    if np.isnan(grid).any():
        raise InputError("has holes in its grid", file=folder / "moe")
    return tokens_axis, experts_axis, grid
