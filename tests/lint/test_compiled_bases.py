"""Interpreted classes derive from compiled ones only where those allow it: mypyc refuses it at run time."""

from __future__ import annotations

import ast
from pathlib import Path

from blis_py.native import EVERY_STEP, SOME

PRODUCT = Path(__file__).parents[2] / "blis_py"
COMPILED = {f"blis_py.{module}" for module in (*EVERY_STEP, *SOME)}
Name = tuple[str, str]
"""Module and name of a class."""


def classes() -> dict[Name, tuple[list[Name], bool]]:
    """Bases of every class of the product, and whether interpreted classes may derive from it."""
    found: dict[Name, tuple[list[Name], bool]] = {}
    for path in PRODUCT.rglob("*.py"):
        module = ".".join(path.relative_to(PRODUCT.parent).with_suffix("").parts)
        tree = ast.parse(path.read_text())
        imported = {
            each.asname or each.name: (node.module, each.name)
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module
            for each in node.names
        }
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                names = [ast.unparse(base).partition("[")[0] for base in node.bases]
                open_to_all = any(
                    "allow_interpreted_subclasses" in ast.unparse(each) for each in node.decorator_list
                )
                found[module, node.name] = [imported.get(name, (module, name)) for name in names], open_to_all
    return found


def test_no_interpreted_class_derives_from_a_compiled_one() -> None:
    known = classes()
    assert sum(module in COMPILED for module, _ in known) > 50
    assert not [
        (name, base)
        for name, (bases, _) in known.items()
        if name[0] not in COMPILED
        for base in bases
        if base in known and base[0] in COMPILED and not known[base][1]
    ]
