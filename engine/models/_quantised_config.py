"""Checkpoints with 8-bit weights that the decoder takes: float8, with every matrix of the layers in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blis_py.errors import InputError
from blis_py.models.hf_config import ConfigFile

_LISTS = ("ignore", "modules_to_not_convert", "ignored_layers")
_NO_PROJECTIONS = ("lm_head", "gate", "router", "embed_tokens", "word_embeddings", "shared_expert_gate")
"""Ends of the names of modules that are not quantised in any case; and norms."""
_FIX = "use the unquantised checkpoint, or one in float8 with dynamic activations"


def read_fp8(config: ConfigFile) -> bool:
    """Whether the weights of the layers are in float8; those in MXFP4 are not kept so (`stacked_experts`).

    Raises:
        InputError: quantised in a way that is not supported.
    """
    key = config.key("quantization_config", "compression_config")
    section = config.section(key)
    if section is None:
        return False
    method = section.values.get("quant_method")
    if method == "mxfp4":
        return False
    check = {"fp8": _plain, "fbgemm_fp8": _plain, "compressed-tensors": _compressed}.get(str(method))
    if check is None or not check(section.values):
        raise config.error(key, "quantised weights of this kind are not supported", method, _FIX)
    for name in (name for key in _LISTS if section.has(key) for name in section.texts(key)):
        _check_left_alone(config, key, name)
    return True


def _plain(values: Mapping[str, Any]) -> bool:
    return values.get("activation_scheme", "dynamic") in ("dynamic", "static")


def _compressed(values: Mapping[str, Any]) -> bool:
    """Every group has 8-bit floats for weights and activations."""
    groups = values.get("config_groups") or {}
    parts = [group.get(part) or {} for group in groups.values() for part in ("weights", "input_activations")]
    return bool(parts) and all(
        part.get("type") == "float" and part.get("num_bits") == 8 and part.get("symmetric", True)
        for part in parts
    )


def _check_left_alone(config: ConfigFile, key: str, name: str) -> None:
    last = name.removesuffix("$").rpartition(".")[2]
    if not (last in _NO_PROJECTIONS or last.endswith("norm")):
        raise config.error(key, "a matrix that is not quantised is not supported", name, _FIX)


def check_sizes(config: ConfigFile, sizes: dict[str, int], multiple: int) -> None:
    """
    Raises:
        InputError: a size that products in float8 do not take.
    """
    for name, size in sizes.items():
        if size % multiple:
            problem = f"float8 products need multiples of {multiple}"
            raise InputError(problem, file=config.file, key=name, value=size, fix=_FIX)
