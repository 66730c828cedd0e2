"""Location of the bundled profiles and workloads: inside the wheel, or at the root of a checkout."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def root(kind: str) -> Path:
    """Folder of bundled data; `kind` is `profiles` or `workloads`."""
    packaged = _PACKAGE / "_data" / kind
    return packaged if packaged.is_dir() else _PACKAGE.parent / kind
