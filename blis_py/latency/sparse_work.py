"""Roofline time of attention that reads a part of the context, on one rank.

An indexer scores the entries of the context for every query, in FP8, and attention reads those with the
highest scores. An entry stands for one token, or for `ratio` of them where the cache is compressed; the last
`window` tokens are read besides where a layer keeps them apart. The projections before and behind attention
are priced as matrix products (`operator_list`); everything else of the layer is in here: indexer, choice,
absorbed projections of latent keys and values, compression.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from blis_py.hardware.gpu import GpuSpec
from blis_py.latency.operator_work import LAUNCH_NS, Priced, logs_of, peak_flops

Sizes = Any
"""A number, or an array of them."""
_LAUNCHES = 4
"""Kernels of a layer that the formulas join: scores, choice, attention, and what surrounds them."""


class SparseLayer(NamedTuple):
    """Entries that a query of one layer scores and reads on a rank."""

    name: str
    """Name of its kernels, in surfaces."""
    title: str
    """Kind of layer, for messages."""
    heads: float
    key_value: int
    """Elements of a key and of a value: products of a head with an entry."""
    entry_bytes: float
    """Bytes of an entry that attention reads, for all its heads."""
    most: int
    """Entries that are read at most besides the window; 0 = all of them."""
    ratio: int = 1
    window: int = 0
    scorers: int = 0
    """Heads of the indexer; 0 = none of its own."""
    score_dim: int = 128
    score_bytes: float = 132.0
    """Bytes of an entry that the indexer reads."""
    token_flops: float = 0.0
    """Operations for a token, whatever its context: absorbed projections, those of the indexer."""
    weight_bytes: float = 0.0
    """Size of the matrices of `token_flops`."""


def sparse(gpu: GpuSpec, layer: SparseLayer, seqs: Sizes, length: Sizes, past: Sizes) -> Priced:
    """Attention of `length` new tokens of each of `seqs` sequences over `past` cached ones."""
    seqs, length, past = (np.asarray(size, dtype=float) for size in (seqs, length, past))
    tokens, mean = seqs * length, past + (length + 1.0) / 2.0
    scored = tokens * mean / layer.ratio
    read = tokens * _mean_below(past, length, layer.most * layer.ratio) / layer.ratio
    read = read + tokens * _mean_below(past, length, layer.window) if layer.window else read
    ns = LAUNCH_NS * _LAUNCHES
    cached = seqs * (past + length) / layer.ratio
    if layer.scorers:
        flops = 2.0 * scored * layer.scorers * layer.score_dim
        ns = ns + _longer(gpu, "fp8", flops, cached * layer.score_bytes + 8.0 * scored)
    attended = np.minimum(read, cached + seqs * min(layer.window, 1 << 30))
    flops = 2.0 * read * layer.heads * layer.key_value
    moved = attended * layer.entry_bytes + 2.0 * tokens * layer.heads * layer.key_value
    ns = ns + _longer(gpu, "bfloat16", flops, moved)
    ns = ns + _longer(gpu, "bfloat16", tokens * layer.token_flops, layer.weight_bytes)
    return Priced(np.asarray(ns), logs_of(tokens, np.maximum(mean, 1.0), layer.heads))


def _mean_below(past: Any, length: Any, most: int) -> Any:
    """Mean of the tokens that a query sees, at most so many; 0 = any number."""
    if not most:
        return past + (length + 1.0) / 2.0
    within = np.clip(most - past, 0.0, length)
    total = within * past + within * (within + 1.0) / 2.0 + (length - within) * most
    return total / np.maximum(length, 1.0)


def _longer(gpu: GpuSpec, form: str, flops: Any, moved_bytes: Any) -> Any:
    compute_ns = flops / (peak_flops(gpu, form) / 1e9)
    return np.maximum(compute_ns, moved_bytes / (gpu.hbm_bytes_per_s / 1e9))
