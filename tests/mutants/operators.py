"""Mutations of Python sources: small changes that a test suite should notice.

A mutation replaces a few bytes of a source; all else stays as it is written. Annotations, decorators, strings
and messages of errors are left alone.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

COMPARED: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: (r"is\s+not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: (r"not\s+in", "in"),
}
COMPUTED: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: (r"\+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: (r"\*", "+"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "//"),
}
CALLED = {"min": "max", "max": "min", "any": "all", "all": "any", "sorted": "list", "sum": "len"}


@dataclass(frozen=True)
class Mutation:
    """The bytes `start` to `end` of a source become `new`."""

    module: str
    where: str
    """Name of the function or class."""
    line: int
    start: int
    end: int
    old: str
    new: str
    place: str
    """The expression or statement it is in."""

    @property
    def name(self) -> str:
        """The same as long as the code it changes is the same."""
        return f"{self.module}:{self.where}: {self.old!r} -> {self.new!r} in {self.place}"

    def applied(self, source: bytes) -> bytes:
        return source[: self.start] + self.new.encode() + source[self.end :]


def mutations(module: str, source: bytes) -> list[Mutation]:
    """Of a whole module, each with a name of its own."""
    found = _Finder(module, source)
    found.visit(ast.parse(source))
    return found.mutations


def compiles(source: bytes) -> bool:
    try:
        compile(source, "mutant", "exec")
    except (SyntaxError, ValueError):
        return False
    return True


class _Finder(ast.NodeVisitor):
    def __init__(self, module: str, source: bytes) -> None:
        self.module, self.source = module, source
        self.mutations: list[Mutation] = []
        self._lines = [0]
        for line in source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))
        self._where = ["module"]
        self._names: Counter[str] = Counter()

    # -- places ----------------------------------------------------------------------------------------

    def _start(self, node: ast.AST) -> int:
        return self._lines[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]

    def _end(self, node: ast.AST) -> int:
        return self._lines[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]

    def _text(self, node: ast.AST) -> str:
        return self.source[self._start(node) : self._end(node)].decode()

    def _add(self, node: ast.AST, start: int, end: int, new: str) -> None:
        old = self.source[start:end].decode()
        where = ".".join(self._where[1:]) or self._where[0]
        place = " ".join(self._text(node).split())[:80]
        line = node.lineno  # type: ignore[attr-defined]
        mutation = Mutation(self.module, where, line, start, end, old, new, place)
        self._names[mutation.name] += 1
        if (number := self._names[mutation.name]) > 1:
            mutation = replace(mutation, place=f"{place} ({number})")
        self.mutations.append(mutation)

    def _between(self, node: ast.AST, left: ast.AST, right: ast.AST, old: str, new: str) -> None:
        """Replace an operator between two operands."""
        start, end = self._end(left), self._start(right)
        pattern = rf"\b{old}\b" if old[0].isalpha() else old
        if found := re.search(pattern, self.source[start:end].decode()):
            self._add(node, start + found.start(), start + found.end(), new)

    # -- what is left alone ----------------------------------------------------------------------------

    def _scope(self, node: Any) -> None:
        if node.name in ("__repr__", "__str__"):
            return
        self._where.append(node.name)
        for part in (*getattr(node, "bases", ()), *node.body):
            self.visit(part)
        if not isinstance(node, ast.ClassDef):
            for default in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
                self.visit(default)
        self._where.pop()

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _scope

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Raise(self, node: ast.Raise) -> None:
        """A message may say what it likes."""

    visit_JoinedStr = visit_Assert = visit_Raise  # type: ignore[assignment]

    # -- what is changed -------------------------------------------------------------------------------

    def visit_Compare(self, node: ast.Compare) -> None:
        for left, kind, right in zip(
            [node.left, *node.comparators], node.ops, node.comparators, strict=False
        ):
            self._between(node, left, right, *COMPARED[type(kind)])
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in COMPUTED:
            self._between(node, node.left, node.right, *COMPUTED[type(node.op)])
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._between(node, left, right, old, new)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not | ast.USub):
            self._add(node, self._start(node), self._start(node.operand), "")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._add(node, self._start(node), self._end(node), str(not node.value))
        elif isinstance(node.value, int):
            self._add(node, self._start(node), self._end(node), str(node.value + 1))
        elif isinstance(node.value, float):
            self._add(node, self._start(node), self._end(node), repr(node.value * 2 + 1))

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id in CALLED:
            self._add(node, self._start(node.func), self._end(node.func), CALLED[node.func.id])
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" not in self._text(node.test):
            self._condition(node)

    def _condition(self, node: Any) -> None:
        start, end = self._start(node.test), self._end(node.test)
        self._add(node.test, start, end, f"not ({self._text(node.test)})")
        self.generic_visit(node)

    visit_IfExp = _condition

    def visit_Expr(self, node: ast.Expr) -> None:
        """A call for what it does."""
        if isinstance(node.value, ast.Call):
            self._add(node, self._start(node), self._end(node), "pass")
            self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if type(node.op) in COMPUTED:
            self._between(node, node.target, node.value, *COMPUTED[type(node.op)])
        self.generic_visit(node)

    def visit_Continue(self, node: ast.Continue) -> None:
        self._add(node, self._start(node), self._end(node), "break")

    def visit_Break(self, node: ast.Break) -> None:
        self._add(node, self._start(node), self._end(node), "continue")

    def generic_visit(self, node: ast.AST) -> None:
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list"):
                continue
            for part in value if isinstance(value, list) else [value]:
                if isinstance(part, ast.AST):
                    self.visit(part)
