"""Layers of a model whose attention reads a part of the context, as `sparse_work` prices them."""

from __future__ import annotations

from blis_py.latency.sparse_work import SparseLayer
from blis_py.models.attention_shapes import Indexer, LatentAttention
from blis_py.models.model_shape import ModelShape


def sparse_layers(shape: ModelShape, heads: float) -> tuple[tuple[int, SparseLayer], ...]:
    """Numbers of alike layers with what they read; empty if all attention is to the whole context.

    Args:
        heads: of one rank.
    """
    if shape.latent is None or shape.indexer is None:
        return ()
    own, others = shape.indexer.layers, shape.layers - shape.indexer.layers
    without = _latent(shape, shape.latent, heads)
    return (own, _indexed(shape, without, shape.indexer)), (others, without)


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


def _indexed(shape: ModelShape, layer: SparseLayer, indexer: Indexer) -> SparseLayer:
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
