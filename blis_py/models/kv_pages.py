"""Groups of a model's layers that share one pool of KV blocks: vLLM's rule (`get_kv_cache_groups`).

Layers of a kind are dealt to groups of as many layers each as the rarest kind has. A block of the pool, which
any group may take, holds some tokens for each layer of a group; where layers do not divide evenly, the parts
of missing ones are unused. Layers that keep less of a token have blocks of more tokens. Where layers have a
state, blocks of attention hold so many tokens that they are as large as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

from blis_py.core.kv_groups import ALIGNED, CHUNKED, FULL, STATE, WINDOW, KVGroup
from blis_py.models import layer_kinds
from blis_py.models.layer_groups import LayerGroup, layer_groups
from blis_py.models.model_shape import ModelShape

_FIRST = {layer_kinds.WINDOW: (WINDOW, CHUNKED), layer_kinds.LINEAR: (STATE, ALIGNED)}
"""Kinds of groups by the kind of the model's first layer, if it is not `full`."""


class KVPages(NamedTuple):
    """Groups of layers, and what a block of them takes.

    Attributes:
        groups: in the order of the model's first layers of each kind.
        layers: of a group.
        token_bytes: of a layer, on one rank; of those with the largest heads.
        block_size: tokens of a block where it has to be as large as a state; 0 = any number.
    """

    groups: tuple[KVGroup, ...]
    layers: int
    token_bytes: float
    block_size: int = 0

    def block_bytes(self, block_size: int) -> int:
        """A block of the pool, on one rank."""
        return int(self.layers * self.token_bytes * block_size)


class StateRules(NamedTuple):
    """Size of a block that holds a state.

    Attributes:
        block_size: tokens that a user gives; blocks have at least as many.
        multiple: tokens of which a block holds a multiple.
        latent_multiple: the same of a latent cache.
        cached: whether the prefix cache keeps states.
        copied: whether the kernels copy a state inside a chunk.
    """

    block_size: int = 16
    multiple: int = 16
    latent_multiple: int = 128
    cached: bool = False
    copied: bool = False


def kv_pages(
    shape: ModelShape,
    tp: int,
    most_padding: float,
    states: StateRules | None = None,
    spans: bool = True,
) -> KVPages | None:
    """The groups; None where all layers keep all tokens, or are of kinds that are not grouped here:
    compressed caches, indexes, and heads of sizes that do not divide each other.

    Args:
        tp: ranks that share the heads of a request.
        most_padding: groups are as large as the commonest kind if it has fewer than so many times the layers
            of the rarest.
        states: rules for layers with a state; None = they are not grouped.
        spans: whether layers that keep less of a token may have blocks of more tokens.
    """
    linear = shape.linear
    if shape.blocks is not None or (linear is None and not shape.windowed_layers):
        return None
    if linear is not None and states is None:
        return None
    kinds = [group for group in layer_groups(shape, tp) if group.layers]
    if not kinds or any(group.kind not in ("full", "window", "latent") for group in kinds):
        return None
    most_bytes = max(kind.token_bytes for kind in kinds)
    if any(most_bytes % kind.token_bytes for kind in kinds) or (not spans and len(_sizes(kinds)) > 1):
        return None
    kept = [
        (_kept(kind, shape.chunked_windows, int(most_bytes // kind.token_bytes)), kind.layers)
        for kind in kinds
    ]
    block_size = 0
    if linear is not None and states is not None:
        state = KVGroup(ALIGNED, int(states.copied)) if states.cached else KVGroup(STATE)
        kept.append((state, linear.layers))
        block_size = _state_block(linear.layer_bytes(tp), kinds[0], states)
    counts = [layers for _, layers in kept]
    size = max(counts) if max(counts) < min(counts) * most_padding else min(counts)
    first = _FIRST.get(shape.kinds[0][0] if shape.kinds else FULL, (FULL,))
    groups: list[KVGroup] = []
    for group, layers in sorted(kept, key=lambda each: each[0].kind not in first):
        groups += [group] * -(-layers // size)
    return KVPages(tuple(groups), size, most_bytes, block_size)


def _sizes(kinds: Sequence[LayerGroup]) -> set[float]:
    return {kind.token_bytes for kind in kinds}


def _kept(kind: LayerGroup, chunked: bool, span: int) -> KVGroup:
    if not kind.window:
        return KVGroup(FULL, 0, span)
    return KVGroup(CHUNKED if chunked else WINDOW, kind.window, span)


def _state_block(state_bytes: int, cached: LayerGroup, rules: StateRules) -> int:
    """Tokens of the smallest block of attention that is as large as a state (`_align_hybrid_block_size`)."""
    multiple = rules.multiple
    if cached.kind == "latent":
        multiple = max(multiple, rules.latent_multiple)
    return max(rules.block_size, multiple * ceil(state_bytes / (multiple * cached.token_bytes)))
