"""Groups of a model's layers that share one pool of KV blocks: vLLM's rule (`get_kv_cache_groups`).

Layers of a kind are dealt to groups of as many layers each as the rarest kind has. A block of the pool, which
any group may take, holds some tokens for each layer of a group; where layers do not divide evenly, the parts
of missing ones are unused.
"""

from __future__ import annotations

from typing import NamedTuple

from blis_py.core.kv_groups import CHUNKED, FULL, WINDOW, KVGroup
from blis_py.models.layer_groups import layer_groups
from blis_py.models.model_shape import ModelShape


class KVPages(NamedTuple):
    """Groups of layers, and what a block of them takes.

    Attributes:
        groups: in the order of the model's first layers of each kind.
        layers: of a group.
        token_bytes: of a layer, on one rank.
    """

    groups: tuple[KVGroup, ...]
    layers: int
    token_bytes: float

    def block_bytes(self, block_size: int) -> int:
        """A block of the pool, on one rank."""
        return int(self.layers * self.token_bytes * block_size)


def kv_pages(shape: ModelShape, tp: int, most_padding: float) -> KVPages | None:
    """The groups; None where all layers keep all tokens, or are of kinds that are not grouped here: states,
    latent and compressed caches, indexes, and heads of several sizes.

    Args:
        tp: ranks that share the heads of a request.
        most_padding: groups are as large as the commonest kind if it has fewer than so many times the layers
            of the rarest.
    """
    if not shape.windowed_layers or shape.linear is not None or shape.blocks is not None:
        return None
    kinds = [group for group in layer_groups(shape, tp) if group.layers]
    if any(group.kind not in ("full", "window") for group in kinds):
        return None
    if len({group.token_bytes for group in kinds}) > 1:
        return None
    counts = [group.layers for group in kinds]
    size = max(counts) if max(counts) < min(counts) * most_padding else min(counts)
    first = shape.kinds[0][0] if shape.kinds else FULL
    groups: list[KVGroup] = []
    for kind in sorted(kinds, key=lambda each: each.kind != first):
        kept = KVGroup(FULL)
        if kind.window:
            kept = KVGroup(CHUNKED if shape.chunked_windows else WINDOW, kind.window)
        groups += [kept] * -(-kind.layers // size)
    return KVPages(tuple(groups), size, kinds[0].token_bytes)
