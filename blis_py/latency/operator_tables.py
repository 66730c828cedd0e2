"""Reader of operator tables over shapes, in the layout of AIConfigurator's database: plain or gzipped CSV.

A folder holds, in ms, for one GPU and one engine:

    gemm_perf                   gemm_dtype, m (tokens), n, k
    context_attention_perf      batch_size, isl, num_heads, num_key_value_heads, kv_cache_dtype
    generation_attention_perf   batch_size, step (cached tokens), num_heads, num_key_value_heads, …
    custom_allreduce_perf       num_gpus, message_size (elements), backend        with --tp
    moe_perf                    moe_dtype, num_tokens, hidden_size, inter_size, topk, num_experts,
                                moe_tp_size, moe_ep_size, distribution            sparse models

Heads are per GPU. Missing values are estimated, and the report states it: matrix shapes that were not
measured, from the share of the roofline that the four nearest shapes reach; the small kernels (two norms,
rotary embedding with KV store, activation), from their memory traffic and a launch each; chunks on top of
cached tokens, from the time per query-key pair of a prompt as long as both.

FP8 weights of dense models and FP8 KV caches have rows of their own. The activations of FP8 products are
quantised before each of a layer's four, which is estimated like the other small kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from blis_py.errors import InputError
from blis_py.files.csv_files import header_of, table_rows
from blis_py.files.paths import exists
from blis_py.hardware.capacity import kv_heads_per_rank
from blis_py.hardware.gpu import GpuSpec
from blis_py.latency.kernel_profile import (
    LARGEST_IN_TABLE,
    Array,
    Axes,
    Curve,
    KernelProfile,
    empty_grid,
    extend,
    fill_gaps,
    interpolate,
    longest_known,
    value_at,
    weighted_sum,
)
from blis_py.models.model_shape import ModelShape
from blis_py.models.weights import Weights

_DTYPE, _FP8 = "bfloat16", "fp8"
_SMALL_KERNELS = 4
"""Per layer: two norms (each with the residual sum), rotary embedding with KV store, activation."""
_QUANTISED_INPUTS = 4
"""Per layer: inputs of the projections of q, k and v, of o, and of both of the feed-forward."""
_SMALL_KERNEL_NS = 2_200.0
"""Time of a small kernel on few tokens. Layer profiles of an RTX 4090 and an RTX PRO 6000 show 1.9 to 3.2
µs."""
_ROUTING = "power_law_1.01"
"""Skew of the expert load, out of three measured: even is faster than real, 1.2 slower."""


def is_operator_folder(folder: Path) -> bool:
    return any(exists(folder / f"gemm_perf.csv{ending}") for ending in ("", ".gz"))


def read_operator_tables(folder: Path, shape: ModelShape, gpu: GpuSpec, tp: int) -> KernelProfile:
    """Compose a model's step from the tables.

    Raises:
        InputError: a table is missing or damaged, or does not cover the model (its heads, experts or
            TP degree; quantised weights).
    """
    plain = shape.weights == Weights()
    if not plain and not _all_fp8(shape):
        problem = "read for 16-bit weights, and for dense models all of whose layers are FP8"
        raise InputError(problem, file=folder, fix="use --latency-model trained")
    gemm = _gemm(folder, gpu)
    parts = _projections(shape, gpu, tp, gemm if plain else _gemm(folder, gpu, _FP8))
    if shape.moe_layers:
        parts += _experts(folder, shape, tp, gemm)
    if tp > 1:
        parts.append((2.0 * shape.layers, _all_reduce(folder, shape, tp)))
    axes, attention, longest = _attention(folder, shape, tp)
    return KernelProfile(
        source=f"operator tables {folder.resolve().name}, small kernels estimated",
        tokens=weighted_sum(parts),
        sequences=_head(shape, gpu, tp, gemm),
        axes=axes,
        attention=shape.layers * attention,
        skew=0.0,
        mixed_decodes=float(axes[2][-1]),
        longest=longest,
    )


def _all_fp8(shape: ModelShape) -> bool:
    w = shape.weights
    return (w.arithmetic, w.attention, w.dense, w.head) == ("fp8", 1, 1, 2) and not shape.moe_layers


# --- matrix products ---------------------------------------------------------------------------------

Gemm = Callable[[float, float], Curve]
"""(n, k) -> time over m."""


def _gemm(folder: Path, gpu: GpuSpec, dtype: str = _DTYPE) -> Gemm:
    points: dict[tuple[float, float], dict[float, float]] = {}
    for n, k, m, ns in _table(folder, "gemm_perf", ("n", "k", "m"), {"gemm_dtype": dtype}):
        curve = points.setdefault((n, k), {})
        curve[m] = min(ns, curve.get(m, ns))
    curves = {shape: _curve(curve) for shape, curve in points.items()}
    shapes = np.array(list(curves))
    peak, width = (gpu.fp16_flops, 2) if dtype == _DTYPE else (gpu.fp8_flops or gpu.fp16_flops, 1)

    def floor_ns(m: Array, n: float, k: float) -> Array:
        flops_ns = 2 * m * n * k / (peak / 1e9)
        moved = width * (n * k + m * k) + 2 * m * n
        floor: Array = np.maximum(flops_ns, moved / (gpu.hbm_bytes_per_s / 1e9))
        return floor

    def lookup(n: float, k: float) -> Curve:
        if (n, k) in curves:
            return curves[n, k]
        distance = (np.log(shapes / [n, k]) ** 2).sum(axis=1)
        nearest = np.argsort(distance)[:4]
        weights = 1 / (distance[nearest] + 1e-3)
        m = curves[tuple(shapes[nearest[0]])].at
        over_floor = np.zeros_like(m)
        for i, weight in zip(nearest, weights / weights.sum(), strict=True):
            near = curves[tuple(shapes[i])]
            over_floor += weight * np.interp(m, near.at, near.ns) / floor_ns(m, *shapes[i])
        return Curve(m, over_floor * floor_ns(m, n, k), float(m[-1]))

    return lookup


def _projections(shape: ModelShape, gpu: GpuSpec, tp: int, gemm: Gemm) -> list[tuple[float, Curve]]:
    """Matrix products and small kernels of all layers."""
    heads, kv_heads = shape.heads // tp, kv_heads_per_rank(shape, tp)
    dense = shape.layers - shape.moe_layers
    width = shape.intermediate // tp
    parts = [
        (shape.layers, gemm((heads + 2 * kv_heads) * shape.head_dim, shape.hidden)),
        (shape.layers, gemm(shape.hidden, heads * shape.head_dim)),
        (shape.layers, _small_kernels(shape, gpu, tp)),
    ]
    if dense:
        parts += [(dense, gemm(2 * width, shape.hidden)), (dense, gemm(shape.hidden, width))]
    return [(float(count), curve) for count, curve in parts]


def _small_kernels(shape: ModelShape, gpu: GpuSpec, tp: int) -> Curve:
    tokens = np.array([0.0, 65536.0])
    rotary = 2 * (shape.heads + 2 * shape.kv_heads) * shape.head_dim / tp
    active = shape.experts_per_token * shape.moe_intermediate + shape.shared_intermediate
    width = 8 * shape.hidden + rotary + 3 * (active if shape.moe_layers else shape.intermediate) / tp
    moved, kernels = tokens * width * shape.dtype_bytes, _SMALL_KERNELS
    if shape.weights != Weights():
        inputs = 2 * shape.hidden + (shape.heads * shape.head_dim + shape.intermediate) / tp
        moved, kernels = moved + tokens * inputs * (shape.dtype_bytes + 1), kernels + _QUANTISED_INPUTS
    ns = kernels * _SMALL_KERNEL_NS + moved / (gpu.hbm_bytes_per_s * gpu.hbm_efficiency / 1e9)
    return Curve(tokens, ns, math.inf)


def _experts(folder: Path, shape: ModelShape, tp: int, gemm: Gemm) -> list[tuple[float, Curve]]:
    having = {
        "moe_dtype": _DTYPE,
        "hidden_size": str(shape.hidden),
        "inter_size": str(shape.moe_intermediate),
        "topk": str(shape.experts_per_token),
        "num_experts": str(shape.experts),
        "moe_tp_size": str(tp),
        "moe_ep_size": "1",
        "distribution": _ROUTING,
    }
    points: dict[float, float] = {}
    for tokens, ns in _table(folder, "moe_perf", ("num_tokens",), having):
        points[tokens] = min(ns, points.get(tokens, ns))
    layers = float(shape.moe_layers)
    parts = [(layers, _curve(points)), (layers, gemm(shape.experts, shape.hidden))]
    if shape.shared_intermediate:
        width = shape.shared_intermediate // tp
        parts += [(layers, gemm(2 * width, shape.hidden)), (layers, gemm(shape.hidden, width))]
    return parts


def _head(shape: ModelShape, gpu: GpuSpec, tp: int, gemm: Gemm) -> Curve:
    """LM head, and a pass over the logits to sample."""
    curve = gemm(shape.vocab // tp, shape.hidden)
    ns = curve.ns + 6 * curve.at * shape.vocab / (gpu.hbm_bytes_per_s / 1e9)
    return Curve(curve.at, ns, curve.measured_to)


def _all_reduce(folder: Path, shape: ModelShape, tp: int) -> Curve:
    points = {
        elements / shape.hidden: ns
        for elements, ns in _table(
            folder,
            "custom_allreduce_perf",
            ("message_size",),
            {"num_gpus": str(tp), "backend": lambda name: name.endswith("graph")},
        )
    }
    return _curve(points)


# --- attention ---------------------------------------------------------------------------------------


def _attention(folder: Path, shape: ModelShape, tp: int) -> tuple[Axes, Array, Array]:
    """One layer's attention on the grid of `KernelProfile`, prompts and decodes separately, and the longest
    context measured for each number of decodes."""
    heads = {
        "num_heads": str(shape.heads // tp),
        "num_key_value_heads": str(kv_heads_per_rank(shape, tp)),
        "kv_cache_dtype": _FP8 if shape.kv_dtype_bytes == 1 else _DTYPE,
    }
    one = {**heads, "batch_size": "1", "attn_dtype": _DTYPE}
    prompt = _curve(dict(_table(folder, "context_attention_perf", ("isl",), one)))  # type: ignore[arg-type]
    counts, contexts, decode, longest = _decodes(folder, heads)
    chunks = np.concatenate([[0.0], prompt.at[prompt.at >= 16]])
    pasts = np.array([0.0, 16, 64, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768])
    grid = np.zeros((len(chunks), len(pasts), len(counts), len(contexts)))
    for i, chunk in enumerate(chunks[1:], start=1):
        for j, past in enumerate(pasts):
            alone = interpolate((counts, contexts), decode, (1, past)) if past else 0.0
            grid[i, j] = max(_chunk_ns(prompt, chunk, past), alone)
    return (chunks, pasts, counts, contexts), grid + decode, longest


def _chunk_ns(prompt: Curve, chunk: float, past: float) -> float:
    """A chunk's share of the query-key pairs of a prompt that ends where it ends."""
    length = past + chunk
    return value_at(prompt, length) * (chunk * past + chunk * chunk / 2) / (length * length / 2)


