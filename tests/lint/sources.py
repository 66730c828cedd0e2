"""Syntax trees of the code, each file parsed once."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@cache
def modules(part: str) -> dict[str, ast.Module]:
    """The modules of a top-level folder, by path."""
    paths = sorted((ROOT / part).rglob("*.py"))
    assert paths, f"{part} has no modules"
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


PRODUCT = ("blis_py", "engine")


def product() -> dict[str, ast.Module]:
    """The modules of the package and of the engine."""
    return {path: tree for part in PRODUCT for path, tree in modules(part).items()}
