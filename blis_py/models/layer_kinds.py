"""Kinds of the layers of a model, in order, from its config.

A layer is attention (or what stands in its place) with the feed-forward behind it. Checkpoints number
layers, or attention and feed-forward each by itself (Nemotron-H): `LayerKinds` keeps the numbers of the
modules, by which quantised checkpoints name them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from blis_py.models.hf_config import ConfigFile
from blis_py.models.model_types import ModelType

FULL, WINDOW, LINEAR, BLOCKS = "full", "window", "linear", "blocks"
"""Attention to the whole context, to its end, by a state, to chosen blocks."""
_LISTED = {
    "full_attention": FULL,
    "attention": FULL,
    "deepseek_sparse_attention": FULL,
    "linear_attention": LINEAR,
    "mamba": LINEAR,
    "sliding_attention": WINDOW,
    "chunked_attention": WINDOW,
}
"""Entry of `layer_types` -> kind."""
_NEEDED = {
    **{"linear_attention": "linear_num_value_heads", "mamba": "mamba_n_heads"},
    "deepseek_sparse_attention": "index_topk",
}
"""Entry of `layer_types` -> a key that describes such layers."""
_BLOCKS = {"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"}
_MIXERS = {"mamba": LINEAR, "attention": FULL}
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
MAX_LAYERS = 1000


class LayerKinds(NamedTuple):
    """Layers in order, and the numbers of their modules in the checkpoint."""

    modules: int
    """Numbered modules of the checkpoint: layers, or attention and feed-forward each."""
    attention: Sequence[str]
    """Kind of each layer's attention."""
    cached: Sequence[int]
    """Modules with a KV cache."""
    linear: Sequence[int]
    """Modules with a state."""
    sparse: Sequence[int]
    """Modules with routed experts."""
    dense: Sequence[int]
    """Modules with another feed-forward."""

    @property
    def bare(self) -> int:
        """Layers without a feed-forward."""
        return len(self.attention) - len(self.sparse) - len(self.dense)

    def count(self, kind: str) -> int:
        """Layers whose attention is of this kind."""
        return sum(own == kind for own in self.attention)

    @property
    def runs(self) -> tuple[tuple[str, int], ...]:
        """Kinds in order, with the number of alike layers that follow each other."""
        return tuple((kind, len(list(run))) for kind, run in groupby(self.attention))


def layer_kinds(config: ConfigFile, model_type: ModelType, limit: int) -> LayerKinds:
    """The layers of a model.

    Args:
        limit: longest sequence; a window as long is none.

    Raises:
        InputError: a kind of layer that is not known, or not one for each layer.
    """
    blocks = _blocks(config)
    if blocks:
        return _of_blocks(blocks)
    if config.has("mamba_num_heads"):
        problem = "missing: it says which layers have a state"
        raise config.error("hybrid_override_pattern", problem, fix="use a complete HuggingFace config.json")
    layers = config.count("num_hidden_layers", most=MAX_LAYERS)
    sparse = _sparse(config, layers)
    dense = [layer for layer in range(layers) if layer not in sparse]
    linear = _linear(config, layers)
    windowed = _windowed(config, model_type, layers, limit)
    chosen = config.section("sparse_attention_config")
    by_blocks = chosen.items("sparse_attention_freq") if chosen else []
    attention = [
        LINEAR
        if layer in linear
        else WINDOW
        if layer in windowed
        else BLOCKS
        if layer < len(by_blocks) and by_blocks[layer]
        else FULL
        for layer in range(layers)
    ]
    cached = [layer for layer in range(layers) if layer not in linear]
    return LayerKinds(layers, attention, cached, sorted(linear), sorted(sparse), dense)


# -- Nemotron-H --------------------------------------------------------------------------------------------


def _blocks(config: ConfigFile) -> list[str]:
    """Modules that are attention or a feed-forward, each by itself; empty where layers are both."""
    if config.has("hybrid_override_pattern"):
        pattern = config.text("hybrid_override_pattern")
        for letter in pattern:
            if letter not in _BLOCKS:
                known = ", ".join(f"{letter} ({block})" for letter, block in _BLOCKS.items())
                raise config.error("hybrid_override_pattern", "unknown kind of layer", letter, f"use {known}")
        blocks = [_BLOCKS[letter] for letter in pattern]
        key = "hybrid_override_pattern"
    else:
        key, blocks = "layers_block_type", list(config.texts("layers_block_type"))
        for block in blocks:
            if block not in _BLOCKS.values():
                known = ", ".join(_BLOCKS.values())
                raise config.error(key, "unknown kind of layer", block, f"use one of {known}")
    stated = config.count("num_hidden_layers", default=len(blocks) or None)
    if blocks and stated != len(blocks):
        raise config.error(key, f"must name each of the {stated} layers", len(blocks))
    for one, following in zip(["", *blocks], blocks, strict=False):
        if following not in _MIXERS and one not in _MIXERS:
            raise config.error(key, "a feed-forward behind another is not modelled", following)
    return blocks


def _of_blocks(blocks: Sequence[str]) -> LayerKinds:
    def numbers(kind: str) -> list[int]:
        return [number for number, block in enumerate(blocks) if block == kind]

    return LayerKinds(
        modules=len(blocks),
        attention=[_MIXERS[block] for block in blocks if block in _MIXERS],
        cached=numbers("attention"),
        linear=numbers("mamba"),
        sparse=numbers("moe"),
        dense=numbers("mlp"),
    )


# -- layers of attention and feed-forward --------------------------------------------------------------------


