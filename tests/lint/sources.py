"""Syntax trees of the code, each file parsed once."""

from __future__ import annotations

import ast
import gc
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@cache
def modules(part: str) -> dict[str, ast.Module]:
    """The modules of a top-level folder, by path."""
    paths = sorted((ROOT / part).rglob("*.py"))
    assert paths, f"{part} has no modules"
    gc.disable()  # it would walk a million nodes that stay, again and again
    trees = {str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8")) for path in paths}
    gc.freeze()
    gc.enable()
    return trees


PRODUCT = ("blis_py", "engine")


def product() -> dict[str, ast.Module]:
    """The modules of the package and of the engine."""
    return {path: tree for part in PRODUCT for path, tree in modules(part).items()}
