"""Encoder of images in front of a model: its weights, which engines load with the others.

Transformer layers over patches, and a projector to the hidden size of the text, without biases and norms:

    layers*(4*hidden*attention + 2*hidden*feed_forward)     3 with a gate
    + patch*hidden + positions*hidden + projector

A projector merges m x m patches to one vector of m*m*hidden, which keeps that width in its first matrix
(Qwen-VL, Kimi), or narrows it to a width of its own (Llama 4) or to the encoder's (Mistral, with one more
matrix behind it), or has one matrix (Gemma).
"""

from __future__ import annotations

from typing import NamedTuple

from blis_py.models.hf_config import ConfigFile

USUAL_LAYERS, USUAL_HIDDEN = 24, 1024
"""Sizes of ViT-L/14."""
_LAYERS, _HIDDEN = ("num_hidden_layers", "vt_num_hidden_layers"), ("hidden_size", "vt_hidden_size")
_FEED_FORWARD = ("intermediate_size", "vt_intermediate_size")
_GATED_TYPES, _GATED_ACTIVATION = ("gemma4_vision",), "silu"
_PIXTRAL = "pixtral"
"""Places of patches turn its queries and keys, and its merging is configured beside it."""


class ImageEncoder(NamedTuple):
    """`layers` and `hidden` are those of ViT-L/14 where the config has other names for them, as SGLang takes
    them (`server_args.py`)."""

    layers: int
    hidden: int
    parameters: int
    """Weights, those of its projector included; 0 = the config does not say."""
    optional: bool = False
    """Whether some engines serve the model's text alone by default."""


def read_image_encoder(config: ConfigFile, text_hidden: int, optional: bool) -> ImageEncoder | None:
    """None for a model of text alone.

    Raises:
        InputError: a size is not a number.
    """
    section = config.section("vision_config")
    if section is None:
        return None
    return ImageEncoder(
        layers=section.count(*_LAYERS, default=USUAL_LAYERS),
        hidden=section.count(*_HIDDEN, default=USUAL_HIDDEN),
        parameters=_parameters(config, section, text_hidden),
        optional=optional,
    )


def _parameters(config: ConfigFile, section: ConfigFile, text_hidden: int) -> int:
    layers = section.count(*_LAYERS, "depth", default=0, least=0)
    hidden = section.count(*_HIDDEN, default=0, least=0)
    feed_forward = section.count(*_FEED_FORWARD, default=0, least=0)
    if not layers or not hidden or not feed_forward:
        return 0
    attention = section.count("qkv_hidden_size", default=hidden)
    layer = hidden * (4 * attention + (3 if _is_gated(section) else 2) * feed_forward)
    side = section.count("patch_size", default=14)
    patch = 3 * side * side * section.count("temporal_patch_size", default=1)
    if _type(section) == _PIXTRAL:
        merged = hidden * config.count("spatial_merge_size", default=1) ** 2
        projector = merged * hidden + (hidden + text_hidden) * text_hidden
        return layers * layer + patch * hidden + projector
    return (
        layers * layer
        + (patch + _positions(section, side)) * hidden
        + _projector(section, hidden, text_hidden)
    )


def _is_gated(section: ConfigFile) -> bool:
    return _type(section) in _GATED_TYPES or section.text("hidden_act", default="") == _GATED_ACTIVATION


def _type(section: ConfigFile) -> str:
    return section.text("model_type", default="")


def _positions(section: ConfigFile, side: int) -> int:
    """Learned positions: a table for each axis, one of all places, or none."""
    if section.has("position_embedding_size"):
        return 2 * section.count("position_embedding_size")
    if section.has("init_pos_emb_height"):
        return section.count("init_pos_emb_height") * section.count("init_pos_emb_width")
    places = (section.count("image_size", default=0, least=0) // side) ** 2
    return section.count("num_position_embeddings", default=places, least=0)


def _projector(section: ConfigFile, hidden: int, text_hidden: int) -> int:
    if section.has("pixel_shuffle_ratio"):
        merged = round(hidden / section.number("pixel_shuffle_ratio") ** 2)
        inner, output = section.count("projector_input_dim"), section.count("projector_output_dim")
        return merged * inner + inner * output + output * text_hidden
    kernel = section.items("merge_kernel_size") or [section.count("spatial_merge_size", default=1)]
    merged = hidden * int(kernel[0]) ** 2
    return (merged * merged if merged > hidden else 0) + merged * text_hidden
