"""Models that the tests of the profile measure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
AR = str(ROOT / "engine/tiny/checkpoints/ar")
DIFFUSION = str(ROOT / "engine/tiny/checkpoints/diffusion")


def small_copy(folder: Path, bundled: str, **changes: Any) -> str:
    """The config of a bundled model, shrunk; to be used with random weights."""
    from engine.models.config import find_config

    sizes = {
        "hidden_size": 64,
        "head_dim": 16,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "vocab_size": 300,
        "max_position_embeddings": 512,
        **changes,
    }
    config = json.loads(find_config(bundled).read_text()) | sizes
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)