def _decodes(folder: Path, heads: dict[str, str]) -> tuple[Array, Array, Array, Array]:
    name = "generation_attention_perf"
    points = {(count, step): ns for count, step, ns in _table(folder, name, ("batch_size", "step"), heads)}
    counts = np.array([0.0, *sorted({count for count, _ in points})])
    contexts = np.array([0.0, *sorted({step for _, step in points})])
    grid = empty_grid((counts, contexts), folder / name)
    for (count, step), ns in points.items():
        grid[np.searchsorted(counts, count), np.searchsorted(contexts, step)] = ns
    grid[0] = 0.0
    grid[:, 0] = grid[:, 1]
    longest = longest_known(contexts, grid)
    for line in grid:
        fill_gaps(contexts, line)
        extend(contexts, line)
    for line in grid.T:
        extend(counts, line)
    if np.isnan(grid).any():
        fix = "measure the shortest context with every batch size"
        raise InputError("has too few points to fill its grid", file=folder / name, fix=fix)
    return counts, contexts, grid, longest


# --- files -------------------------------------------------------------------------------------------

Conditions = Mapping[str, str | Callable[[str], bool]]


def _table(
    folder: Path, name: str, columns: tuple[str, ...], having: Conditions
) -> Iterator[tuple[float, ...]]:
    """Rows with the wanted values: the columns and the latency in ns. Columns with a constant value may have
    been dropped from a table, so an absent wanted column matches.

    Raises:
        InputError: no row matches.
    """
    plain = folder / f"{name}.csv"
    path = plain if exists(plain) else folder / f"{name}.csv.gz"
    any_row = False
    needed = (*columns, "latency")
    there = header_of(path)
    filters = [(key, value) for key, value in having.items() if key in there]
    for line, cells in table_rows(path, (*needed, *(key for key, _ in filters)), needed=needed):
        stated = zip(filters, cells[len(needed) :], strict=True)
        if all(v(cell) if callable(v) else cell == v for (_, v), cell in stated):
            any_row = True
            yield _numbers(f"{path}:{line}", cells[: len(needed)])
    if not any_row:
        model = ", ".join(f"{key}={value}" for key, value in having.items() if not callable(value))
        raise InputError(f"holds no measurement with {model}", file=path, fix="use --latency-model roofline")


def _numbers(place: str, cells: list[str]) -> tuple[float, ...]:
    try:
        *numbers, ms = map(float, cells)
    except ValueError:
        numbers, ms = [], math.nan
    if not all(0 <= number <= LARGEST_IN_TABLE for number in (*numbers, ms)):
        problem = f"must be numbers from 0 to {LARGEST_IN_TABLE:g}"
        raise InputError(problem, file=place, value=",".join(cells))
    return (*numbers, ms * 1e6)


def _curve(points: dict[float, float]) -> Curve:
    where = sorted(points)
    return Curve(np.array(where), np.array([points[value] for value in where]), where[-1])
