"""Layers of a model whose attention reads a part of the context, as `sparse_work` prices them."""

from __future__ import annotations

from collections.abc import Iterator

from blis_py.latency.sparse_work import SparseLayer
from blis_py.models.attention_shapes import LatentAttention
from blis_py.models.block_attention import BlockIndexer
from blis_py.models.compressed_attention import INDEXED_RATIO, CompressedAttention
from blis_py.models.model_shape import ModelShape

_ANY_LENGTH = 1 << 40
"""Ratio of a layer without compressed entries: longer than any sequence."""


def sparse_layers(shape: ModelShape, tp: int) -> tuple[tuple[int, SparseLayer], ...]:
    """Numbers of alike layers with what they read on a rank; empty if all attention is to the whole context.

    Args:
        tp: ranks that share the heads of a request.
    """
    if shape.compressed is not None:
        return tuple(_compressed(shape, shape.compressed, tp))
    if shape.blocks is not None:
        return ((shape.blocks.layers, _by_blocks(shape, shape.blocks, tp)),)
    if shape.latent is not None and shape.indexer is not None:
        own = shape.indexer.layers
        reused = _latent(shape, shape.latent, shape.heads / tp)
        return (own, _indexed(shape, reused)), (shape.cached_layers - own, reused)
    return ()


def _latent(shape: ModelShape, latent: LatentAttention, heads: float) -> SparseLayer:
    """A layer that reuses the choice of an earlier one."""
    absorbed = latent.kv_rank * heads * (latent.nope_dim + latent.value_dim)
    return SparseLayer(
        name="dsa_reused",
        title="sparse attention (DSA) by the choice of an earlier layer",
        heads=heads,
        key_value=latent.cached_elements + latent.kv_rank,
        entry_bytes=latent.entry_bytes(shape.kv_dtype_bytes),
        most=shape.indexer.top_k if shape.indexer else 0,
        token_flops=2.0 * absorbed,
        weight_bytes=2.0 * absorbed,
    )


def _indexed(shape: ModelShape, layer: SparseLayer) -> SparseLayer:
    indexer = shape.indexer
    if indexer is None:
        return layer
    return layer._replace(
        name="dsa",
        title="sparse attention (DSA)",
        scorers=indexer.heads,
        score_dim=indexer.head_dim,
        score_bytes=indexer.cached_bytes,
        token_flops=layer.token_flops + 2.0 * indexer.parameters(shape.hidden),
        weight_bytes=layer.weight_bytes
        + indexer.query_parameters * indexer.weight_bytes
        + 2.0 * indexer.plain_parameters(shape.hidden),
    )


def _compressed(
    shape: ModelShape, compressed: CompressedAttention, tp: int
) -> Iterator[tuple[int, SparseLayer]]:
    for ratio, count in compressed.layers:
        extra = compressed.extra_parameters(ratio, shape.hidden)
        indexed = ratio == INDEXED_RATIO
        yield (
            count,
            SparseLayer(
                name="csa" if indexed else "hca",
                title="compressed sparse attention (CSA)" if indexed else "compressed attention (HCA)",
                heads=shape.heads / tp,
                key_value=2 * compressed.head_dim,
                entry_bytes=compressed.entry_bytes,
                most=compressed.top_k if indexed else 0,
                ratio=ratio or _ANY_LENGTH,
                window=compressed.window,
                scorers=compressed.index_heads if indexed else 0,
                score_dim=compressed.index_dim,
                score_bytes=compressed.index_bytes,
                token_flops=2.0 * extra,
                weight_bytes=2.0 * extra,
            ),
        )


def _by_blocks(shape: ModelShape, blocks: BlockIndexer, tp: int) -> SparseLayer:
    kv_heads = max(shape.kv_heads / tp, 1.0)
    indexer = blocks.parameters(shape.hidden)
    return SparseLayer(
        name="msa",
        title="sparse attention by blocks (MSA)",
        heads=shape.heads / tp,
        key_value=2 * shape.head_dim,
        entry_bytes=2 * kv_heads * shape.head_dim * shape.kv_dtype_bytes,
        most=blocks.top_k,
        scorers=max(blocks.heads // tp, 1),
        score_dim=blocks.dim,
        score_bytes=blocks.cached_bytes(shape.kv_dtype_bytes),
        token_flops=2.0 * indexer,
        weight_bytes=2.0 * indexer,
    )
