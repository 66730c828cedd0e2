"""The model a profile was measured on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from blis_py.errors import InputError
from blis_py.latency.model_shape import ModelShape, shape_from_config

_NAMELESS = tuple(f.name for f in fields(ModelShape) if f.name not in ("name", "sliding_window"))


def model_name(meta: Mapping[str, Any]) -> str:
    """What the model is called: the last part of a path."""
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
        known = {f.name for f in fields(ModelShape)}
        try:
            return ModelShape(**{"name": model_name(meta), **{k: v for k, v in values.items() if k in known}})
        except TypeError as error:
            raise InputError(f"not a model shape: {error}", file=file, key="model_config") from None
    if not isinstance(values, Mapping):
        raise InputError("must be a mapping", file=file, key="model_config", value=values)
    return shape_from_config(model_name(meta), values, Path(file or "profile.yaml"))


def require_same(measured: ModelShape, wanted: ModelShape, file: str | None) -> None:
    """
    Raises:
        InputError: the two are different models.
    """
    for name in _NAMELESS:
        ours, theirs = getattr(wanted, name), getattr(measured, name)
        if ours != theirs:
            raise InputError(
                f"was measured on {measured.name} ({name} {theirs}), not on {wanted.name} ({name} {ours})",
                file=file,
                key="model",
                fix="give a profile of this model, or leave --model out",
            )
