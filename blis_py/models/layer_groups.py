"""Bytes that the layers of a model cache, by kind of layer: where all sizes of KV and states are from."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import NamedTuple, Protocol

from blis_py.models.attention_shapes import Indexer, LatentAttention
from blis_py.models.block_attention import BlockIndexer
from blis_py.models.compressed_attention import CompressedAttention
from blis_py.models.grouped_heads import GroupedHeads
from blis_py.models.linear_attention import LinearAttention


class CachedLayers(Protocol):
    """The part of a `ModelShape` that decides what is cached."""

    @property
    def compressed(self) -> CompressedAttention | None: ...

    @property
    def latent(self) -> LatentAttention | None: ...

    @property
    def indexer(self) -> Indexer | None: ...

    @property
    def linear(self) -> LinearAttention | None: ...

    @property
    def blocks(self) -> BlockIndexer | None: ...

    @property
    def full_heads(self) -> GroupedHeads | None: ...

    @property
    def cached_layers(self) -> int: ...

    @property
    def windowed_layers(self) -> int: ...

    @property
    def sliding_window(self) -> int: ...

    @property
    def kv_heads(self) -> int: ...

    @property
    def head_dim(self) -> int: ...

    @property
    def kv_dtype_bytes(self) -> int: ...


class LayerGroup(NamedTuple):
    """Alike layers with a KV cache. Bytes are of one layer on one rank."""

    layers: int
    token_bytes: float
    """Bytes for a token; of one that has left the window none are kept."""
    window: int = 0
    """Tokens that are kept at most; 0 = all."""
    kind: str = "full"


def layer_groups(shape: CachedLayers, tp: int = 1) -> Iterator[LayerGroup]:
    """The layers with a KV cache.

    Latent, compressed and index keys are as large on every rank; heads of keys and values are divided among
    ranks, and there is at least one on each.

    Args:
        tp: ranks that share the heads of a request.
    """
    compressed, latent, indexer = shape.compressed, shape.latent, shape.indexer
    if compressed is not None:
        for ratio, count in compressed.layers:
            yield LayerGroup(count, compressed.layer_bytes(ratio), 0, f"compressed {ratio}")
        return
    if latent is not None:
        own = 0 if indexer is None else indexer.layers
        entry = latent.entry_bytes(shape.kv_dtype_bytes)
        if own and indexer is not None:
            yield LayerGroup(own, entry + indexer.cached_bytes, 0, "sparse")
        yield LayerGroup(shape.cached_layers - own, entry, 0, "latent")
        return
    plain = _heads_bytes(shape, shape.kv_heads, shape.head_dim, tp)
    wide = shape.full_heads
    full = plain if wide is None else _heads_bytes(shape, wide.kv_heads, wide.head_dim, tp)
    chosen = 0 if shape.blocks is None else shape.blocks.layers
    yield LayerGroup(shape.cached_layers - shape.windowed_layers - chosen, full)
    if shape.windowed_layers:
        yield LayerGroup(shape.windowed_layers, plain, shape.sliding_window, "window")
    if shape.blocks is not None:
        index_bytes = shape.blocks.cached_bytes(shape.kv_dtype_bytes)
        yield LayerGroup(chosen, plain + index_bytes, 0, "blocks")


def _heads_bytes(shape: CachedLayers, kv_heads: int, head_dim: int, tp: int) -> int:
    return ceil(kv_heads / tp) * 2 * head_dim * shape.kv_dtype_bytes


def sequence_bytes(shape: CachedLayers, tp: int) -> int:
    """Bytes on one rank that a sequence of any length has: states of linear attention, and what a compressed
    cache keeps uncompressed."""
    states = 0 if shape.linear is None else shape.linear.sequence_bytes // tp
    return states + (0 if shape.compressed is None else shape.compressed.sequence_bytes)
