"""Configs to read: bundled ones with changes, and the published ones beside the checkout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from blis_py.files import bundled


def values_of(base: str = "qwen3-14b", **changes: Any) -> dict[str, Any]:
    """A bundled config with some keys replaced; `...` removes the key."""
    values = json.loads((bundled.root("profiles") / "models" / f"{base}.json").read_text()) | changes
    return {key: value for key, value in values.items() if value is not ...}


def config(folder: Path, base: str = "qwen3-14b", **changes: Any) -> Path:
    """The same as a file."""
    path = folder / "config.json"
    path.write_text(json.dumps(values_of(base, **changes)))
    return path


def published(shared_data: Path) -> dict[str, Path]:
    """Model -> its config.json as published, or as it was put together from other sources."""
    folder = shared_data / "model_configs"
    files = [*folder.glob("*_config.json"), *folder.glob("derived/*_config.json")]
    end = "_config.json"
    return {
        path.name.removesuffix(end).replace("--", "/"): path
        for path in sorted(files)
        if not path.name.endswith("_hf_quant" + end)
    }
