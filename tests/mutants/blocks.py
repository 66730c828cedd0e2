"""Blocks of a source: suites of statements inside functions, each executed as a whole or left by a jump."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

HITS = "_mutant_hits"
"""Module of an instrumented checkout in which every executed block leaves a mark."""


@dataclass(frozen=True)
class Block:
    first_line: int
    """Of its first statement, behind a docstring."""
    last_line: int
    indent: int
    function: str
    """Dotted name of the function it is in."""


def blocks(source: bytes) -> list[Block]:
    """All blocks of a module; what stands outside functions is in none."""
    lines = source.splitlines()
    found = {
        (block.first_line, block.last_line): block  # the innermost function comes last
        for name, function in _functions(ast.parse(source))
        for block in _of(function, name)
        if not lines[block.first_line - 1][: block.indent].strip()  # on a line of its own
    }
    return sorted(found.values(), key=lambda block: (block.first_line, -block.last_line))


def _functions(node: ast.AST, name: str = "") -> Iterator[tuple[str, ast.AST]]:
    """With their dotted names."""
    for inner in ast.iter_child_nodes(node):
        is_function = isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)
        named = f"{name}.{inner.name}" if is_function or isinstance(inner, ast.ClassDef) else name
        if is_function:
            yield named, inner
        yield from _functions(inner, named)


def _of(function: ast.AST, name_of_function: str) -> Iterator[Block]:
    for node in ast.walk(function):
        for name in ("body", "orelse", "finalbody"):
            suite = getattr(node, name, None)
            if not isinstance(suite, list) or isinstance(node, ast.ClassDef) or not suite:
                continue
            if ast.get_docstring(node) if isinstance(node, ast.FunctionDef) else None:
                suite = suite[1:]
            if suite and not _is_elif(suite, name, node):
                yield Block(_line(suite[0]), suite[-1].end_lineno, suite[0].col_offset, name_of_function)


def _is_elif(suite: list[ast.stmt], name: str, node: ast.AST) -> bool:
    """Its condition belongs to the statement around it, and its suite is a block of its own."""
    return name == "orelse" and isinstance(suite[0], ast.If) and suite[0].col_offset == node.col_offset


def _line(statement: ast.stmt) -> int:
    decorators = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(decorator.lineno for decorator in decorators)])


def innermost(found: list[Block], line: int) -> int:
    """Number of the smallest block with that line; -1 = none."""
    around = [
        (block.last_line - block.first_line, -block.first_line, number)
        for number, block in enumerate(found)
        if block.first_line <= line <= block.last_line
    ]
    return min(around)[2] if around else -1


def instrumented(source: bytes, first: int) -> bytes:
    """The source with a mark at the beginning of every block.

    Args:
        first: number of the first block's mark.
    """
    lines = source.decode().splitlines()
    for number, block in reversed(list(enumerate(blocks(source)))):
        lines.insert(block.first_line - 1, f"{' ' * block.indent}_MUTANT_MARKS[{first + number}] = 1")
    lines.insert(_behind_future(source), f"from {HITS} import HITS as _MUTANT_MARKS")
    return "\n".join([*lines, ""]).encode()


def _behind_future(source: bytes) -> int:
    """Lines up to the end of the docstring and of the imports from `__future__`."""
    last = 0
    for statement in ast.parse(source).body:
        is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if not is_text and not (isinstance(statement, ast.ImportFrom) and statement.module == "__future__"):
            break
        last = statement.end_lineno or 0
    return last
