"""Changes between the sources of two releases: defaults of their settings, and functions of their schedulers.

Nothing of the engines is executed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.engines import config_defaults


class Changes(NamedTuple):
    """Changes from one release to another, by name."""

    new: dict[str, Any]
    gone: dict[str, Any]
    changed: dict[str, tuple[Any, Any]]
    """Before and after."""

    @classmethod
    def between(cls, before: dict[str, Any], after: dict[str, Any]) -> Changes:
        """Changes of named values."""
        return cls(
            {name: value for name, value in after.items() if name not in before},
            {name: value for name, value in before.items() if name not in after},
            {
                name: (before[name], value)
                for name, value in after.items()
                if name in before and before[name] != value
            },
        )


def defaults(before: Path, after: Path, paths: Iterable[str]) -> Changes:
    """Changes of the fields and defaults of settings classes.

    Args:
        before, after: folders with the packages.
        paths: modules or folders of modules, relative to them.
    """
    sides = []
    for root in (before, after):
        fields: dict[str, Any] = {}
        for path in paths:
            for name, own in config_defaults.of_path(root / path).items():
                fields |= {f"{name}.{field}": value for field, value in own.items()}
        sides.append(fields)
    return Changes.between(sides[0], sides[1])


def functions(before: Path, after: Path, paths: Iterable[str]) -> Changes:
    """Changes of functions and methods in more than their texts: their lengths in lines, by file and name.

    Args:
        paths: modules or folders of modules, relative to the folders.
    """
    bodies = [{}, {}]  # type: list[dict[str, str]]
    lines = [{}, {}]  # type: list[dict[str, int]]
    for side, root in enumerate((before, after)):
        for path in paths:
            for file in config_defaults.modules(root / path):
                for name, node in _functions(ast.parse(file.read_text(encoding="utf-8"))):
                    name = f"{file.relative_to(root)}: {name}"
                    bodies[side][name] = ast.dump(_bare(node))
                    lines[side][name] = (node.end_lineno or node.lineno) - node.lineno + 1
    found = Changes.between(bodies[0], bodies[1])
    return Changes(
        {name: lines[1][name] for name in found.new},
        {name: lines[0][name] for name in found.gone},
        {name: (lines[0][name], lines[1][name]) for name in found.changed},
    )


Function = ast.FunctionDef | ast.AsyncFunctionDef


def _functions(tree: ast.AST, within: str = "") -> Iterator[tuple[str, Function]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function):
            yield within + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{within}{node.name}.")


class _Texts(ast.NodeTransformer):
    """Leaves out docstrings, annotations and messages of the log."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        is_text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if is_text or ast.unparse(node.value).startswith("logger.") else node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node


def _bare(node: Function) -> ast.AST:
    """A function without what it does not do."""
    node.returns = None
    return _Texts().visit(node)  # type: ignore[no-any-return]
