"""Roofline time of single operators, on one rank, and the sizes on which their efficiency depends.

Each function returns the time in ns that arithmetic or memory traffic takes at the datasheet's peaks,
whichever is longer, plus the launch of a kernel; and the coordinates of the operator on its surface
(`surfaces`), which are logarithms to base 2 of its sizes. Sizes are numbers or arrays.

    gemm      m x k times k x n
    experts   both products of `pairs` (token, expert) pairs on the `local` experts of a rank
    marlin    the same by the kernel of this name
    context   causal attention of `seqs` prompts of `length` tokens, over `past` cached ones
    decode    attention of `seqs` tokens over `context` cached ones each
    mla_*     the same of multi-head latent attention: expanded for prompts, absorbed for decodes
    absorb    one of the two batched products by which a decode absorbs the up-projection of keys or values
    linear_*  convolution and gated delta rule of linear attention
    move      one pass over `elements`: norms, activation, rotary embedding, quantisation
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from blis_py.hardware.gpu import GpuSpec

Sizes = Any
"""A number, or an array of them."""
LAUNCH_NS = 2_000.0
STREAMING = 0.75
"""Share of the memory bandwidth that a pass over its input reaches."""
WEIGHT_BYTES = {
    "bfloat16": 2.0,
    "fp8": 1.0,
    "fp8_block": 1.0,
    "nvfp4": 0.5625,
    "w4a16_mxfp4": 0.53125,
    "w4a8_mxfp4_mxfp8": 0.53125,
    "int4_wo": 0.53125,
}
"""Number format of an operator -> bytes of a weight, with its scales."""
MARLIN_FORMS = ("w4a16_mxfp4", "int4_wo")
"""Formats that Marlin multiplies alike: weights of 4 bits, scaled in groups of 32, activations of 16."""
_INPUT_BYTES = {"fp8": 1.0, "fp8_block": 1.0, "nvfp4": 0.5625, "w4a8_mxfp4_mxfp8": 1.0}
KV_BYTES = {"bfloat16": 2.0, "fp8": 1.0}
_FP32_SHARE = {True: 1 / 30, False: 1 / 15}
"""FP32 over dense 16-bit arithmetic, by whether a GPU multiplies in 4 bits (NVIDIA's datasheets: B200 75 of
2,250, H100 67 of 989 TFLOP/s)."""


class Priced(NamedTuple):
    """An operator at the roofline."""

    ns: NDArray[np.float64]
    at: tuple[NDArray[np.float64], ...]
    """Coordinates on its surface."""


def gemm(gpu: GpuSpec, form: str, m: Sizes, n: Sizes, k: Sizes) -> Priced:
    moved = WEIGHT_BYTES[form] * n * k + _INPUT_BYTES.get(form, 2.0) * m * k + 2.0 * m * n
    return Priced(_roofline(gpu, form, 2.0 * m * n * k, moved), logs_of(m, n, k))


def fp32_arithmetic(gpu: GpuSpec, m: Sizes, n: Sizes, k: Sizes) -> Any:
    """Time in ns that a matrix product in FP32 takes at least: it runs beside the tensor cores."""
    share = _FP32_SHARE[bool(gpu.fp4_flops)]
    return 2.0 * m * n * k / (gpu.fp16_flops * share / 1e9)


def experts(
    gpu: GpuSpec,
    form: str,
    tokens: Sizes,
    hidden: Sizes,
    width: Sizes,
    top_k: Sizes,
    local: Sizes,
    ep: Sizes,
    even: bool = False,
    matrices: int = 3,
) -> Priced:
    """
    Args:
        tokens: of all ranks that share the experts.
        matrices: of an expert: 3 with a gate, 2 without.
        width: of an expert on one rank.
        local: experts of the rank; `ep` times as many in all.
        even: as many tokens for each expert, as in tables of balanced routing; otherwise tokens choose
            independently, and few of them leave experts unused whose weights are not read.
    """
    pairs = tokens * top_k / ep
    used = np.minimum(local, pairs) if even else local * (1.0 - (1.0 - top_k / (local * ep)) ** tokens)
    moved = used * (1.0 * matrices) * hidden * width * WEIGHT_BYTES[form]
    moved = moved + np.minimum(tokens, pairs) * 4.0 * hidden + pairs * 6.0 * width
    ns = _roofline(gpu, form, 2.0 * matrices * pairs * hidden * width, moved)
    return Priced(ns, logs_of(np.maximum(pairs, 0.125), local, hidden, width))


def marlin(
    gpu: GpuSpec,
    tokens: Sizes,
    hidden: Sizes,
    width: Sizes,
    top_k: Sizes,
    local: Sizes,
    ep: Sizes,
    even: bool = False,
) -> Priced:
    """The same with weights of 4 bits by Marlin, whose tiles hold tokens of one expert: what an expert
    receives decides how far it stays below the roofline."""
    priced = experts(gpu, "w4a16_mxfp4", tokens, hidden, width, top_k, local, ep, even)
    return Priced(priced.ns, logs_of(tokens * top_k / (ep * np.asarray(local, dtype=float)), width))


def context(
    gpu: GpuSpec,
    seqs: Sizes,
    length: Sizes,
    past: Sizes,
    heads: Sizes,
    kv_heads: Sizes,
    dim: int,
    window: int,
) -> Priced:
    pairs = length * past + length * (length + 1) / 2.0
    if window:
        pairs = np.minimum(pairs, np.asarray(length, dtype=float) * window)
    moved = seqs * 2.0 * dim * (2.0 * length * heads + 2.0 * (length + past) * kv_heads)
    ns = _roofline(gpu, "bfloat16", 4.0 * seqs * pairs * heads * dim, moved)
    alike = _whole_length(length, np.minimum(past, window) if window else past)
    return Priced(ns, logs_of(alike, seqs * np.asarray(heads), np.asarray(heads) / kv_heads))


def decode(
    gpu: GpuSpec,
    kv_form: str,
    seqs: Sizes,
    cached: Sizes,
    heads: Sizes,
    kv_heads: Sizes,
    dim: int,
    window: int,
) -> Priced:
    keys = np.minimum(cached, window) if window else np.asarray(cached, dtype=float)
    moved = seqs * dim * (2.0 * keys * kv_heads * KV_BYTES[kv_form] + 4.0 * heads)
    ns = _roofline(gpu, "bfloat16", 4.0 * seqs * keys * heads * dim, moved)
    return Priced(ns, logs_of(seqs, np.maximum(cached, 1), kv_heads, np.asarray(heads) / kv_heads))


def mla_context(gpu: GpuSpec, seqs: Sizes, length: Sizes, past: Sizes, heads: Sizes) -> Priced:
    pairs = length * past + length * (length + 1) / 2.0
    flops = 2.0 * seqs * pairs * heads * (192 + 128)
    moved = seqs * heads * 2.0 * (length * (192 + 128) + (length + past) * (192 + 128))
    return Priced(_roofline(gpu, "bfloat16", flops, moved), logs_of(_whole_length(length, past), seqs, heads))


def _whole_length(length: Sizes, past: Sizes) -> Any:
    """Length of a prompt with nothing cached that has as many query-key pairs: tables measured those alone.

    By vLLM's attention on two cards (layer profiles of Llama-3.1-8B), chunks of 512 tokens and more are 2 to
    20 % off at the efficiency of that length, 3 to 57 % at that of the chunk's own.
    """
    return np.sqrt(np.asarray(length, dtype=float) * (length + 2.0 * np.asarray(past, dtype=float)))


def mla_decode(gpu: GpuSpec, kv_form: str, seqs: Sizes, cached: Sizes, heads: Sizes) -> Priced:
    flops = 2.0 * seqs * cached * np.asarray(heads) * (576 + 512)
    moved = seqs * (cached * 576 * KV_BYTES[kv_form] + 2.0 * np.asarray(heads) * (576 + 512))
    return Priced(_roofline(gpu, "bfloat16", flops, moved), logs_of(seqs, np.maximum(cached, 1), heads))


def absorb(gpu: GpuSpec, tokens: Sizes, heads: Sizes) -> Priced:
    heads = np.asarray(heads, dtype=float)
    flops, moved = 2.0 * tokens * heads * 128 * 512, 2.0 * heads * (128 * 512 + tokens * (128 + 512))
    return Priced(_roofline(gpu, "bfloat16", flops, moved), logs_of(tokens, heads))


LINEAR_DIM = 128
"""Keys and values of a head of linear attention in the tables."""


def linear_context(gpu: GpuSpec, tokens: Sizes, value_heads: Sizes) -> Priced:
    flops = 2.0 * tokens * np.asarray(value_heads) * 128 * 128 * 3
    moved = 12.0 * tokens * np.asarray(value_heads) * 128
    return Priced(_roofline(gpu, "bfloat16", flops, moved), logs_of(tokens, value_heads))


def linear_decode(gpu: GpuSpec, seqs: Sizes, value_heads: Sizes) -> Priced:
    moved = seqs * np.asarray(value_heads, dtype=float) * (2.0 * 4.0 * 128 * 128 + 12.0 * 128)
    return Priced(_roofline(gpu, "bfloat16", 0.0, moved), logs_of(seqs, value_heads))


def streams(gpu: GpuSpec, tokens: Sizes, count: int, hidden: Sizes) -> Priced:
    """Mixing of `count` hidden vectors of a token before and after both parts of a layer."""
    elements = np.asarray(tokens, dtype=float) * hidden
    return Priced(_roofline(gpu, "bfloat16", 0.0, 4.0 * elements * (3 * count + 2)), logs_of(elements))


def move(gpu: GpuSpec, rows: Sizes, width: Sizes) -> Priced:
    elements = np.asarray(rows, dtype=float) * width
    return Priced(_roofline(gpu, "bfloat16", 0.0, 3.0 * elements / STREAMING), logs_of(elements))


def all_reduce(gpu: GpuSpec, ranks: int, message_bytes: Sizes) -> Priced:
    """A ring over the datasheet's link."""
    ns = message_bytes * 2.0 * (ranks - 1) / ranks / (gpu.link_bytes_per_s / 1e9) + LAUNCH_NS
    return Priced(np.asarray(ns, dtype=float), logs_of(np.maximum(message_bytes, 1)))


