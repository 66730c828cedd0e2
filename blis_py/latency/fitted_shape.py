"""The model and the device a profile was measured on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from blis_py.errors import InputError
from blis_py.hardware.gpu import GpuSpec, load_gpu
from blis_py.models.attention_shapes import Indexer, LatentAttention
from blis_py.models.block_attention import BlockIndexer
from blis_py.models.compressed_attention import CompressedAttention
from blis_py.models.grouped_heads import GroupedHeads
from blis_py.models.linear_attention import LinearAttention
from blis_py.models.model_shape import ModelShape, shape_from_config
from blis_py.models.weights import Weights

_UNWRITTEN = ("image_encoder", "kinds", "notes")
_UNPRICED = ("name", "sliding_window", "windowed_layers", *_UNWRITTEN)
_PARTS = {
    "weights": Weights,
    "latent": LatentAttention,
    "linear": LinearAttention,
    "compressed": CompressedAttention,
    "blocks": BlockIndexer,
    "full_heads": GroupedHeads,
}
_RARE = {
    **{"expert_hidden": 0, "ffn_matrices": 3, "bare_layers": 0, "residual_streams": 1},
    **{"compressed": None, "blocks": None, "full_heads": None},
    **{"wide_arithmetic": "", "kind": "gdn", "gate_rank": 0},
}
"""Fields of a shape, its weights or its linear attention -> value that is not written."""
_PRICED = tuple(f.name for f in fields(ModelShape) if f.name not in _UNPRICED)


def model_name(meta: Mapping[str, Any]) -> str:
    """Name of the model: the last part of a path."""
    return Path(str(meta.get("model") or "unnamed")).name


def shape_of(meta: Mapping[str, Any], file: str | Path | None = None) -> ModelShape | None:
    """The shape from `model_config`: a HuggingFace config, or the fields of a `ModelShape`; None if absent.

    Raises:
        InputError: the configuration is neither.
    """
    values = meta.get("model_config")
    if values is None:
        return None
    if isinstance(values, Mapping) and {"layers", "hidden", "heads"} <= set(values):
        return _from_facts(model_name(meta), values, file)
    if not isinstance(values, Mapping):
        raise InputError("must be a mapping", file=file, key="model_config", value=values)
    return shape_from_config(model_name(meta), values, Path(file or "profile.yaml"))


def datasheet_of(meta: Mapping[str, Any]) -> GpuSpec | None:
    """The measured GPU; None if there is no datasheet of the device."""
    device = str(meta.get("device") or "cpu")
    if meta.get("device_kind") == "cpu" or device == "cpu":
        return None
    try:
        return load_gpu(device)
    except InputError:
        return None


def facts_of(shape: ModelShape) -> dict[str, Any]:
    """The shape as plain values, which `shape_of` can read; what few models have is left out of others."""
    facts = {name: value for name, value in asdict(shape).items() if name not in _UNWRITTEN}
    for values in (facts, facts["weights"], facts["linear"] or {}):
        for name, default in _RARE.items():
            if values.get(name, ...) == default:
                del values[name]
    return facts


def _from_facts(name: str, values: Mapping[str, Any], file: str | Path | None) -> ModelShape:
    known = {f.name for f in fields(ModelShape)}
    unknown = sorted(str(key) for key in values if key not in known)
    if unknown:
        fix = "import or fit the profile anew"
        raise InputError("unknown key", file=file, key=f"model_config.{unknown[0]}", fix=fix)
    try:
        parts = {key: _part(kind, values[key]) for key, kind in _PARTS.items() if values.get(key) is not None}
        return ModelShape(**{"name": name, **values, **parts, "notes": ()})
    except TypeError as error:
        raise InputError(f"not a model shape: {error}", file=file, key="model_config") from None


def _part(kind: Callable[..., Any], values: Mapping[str, Any]) -> Any:
    """A part of a shape, with those in it."""
    inner: dict[str, Any] = {}
    if values.get("indexer") is not None:
        inner["indexer"] = Indexer(**values["indexer"])
    if kind is CompressedAttention:
        inner["layers"] = tuple((ratio, count) for ratio, count in values["layers"])
    return kind(**{**values, **inner})


def require_same(measured: ModelShape, required: ModelShape, file: str | None) -> None:
    """Check that a profile was measured on the wanted model.

    Raises:
        InputError: the models differ.
    """
    for name in _PRICED:
        ours, theirs = getattr(required, name), getattr(measured, name)
        if ours != theirs:
            raise InputError(
                f"was measured on {measured.name} ({name} {theirs}), not on {required.name} ({name} {ours})",
                file=file,
                key="model",
                fix="give a profile of this model, or leave --model out",
            )
