"""Defaults of an engine's configuration classes, read from their source: nothing of it is executed.

Runs in a bare interpreter, so this file imports the standard library alone.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

NO_LITERAL = "<computed>"
"""Stands for a default that is not written as a literal."""


def modules(path: Path) -> list[Path]:
    """A module, or the modules in a folder."""
    return [path] if path.is_file() else sorted(path.rglob("*.py"))


def of_path(path: Path) -> dict[str, dict[str, Any]]:
    """Defaults of the annotated fields of all classes in a module or in a folder of modules, by class and
    field."""
    found: dict[str, dict[str, Any]] = {}
    for module in modules(path):
        for node in ast.parse(module.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, {}).update(_of_class(node))
    return found


def _of_class(node: ast.ClassDef) -> dict[str, Any]:
    return {
        each.target.id: _literal(each.value)
        for each in node.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }


def _literal(value: ast.expr | None) -> Any:
    """The value of an expression, or of the `default` that a call such as `field(default=…)` is given."""
    if isinstance(value, ast.Call):
        value = next((each.value for each in value.keywords if each.arg == "default"), value)
    try:
        return ast.literal_eval(value) if value is not None else NO_LITERAL
    except ValueError:
        return NO_LITERAL