def _sparse(config: ConfigFile, layers: int) -> frozenset[int]:
    """Layers with routed experts: those listed, or all except the first k, those listed as dense, and those
    between every n-th."""
    if config.count(*EXPERTS, default=0, least=0) < 2:
        return frozenset()
    if config.has("moe_layers"):
        return frozenset(_layers_of(config, "moe_layers", layers))
    if config.has("moe_layers_enum"):
        return frozenset(_enumerated(config, "moe_layers_enum", layers))
    if config.has("moe_layer_freq"):
        return frozenset(_marked(config, "moe_layer_freq", layers))
    if config.has("moe_layer_start_index"):
        return _every_nth(config, layers)
    first = config.count("first_k_dense_replace", default=0, least=0)
    if first > layers:
        raise config.error("first_k_dense_replace", f"more than the {layers} layers", first)
    dense = set(_layers_of(config, "mlp_only_layers", layers))
    every = config.count("interleave_moe_layer_step", default=0, least=0) or config.count(
        "decoder_sparse_step", default=1
    )
    return frozenset(
        layer for layer in range(first, layers) if layer not in dense and (layer + 1) % every == 0
    )


def _layers_of(config: ConfigFile, key: str, layers: int) -> list[int]:
    """A list of layer indices."""
    for layer in config.items(key):
        if isinstance(layer, bool) or not isinstance(layer, int) or not 0 <= layer < layers:
            raise config.error(key, f"must be numbers of the {layers} layers", layer)
    return list(config.items(key))


def _enumerated(config: ConfigFile, key: str, layers: int) -> list[int]:
    """Layer indices with commas between them; those of multi-token prediction are behind the others."""
    text = config.text(key)
    if not re.fullmatch(r"\s*\d+\s*(,\s*\d+\s*)*", text):
        raise config.error(key, "must be numbers of layers with commas between them", text)
    return [layer for layer in map(int, text.split(",")) if layer < layers]


def _every_nth(config: ConfigFile, layers: int) -> frozenset[int]:
    """Layers with experts: every n-th from a first to a last one (`Ernie4_5_MoeDecoderLayer`)."""
    first = config.count("moe_layer_start_index", least=0)
    last = min(config.count("moe_layer_end_index", default=layers - 1, least=0), layers - 1)
    every = config.count("moe_layer_interval", default=1)
    return frozenset(layer for layer in range(first, last + 1) if (layer + 1) % every == 0)


def _marked(config: ConfigFile, key: str, layers: int) -> list[int]:
    """Layers that a list of 0 and 1 marks."""
    marks = config.items(key)
    if len(marks) != layers or not {0, 1}.issuperset(marks):
        raise config.error(key, f"must be 0 or 1 for each of the {layers} layers")
    return [layer for layer, mark in enumerate(marks) if mark]


def _linear(config: ConfigFile, layers: int) -> frozenset[int]:
    """Layers with a state: those listed, or all but every n-th."""
    kimi = config.section("linear_attn_config")
    if kimi is not None:
        return _of_kimi(kimi, layers)
    kinds = config.texts("layer_types")
    if config.has("mamba_n_heads"):
        if "mamba" not in kinds:
            problem = "missing: it says which layers have a state"
            raise config.error("layer_types", problem, fix="use a complete HuggingFace config.json")
        return frozenset(layer for layer, kind in enumerate(kinds) if kind == "mamba")
    if not config.has("linear_num_value_heads"):
        return frozenset()
    if "linear_attention" in kinds:
        return frozenset(layer for layer, kind in enumerate(kinds) if kind == "linear_attention")
    every = config.count("full_attention_interval", default=4)
    return frozenset(layer for layer in range(layers) if (layer + 1) % every)


def _of_kimi(section: ConfigFile, layers: int) -> frozenset[int]:
    """Layers are counted from 1 there."""
    linear, full = section.items("kda_layers"), section.items("full_attn_layers")
    if sorted([*linear, *full]) != list(range(1, layers + 1)):
        raise section.error("kda_layers", f"must name each of the {layers} layers with full_attn_layers")
    return frozenset(layer - 1 for layer in linear)


def _windowed(config: ConfigFile, model_type: ModelType, layers: int, limit: int) -> frozenset[int]:
    """Layers with a window. One as long as the longest sequence counts as none."""
    if 0 in config.items("attn_type_list"):
        raise config.error("attn_type_list", "layers of linear attention are not modelled", 0)
    kinds = config.texts("layer_types")
    for kind in kinds:
        needed = _NEEDED.get(kind)
        if kind not in _LISTED or (needed and not config.has(needed)):
            problem = "layers of this kind are not modelled"
            raise config.error("layer_types", problem, kind, "use another model")
    further = config.count("num_nextn_predict_layers", default=0, least=0)
    if further and len(kinds) == layers + further:
        kinds = kinds[:layers]
    if kinds and len(kinds) != layers:
        raise config.error("layer_types", f"must name each of the {layers} layers", len(kinds))
    window = window_of(config)
    if not config.flag("use_sliding_window", default=True) or not 0 < window < limit:
        return frozenset()
    if config.has("compress_ratios"):
        return frozenset()
    if kinds:
        return frozenset(layer for layer, kind in enumerate(kinds) if _LISTED[kind] == WINDOW)
    if config.has("hybrid_layer_pattern"):
        return frozenset(_marked(config, "hybrid_layer_pattern", layers))
    if config.items("no_rope_layers"):
        return frozenset(layer for layer, rope in enumerate(config.items("no_rope_layers")) if rope)
    every = config.count("sliding_window_pattern", default=model_type.window_every)
    if every > 1:
        return frozenset(layer for layer in range(layers) if (layer + 1) % every)
    return frozenset(range(config.count("max_window_layers", default=0, least=0), layers))


def window_of(config: ConfigFile) -> int:
    """Tokens that windowed layers see at most; 0 = none."""
    return config.count("sliding_window", "attention_chunk_size", default=0, least=0)
