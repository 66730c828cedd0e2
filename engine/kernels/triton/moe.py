"""The expert MLPs as two grouped matrix products over rows aligned to experts.

The first gathers the tokens of each tile, multiplies by the gate and up halves of the expert's w13 at once
and applies SwiGLU; the second multiplies by w2 and weighs the rows; a third, small kernel adds up each
token's rows in a fixed order. At decode sizes the time is that of reading the weights: a tile of rows is high
enough to hold nearly every expert's rows, so that each weight is read once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl

from engine.kernels.gpu import gpu_of
from engine.kernels.moe import SWIGLU_STEEPNESS, align_experts
from engine.kernels.promise import Promise
from engine.kernels.triton.autotune import INTERPRETED, Fits, autotuned

Tensor = torch.Tensor
MIN_BLOCK_M, MAX_BLOCK_M = 16, 128
COMBINE_BLOCK = 1024
_STEEPNESS = tl.constexpr(SWIGLU_STEEPNESS)

_VARYING = ["num_rows", "tiles"]


def _config(block_n: int, block_k: int, num_warps: int, num_stages: int) -> Any:
    return triton.Config({"BLOCK_N": block_n, "BLOCK_K": block_k}, num_warps=num_warps, num_stages=num_stages)


def shared_bytes(config: Any, height: int, matrices: int, element_bytes: int) -> int:
    """Shared memory in bytes of a pipeline over tiles of rows and of `matrices` weight matrices.

    wgmma, which takes 64 rows or more, reads every stage from shared memory; for lower tiles one of the
    stages is in registers.
    """
    tiles = height + matrices * config.kwargs["BLOCK_N"]
    stages = config.num_stages if height >= 64 else config.num_stages - 1
    return stages * tiles * config.kwargs["BLOCK_K"] * element_bytes


def _fits(matrices: int) -> Fits:
    """Predicate: whether a configuration's pipeline fits into the GPU's shared memory."""

    def fits(config: Any, launch: Mapping[str, Any]) -> bool:
        x = launch["hidden"]
        needed = shared_bytes(config, launch["BLOCK_M"], matrices, x.element_size())
        return needed <= gpu_of(x.device).shared_bytes

    return fits


# Distinct kinds only: narrow and wide tiles, deep and shallow pipelines. BLOCK_M follows from the load.
# Every configuration is timed once for each BLOCK_M and shape, so each costs seconds at start-up.
CONFIGS = [
    _config(64, 64, 4, 4),
    _config(64, 128, 4, 3),
    _config(64, 128, 8, 4),
    _config(128, 64, 8, 4),
    _config(128, 128, 8, 3),
    _config(32, 128, 4, 4),
]


@autotuned(CONFIGS, key=["BLOCK_M", "D", "F"], fits=_fits(matrices=2))
@triton.jit(do_not_specialize=_VARYING)
def _gate_up(
    hidden,
    x,
    w13,
    b13,
    rows,
    tile_experts,
    swiglu_limit,
    num_rows,
    tiles,
    stride_x,
    TOP_K: tl.constexpr,
    D: tl.constexpr,
    F: tl.constexpr,
    CLAMPED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    F32: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    tile = tl.program_id(0) % tiles
    expert = tl.load(tile_experts + tile).to(tl.int64)
    if expert < 0:
        return
    row = tl.load(rows + tile * BLOCK_M + tl.arange(0, BLOCK_M))
    real = row < num_rows
    columns = tl.program_id(0) // tiles * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    a = x + (row // TOP_K).to(tl.int64)[:, None] * stride_x + k[None, :]
    gate = w13 + expert * (2 * F * D) + columns[:, None] * D + k[None, :]
    up = gate + F * D
    gates = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    ups = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, D, BLOCK_K):
        within = k[None, :] < D - start
        a_tile = _load(a + start, real[:, None], within, True, D % BLOCK_K != 0, F32)
        gate_tile = _load(gate + start, columns[:, None] < F, within, F % BLOCK_N != 0, D % BLOCK_K != 0, F32)
        up_tile = _load(up + start, columns[:, None] < F, within, F % BLOCK_N != 0, D % BLOCK_K != 0, F32)
        gates = tl.dot(a_tile, gate_tile.T, gates, input_precision="ieee")
        ups = tl.dot(a_tile, up_tile.T, ups, input_precision="ieee")
    if CLAMPED:
        bias = b13 + expert * (2 * F) + columns
        gates += tl.load(bias, mask=columns < F, other=0.0).to(tl.float32)[None, :]
        ups += tl.load(bias + F, mask=columns < F, other=0.0).to(tl.float32)[None, :]
        gates = tl.minimum(gates, swiglu_limit)
        ups = tl.minimum(tl.maximum(ups, -swiglu_limit), swiglu_limit)
        result = (ups + 1) * gates * tl.sigmoid(_STEEPNESS * gates)
    else:
        result = gates * tl.sigmoid(gates) * ups
    place = hidden + row.to(tl.int64)[:, None] * F + columns[None, :]
    tl.store(place, result.to(hidden.dtype.element_ty), mask=real[:, None] & (columns[None, :] < F))


@autotuned(CONFIGS, key=["BLOCK_M", "D", "F"], fits=_fits(matrices=1))
@triton.jit(do_not_specialize=_VARYING)
def _down(
    products,
    hidden,
    w2,
    b2,
    weights,
    rows,
    tile_experts,
    num_rows,
    tiles,
    D: tl.constexpr,
    F: tl.constexpr,
    BIASED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    F32: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    tile = tl.program_id(0) % tiles
    expert = tl.load(tile_experts + tile).to(tl.int64)
    if expert < 0:
        return
    row = tl.load(rows + tile * BLOCK_M + tl.arange(0, BLOCK_M))
    real = row < num_rows
    columns = tl.program_id(0) // tiles * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    a = hidden + row.to(tl.int64)[:, None] * F + k[None, :]
    b = w2 + expert * (D * F) + columns[:, None] * F + k[None, :]
    sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, F, BLOCK_K):
        within = k[None, :] < F - start
        a_tile = _load(a + start, real[:, None], within, True, F % BLOCK_K != 0, F32)
        b_tile = _load(b + start, columns[:, None] < D, within, D % BLOCK_N != 0, F % BLOCK_K != 0, F32)
        sums = tl.dot(a_tile, b_tile.T, sums, input_precision="ieee")
    if BIASED:
        sums += tl.load(b2 + expert * D + columns, mask=columns < D, other=0.0).to(tl.float32)[None, :]
    weight = tl.load(weights + row, mask=real, other=0.0)
    place = products + row.to(tl.int64)[:, None] * D + columns[None, :]
    inside = real[:, None] & (columns[None, :] < D)
    tl.store(place, (sums * weight[:, None]).to(products.dtype.element_ty), mask=inside)


@triton.jit
def _load(pointers, outer, inner, OUTER: tl.constexpr, INNER: tl.constexpr, F32: tl.constexpr):
    """A tile, masked only along the dimensions where it may overhang."""
    if OUTER and INNER:
        tile = tl.load(pointers, mask=outer & inner, other=0.0)
    elif OUTER:
        tile = tl.load(pointers, mask=outer, other=0.0)
    elif INNER:
        tile = tl.load(pointers, mask=inner, other=0.0)
    else:
        tile = tl.load(pointers)
    return tile.to(tl.float32) if F32 else tile


@triton.jit
def _combine(out, products, TOP_K: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    dims = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    total = tl.zeros((BLOCK_D,), dtype=tl.float32)
    for choice in tl.static_range(TOP_K):
        total += tl.load(products + (token * TOP_K + choice) * D + dims, mask=dims < D, other=0.0).to(
            tl.float32
        )
    tl.store(out + token * D + dims, total.to(out.dtype.element_ty), mask=dims < D)


def block_m(num_rows: int, num_experts: int) -> int:
    """Rows per tile: enough for nearly every expert's share of an even load, within the tiles' limits."""
    share = num_rows * 5 // (num_experts * 4)
    return min(MAX_BLOCK_M, max(MIN_BLOCK_M, triton.next_power_of_2(max(share, 1))))


def fused_moe(
    x: Tensor,
    w13: Tensor,
    w2: Tensor,
    weights: Tensor,
    ids: Tensor,
    b13: Tensor | None = None,
    b2: Tensor | None = None,
    swiglu_limit: float = 0.0,
) -> Tensor:
    """See `engine.kernels.moe.fused_moe`."""
    tokens, top_k = ids.shape
    experts, d, f = w2.shape
    num_rows = tokens * top_k
    if not num_rows:
        return torch.empty_like(x)
    height = block_m(num_rows, experts)
    rows, tile_experts, _ = align_experts(ids, experts, height)
    tiles = tile_experts.shape[0]
    hidden = torch.empty(num_rows, f, dtype=x.dtype, device=x.device)
    products = torch.empty(num_rows, d, dtype=x.dtype, device=x.device)
    out = torch.empty(tokens, d, dtype=x.dtype, device=x.device)
    wide = INTERPRETED or x.dtype == torch.float32

    def columns(n: int) -> Any:
        return lambda meta: (tiles * triton.cdiv(n, meta["BLOCK_N"]),)

    _gate_up[columns(f)](
        hidden,
        x,
        w13,
        b13,
        rows,
        tile_experts,
        swiglu_limit,
        num_rows,
        tiles,
        x.stride(0),
        TOP_K=top_k,
        D=d,
        F=f,
        CLAMPED=swiglu_limit > 0,
        BLOCK_M=height,
        F32=wide,
    )
    _down[columns(d)](
        products,
        hidden,
        w2,
        b2,
        weights,
        rows,
        tile_experts,
        num_rows,
        tiles,
        D=d,
        F=f,
        BIASED=b2 is not None,
        BLOCK_M=height,
        F32=wide,
    )
    block = min(COMBINE_BLOCK, triton.next_power_of_2(d))
    _combine[(tokens, triton.cdiv(d, block))](out, products, TOP_K=top_k, D=d, BLOCK_D=block)
    return out


def promise(kernel: str, constants: Mapping[str, Any]) -> Promise:
    """Tiles of 64 rows or more are multiplied by wgmma; see `engine.kernels.aot`.

    Without a pipeline (one tile as deep as the matrix) there is no asynchronous copy.
    """
    if kernel == "_combine":
        return Promise(max_registers=64)
    deep = constants["D" if kernel == "_gate_up" else "F"] > constants["BLOCK_K"]
    return Promise(("HGMMA" if constants["BLOCK_M"] >= 64 else "HMMA", *(["LDGSTS"] if deep else [])))
