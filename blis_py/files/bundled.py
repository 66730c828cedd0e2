"""Location of the bundled profiles, workloads and results: inside the wheel, or at the root of a checkout."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
_IN_CHECKOUT = {"results": "benchmarks/results"}


def root(kind: str) -> Path:
    """Folder of bundled data; `kind` is `profiles`, `workloads` or `results` (of the accuracy benchmark)."""
    packaged = _PACKAGE / "_data" / kind
    return packaged if packaged.is_dir() else _PACKAGE.parent / _IN_CHECKOUT.get(kind, kind)
