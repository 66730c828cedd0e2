"""Tiny models with checkable answers: their tasks (`tasks.py`), and their committed checkpoints.

Their training is in `training/`, which is not part of the package.
"""

from __future__ import annotations

from pathlib import Path

CHECKPOINTS = Path(__file__).parent / "checkpoints"


def checkpoints() -> list[Path]:
    """The folders of all of them."""
    return sorted(path.parent for path in CHECKPOINTS.glob("*/config.json"))


def checkpoint(kind: str) -> Path:
    """The folder of a committed checkpoint in HuggingFace layout; `"ar"` is the autoregressive one.

    Raises:
        ValueError: there is no checkpoint of that name.
    """
    folder = CHECKPOINTS / kind
    if not (folder / "config.json").is_file():
        known = ", ".join(sorted(path.parent.name for path in CHECKPOINTS.glob("*/config.json")))
        none = "none: they are in the repository, not in the wheel"
        raise ValueError(f"no tiny checkpoint named {kind!r}; there are: {known or none}")
    return folder