def all_to_all(gpu: GpuSpec, tokens: Sizes, hidden: Sizes, top_k: Sizes) -> Priced:
    """Dispatch of each token to its experts in 8 bits, and the way back in 16.

    Args:
        tokens: of one rank.
    """
    moved = np.asarray(tokens, dtype=float) * hidden * np.minimum(top_k, 8) * 3.0
    ns = moved / (gpu.link_bytes_per_s / 1e9) + LAUNCH_NS
    return Priced(ns, logs_of(np.maximum(tokens, 1), hidden))


def peak_flops(gpu: GpuSpec, form: str) -> float:
    """Peak of the arithmetic that a format is multiplied in; the next wider one the GPU has."""
    if form == "nvfp4" and gpu.fp4_flops:
        return gpu.fp4_flops
    if form in ("fp8", "fp8_block", "w4a8_mxfp4_mxfp8") and gpu.fp8_flops:
        return gpu.fp8_flops
    return gpu.fp16_flops


def _roofline(gpu: GpuSpec, form: str, flops: Sizes, moved_bytes: Sizes) -> NDArray[np.float64]:
    compute_ns, memory_ns = flops / (peak_flops(gpu, form) / 1e9), moved_bytes / (gpu.hbm_bytes_per_s / 1e9)
    ns: NDArray[np.float64] = np.maximum(compute_ns, memory_ns) + LAUNCH_NS
    return ns


def logs_of(*sizes: Sizes) -> tuple[NDArray[np.float64], ...]:
    """Coordinates on a surface."""
    return tuple(np.log2(np.maximum(np.asarray(size, dtype=float), 2.0**-10)) for size in sizes)
