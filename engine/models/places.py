"""Mapping of HuggingFace checkpoint tensors to places in the decoder.

The decoder fuses matrices (q, k, v; gate, up; all experts), so a tensor's place is a view into a weight.
Loading a checkpoint is then copying each tensor into its view, in any order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

from torch import Tensor

from engine.layers.attention import Attention
from engine.layers.mlp import GatedMlp, SparseMlp
from engine.models._names import Names
from engine.models.decoder import Decoder, DecoderLayer

Place = tuple[str, Tensor]
"""A name in the checkpoint, and the view its tensor belongs in."""


def places(decoder: Decoder) -> dict[str, Tensor]:
    """Names of all tensors of a complete checkpoint -> views of their shapes into the decoder's weights."""
    names = decoder.config.names
    tensors: dict[str, Tensor] = {
        f"{names.embedding}.weight": decoder.embedding,
        "model.norm.weight": decoder.norm,
    }
    if decoder.head is not None:
        tensors["lm_head.weight"] = decoder.head.weight
    for index, layer in enumerate(cast("Sequence[DecoderLayer]", decoder.layers)):
        tensors.update((f"model.layers.{index}.{name}", view) for name, view in _layer(layer, names))
    return {name: view.detach() for name, view in tensors.items()}


def scales(decoder: Decoder) -> dict[str, Tensor]:
    """Names of the tensors that the decoder keeps in float8 -> views `[outputs]` into their scales."""
    names, tensors = decoder.config.names, dict[str, Tensor]()
    for index, layer in enumerate(cast("Sequence[DecoderLayer]", decoder.layers)):
        own = _layer_scales(layer, names)
        tensors.update((f"model.layers.{index}.{name}", view.detach()) for name, view in own)
    return tensors


def _layer_scales(layer: DecoderLayer, names: Names) -> Iterator[Place]:
    attention, mlp, within = layer.attention, layer.mlp, "mlp"
    if attention.qkv.scale is not None and attention.out.scale is not None:
        for name, view in _rows("weight", attention.qkv.scale, attention, names):
            yield f"{names.attention}.{name}", view
        yield f"{names.attention}.{names.out}.weight", attention.out.scale
    dense = mlp.shared if isinstance(mlp, SparseMlp) else mlp
    if isinstance(mlp, SparseMlp):
        within = f"{names.sparse}.shared_experts"
    if dense is not None and dense.gate_up.scale is not None and dense.down.scale is not None:
        gate, up = dense.gate_up.parts(dense.gate_up.scale)
        yield f"{within}.gate_proj.weight", gate
        yield f"{within}.up_proj.weight", up
        yield f"{within}.down_proj.weight", dense.down.scale


def _layer(layer: DecoderLayer, names: Names) -> Iterator[Place]:
    yield "input_layernorm.weight", layer.input_norm
    yield f"{names.post_norm}.weight", layer.post_norm
    if layer.attention_out_norm is not None and layer.mlp_out_norm is not None:
        yield "post_attention_layernorm.weight", layer.attention_out_norm
        yield "post_feedforward_layernorm.weight", layer.mlp_out_norm
    for name, view in _attention(layer.attention, names):
        yield f"{names.attention}.{name}", view
    if isinstance(layer.mlp, SparseMlp):
        for name, view in _sparse(layer.mlp, names):
            yield f"{names.sparse}.{name}", view
    else:
        for name, view in _gated(layer.mlp):
            yield f"mlp.{name}", view


def _attention(attention: Attention, names: Names) -> Iterator[Place]:
    yield from _rows("weight", attention.qkv.weight, attention, names)
    yield f"{names.out}.weight", attention.out.weight
    if attention.qkv.bias is not None:
        yield from _rows("bias", attention.qkv.bias, attention, names)
    if attention.out.bias is not None:
        yield f"{names.out}.bias", attention.out.bias
    if attention.q_norm is not None and attention.k_norm is not None:
        yield f"{names.q_norm}.weight", attention.q_norm
        yield f"{names.k_norm}.weight", attention.k_norm
    if attention.sinks is not None:
        yield "sinks", attention.sinks


def _rows(kind: str, fused: Tensor, attention: Attention, names: Names) -> Iterator[Place]:
    """The rows of q, k and v in the fused weight or bias."""
    if len(names.qkv) == 1:
        yield f"{names.qkv[0]}.{kind}", fused
        return
    for name, view in zip(names.qkv, attention.qkv.parts(fused), strict=True):
        yield f"{name}.{kind}", view


def _gated(mlp: GatedMlp) -> Iterator[Place]:
    gate, up = mlp.gate_up.parts(mlp.gate_up.weight)
    yield "gate_proj.weight", gate
    yield "up_proj.weight", up
    yield "down_proj.weight", mlp.down.weight


def _sparse(mlp: SparseMlp, names: Names) -> Iterator[Place]:
    yield f"{names.gate}.weight", mlp.gate.weight
    if mlp.gate.bias is not None:
        yield f"{names.gate}.bias", mlp.gate.bias
    if mlp.expert_bias is not None:
        yield "gate.expert_bias", mlp.expert_bias
    for expert, (w13, w2) in enumerate(zip(mlp.experts.w13, mlp.experts.w2, strict=True)):
        for name, view in zip(names.expert, (*w13.chunk(2), w2), strict=True):
            yield f"experts.{expert}.{name}.weight", view
    if mlp.experts.b13 is not None and mlp.experts.b2 is not None:
        for expert, (b13, b2) in enumerate(zip(mlp.experts.b13, mlp.experts.b2, strict=True)):
            for name, view in zip(names.expert, (*b13.chunk(2), b2), strict=True):
                yield f"experts.{expert}.{name}.bias", view
    if mlp.shared is not None:
        for name, view in _gated(mlp.shared):
            yield f"shared_experts.{name}", view
