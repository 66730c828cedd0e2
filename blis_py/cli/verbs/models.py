"""`blis models`: the models that are bundled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from blis_py.cli.flags.flag import Flags
from blis_py.cli.verbs._listing import GROUPS, show
from blis_py.files.profiles import known_names, published_name
from blis_py.hardware.capacity import model_weight_bytes
from blis_py.models.model_shape import PRICED_AS_FULL, ModelShape, load_model

__all__ = ["GROUPS", "models"]

_COLUMNS = {
    "name": "model",
    "published_as": "published as",
    "billion_parameters": "10⁹",
    "billion_active": "active",
    "weights_gib": "GiB",
    "max_position_embeddings": "longest",
    "kv_kib_per_token": "KV KiB / token",
    "remarks": "remarks",
}


def models(flags: Flags) -> None:
    """List the bundled models and their sizes."""

    rows = [_row(name) for name in known_names("models")]
    more = (
        "Spellings as on the hub are understood, with -Instruct, -Chat or a date behind (Qwen/Qwen3-14B).",
        "Any other model: --model FOLDER with its config.json, or --model-config FILE.",
    )
    show(flags, rows, _COLUMNS, more)


def _row(name: str) -> dict[str, Any]:
    return {"name": name, "published_as": published_name("models", name), **_sizes(load_model(name))}


def _sizes(shape: ModelShape) -> dict[str, Any]:
    return {
        "billion_parameters": round(shape.parameters / 1e9, 2),
        "billion_active": round(shape.active_parameters / 1e9, 2),
        "weights_gib": round(model_weight_bytes(shape) / (1 << 30), 1),
        "max_position_embeddings": shape.max_position_embeddings,
        "kv_kib_per_token": shape.kv_bytes_per_token / 1024,
        "remarks": ", ".join(_remarks(shape)),
        "notes": [note for note in shape.notes if PRICED_AS_FULL not in note],
    }


def _remarks(shape: ModelShape) -> Iterator[str]:
    """The notes, in a word each."""
    if shape.windowed_layers:
        yield f"{shape.windowed_layers} of {shape.layers} layers windowed"
    if shape.kv_dtype_bytes == 1:
        yield "8-bit KV cache"
    if any("encoder" in note for note in shape.notes):
        yield "encoder of images"
