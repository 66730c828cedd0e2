"""The RoPE part of a config.json.

Older configs have `rope_theta` and `rope_scaling` side by side, newer ones `rope_parameters` with both, or
with a section for each kind of layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from blis_py.models.hf_config import ConfigFile
from engine.layers.rope import Rope

LLAMA2_THETA = 10_000.0
"""Default of `rope_theta`, which Llama 2's configs omit."""


LOCAL_THETA = 10_000.0
"""Default base in layers with a sliding window that have one of their own (Gemma 3)."""


def read_rope(config: ConfigFile) -> Rope:
    """RoPE base and scaling rule, of layers without a window where kinds of layers differ.

    Raises:
        InputError: a scaling rule that depends on the sequence length, or is otherwise unsupported.
    """
    own = _section_of(config, "full_attention")
    if own is not None:
        return _scaled(config, own, own.number("rope_theta"))
    inner = config.section("rope_parameters") or config
    default = LLAMA2_THETA if config.values.get("architectures") == ["LlamaForCausalLM"] else None
    theta = (inner if inner.has("rope_theta") else config).number("rope_theta", default=default)
    scaling = config.section("rope_scaling") or config.section("rope_parameters")
    if scaling is None:
        return Rope(theta)
    return _scaled(config, scaling, theta)


def read_rope_of(config: ConfigFile, kind: str, theta_key: str, theta: float) -> Rope:
    """Rotation of the layers of a kind: of its own section, or plain with the base under `theta_key`.

    Raises:
        InputError: as `read_rope`.
    """
    own = _section_of(config, kind)
    if own is not None:
        return _scaled(config, own, own.number("rope_theta", default=theta))
    return Rope(config.number(theta_key, default=theta))


def _section_of(config: ConfigFile, kind: str) -> ConfigFile | None:
    sections = config.section("rope_parameters")
    return None if sections is None else sections.section(kind)


def _scaled(config: ConfigFile, scaling: ConfigFile, theta: float) -> Rope:
    kind = scaling.text("rope_type", "type", default="default")
    if kind not in _READERS:
        known = ", ".join(_READERS)
        raise scaling.error(scaling.key("rope_type", "type"), "not supported", kind, f"use one of {known}")
    return _READERS[kind](config, scaling, theta)


def read_rotary_dim(config: ConfigFile, head_dim: int) -> int:
    """Number of leading dimensions of a head that are rotated.

    Raises:
        InputError: the share comes to an odd number of dimensions.
    """
    inner = config.section("rope_parameters") or config
    source = inner if inner.has("partial_rotary_factor") else config
    share = source.number("partial_rotary_factor", default=1.0)
    dim = int(head_dim * share)
    if dim % 2 or not 0 < dim <= head_dim:
        raise source.error("partial_rotary_factor", f"must rotate an even part of {head_dim}", share)
    return dim


def _default(config: ConfigFile, scaling: ConfigFile, theta: float) -> Rope:
    return Rope(theta)


def _linear(config: ConfigFile, scaling: ConfigFile, theta: float) -> Rope:
    return Rope(theta, "linear", scaling.number("factor"))


def _llama3(config: ConfigFile, scaling: ConfigFile, theta: float) -> Rope:
    low, high = scaling.number("low_freq_factor"), scaling.number("high_freq_factor")
    if high <= low:
        raise scaling.error("high_freq_factor", f"must be above low_freq_factor ({low})", high)
    return Rope(
        theta,
        "llama3",
        scaling.number("factor"),
        original_max_positions=scaling.count("original_max_position_embeddings"),
        low_freq_factor=low,
        high_freq_factor=high,
    )


def _yarn(config: ConfigFile, scaling: ConfigFile, theta: float) -> Rope:
    for key in ("mscale", "mscale_all_dim"):
        scaling.refuse(key, "not supported")
    factor = scaling.number("factor")
    attention_factor = 0.1 * math.log(factor) + 1 if factor > 1 else 1.0
    trained = config.count("max_position_embeddings")
    return Rope(
        theta,
        "yarn",
        factor,
        original_max_positions=scaling.count("original_max_position_embeddings", default=trained),
        beta_fast=scaling.number("beta_fast", default=32.0),
        beta_slow=scaling.number("beta_slow", default=1.0),
        truncate=scaling.flag("truncate", default=True),
        attention_factor=scaling.number("attention_factor", default=attention_factor),
    )


_READERS: dict[str, Callable[[ConfigFile, ConfigFile, float], Rope]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}
