"""Expansion of shell words: variables, lists, arithmetic; what is not set stays open."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

from blis_py.launch.open_text import is_open, unknown
from blis_py.launch.shell_lexer import ShellWord, WordPiece, pieces_of

_PARAMETER = re.compile(r"(?P<name>\w+|[@*#?!$-])(?:\[(?P<index>[^\]]*)\])?(?P<rest>.*)", re.DOTALL)
_UNTRACKED = tuple("?!$-")
MAX_FIELDS = 10_000
"""Most words that one word may become."""
MAX_LETTERS = 1_000_000
_OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


class ShellVariables:
    """Variables of a script, and its arguments."""

    def __init__(self, given: dict[str, str]) -> None:
        self.values: dict[str, str | list[str]] = dict(given)
        self.exported: set[str] = set(given)
        self.arguments: list[str] = []

    def text(self, name: str) -> str | None:
        """The value; of a list its first; None if it is not set."""
        if name.isdigit():
            number = int(name)
            return self.arguments[number - 1] if 0 < number <= len(self.arguments) else None
        if name == "#":
            return str(len(self.arguments))
        if name in "@*":
            return " ".join(self.arguments)
        value = self.values.get(name)
        return (value[0] if value else "") if isinstance(value, list) else value

    def fields(self, name: str) -> list[str]:
        """All values of a list."""
        if name in "@*":
            return self.arguments
        value = self.values.get(name)
        return list(value) if isinstance(value, list) else [unknown(f"${name}")] if value is None else [value]

    def words(self, word: ShellWord) -> list[str]:
        """The words that a word becomes."""
        fields: list[str] = []
        begun, current = False, ""
        for piece in word.pieces:
            several = self._list_of(piece)
            if several is not None:
                if several:
                    fields += [current + several[0], *several[1:]]
                    current, begun = fields.pop(), True
                continue
            text = self._piece(piece)
            if piece.quoted or piece.kind == "text":
                begun, current = True, current + text
                continue
            parts = [text] if is_open(text) else text.split()  # what is not known has no words
            if text[:1].isspace() and begun:
                fields.append(current)
                current, begun = "", False
            for number, part in enumerate(parts):
                if number:
                    fields.append(current)
                    current = ""
                current, begun = current + part, True
            if text[-1:].isspace() and begun:
                fields.append(current)
                current, begun = "", False
        if begun:
            fields.append(current)
        return [field[:MAX_LETTERS] for field in fields[:MAX_FIELDS]]

    def joined(self, pieces: list[WordPiece]) -> str:
        """The text of pieces, without division into words."""
        return "".join(self._piece(piece) for piece in pieces)[:MAX_LETTERS]

    def _list_of(self, piece: WordPiece) -> list[str] | None:
        """The values of `${NAME[@]}` or `$@`; None for anything else."""
        if piece.kind != "variable":
            return None
        if piece.text == "@":
            return self.arguments
        match = _PARAMETER.fullmatch(piece.text)
        if match is None or match["index"] not in ("@", "*"):
            return None
        if match["rest"].startswith((":-", "-")) and match["name"] not in self.values:
            return self.joined(pieces_of(match["rest"].lstrip(":-"), 0)).split()
        if match["rest"].startswith((":+", "+")) and match["name"] not in self.values:
            return []
        return self.fields(match["name"])

    def _piece(self, piece: WordPiece) -> str:
        if piece.kind == "text":
            return piece.text
        if piece.kind == "variable":
            return self.variable(piece.text)
        if piece.kind == "number":
            found = self.number(piece.text)
            return unknown(f"$(({piece.text}))") if found is None else str(int(found))
        return self._output(piece.text)

    def _output(self, command: str) -> str:
        """The output of `echo`; that of any other command is unknown."""
        words = command.split()
        if words[:1] == ["echo"] and not re.search(r"[|;&<>`]|\$\(", command):
            return self.joined(pieces_of(command.split("echo", 1)[1].strip().strip("\"'"), 0))
        return unknown(f"$({' '.join(words)})")

    def variable(self, text: str) -> str:
        """The value of `${TEXT}`."""
        if text.startswith("#"):
            name = text[1:].partition("[")[0]
            if "[" in text:
                return str(len(self.fields(name)))
            value = self.text(name or "#")
            return unknown(f"${{{text}}}") if value is None else str(len(value)) if name else value
        if text.startswith("!"):
            pointed = self.text(text[1:])
            return unknown(f"${{{text}}}") if pointed is None or is_open(pointed) else self.variable(pointed)
        match = _PARAMETER.fullmatch(text)
        if match is None:
            return unknown(f"${{{text}}}")
        name, rest = match["name"], match["rest"]
        value = self._indexed(name, match["index"])
        if name in _UNTRACKED:
            value = None
        return self._with_default(name, value, rest) if rest else self._value(name, value)

    def _indexed(self, name: str, index: str | None) -> str | None:
        if index is None:
            return self.text(name)
        if index in ("@", "*"):
            return " ".join(self.fields(name)) if name in self.values else None
        fields, number = self.fields(name) if name in self.values else [], self.number(index)
        return fields[int(number)] if number is not None and 0 <= number < len(fields) else None

    @staticmethod
    def _value(name: str, value: str | None) -> str:
        return unknown(f"${name}") if value is None else value

    def _with_default(self, name: str, value: str | None, rest: str) -> str:
        match = re.match(r"(:?)([-=+?])(.*)", rest, re.DOTALL)
        if match is None:
            return self._edited(name, value, rest)
        colon, kind, other = match.groups()
        is_set = value is not None and (value != "" or not colon)
        instead = self.joined(pieces_of(other.strip("\"'") if other[:1] in "\"'" else other, 0))
        if kind == "+":
            return instead if is_set else ""
        if is_set or kind == "?":
            return self._value(name, value)
        if kind == "=":
            self.values[name] = instead
        return instead

    def _edited(self, name: str, value: str | None, rest: str) -> str:
        """`${NAME%suffix}`, `${NAME#prefix}`, `${NAME/old/new}`, `${NAME,,}`, `${NAME:from:length}`."""
        if value is None or is_open(value):
            return unknown(f"${{{name}{rest}}}") if value is not None else unknown(f"${name}")
        if rest in (",,", "^^"):
            return value.lower() if rest == ",," else value.upper()
        if match := re.fullmatch(r":(\d+)(?::(\d+))?", rest):
            return value[int(match[1]) :][: None if match[2] is None else int(match[2])]
        if match := re.fullmatch(r"//?([^/]+)(?:/(.*))?", rest):
            return value.replace(match[1], match[2] or "", -1 if rest.startswith("//") else 1)
        for mark in ("%%", "%", "##", "#"):
            if rest.startswith(mark):
                return _cut(value, mark, rest[len(mark) :])
        return unknown(f"${{{name}{rest}}}")

    def number(self, text: str) -> int | None:
        """The value of an arithmetic expression; None if it cannot be computed."""
        names = re.sub(r"\$\{([^{}]+)\}", lambda found: self.variable(found[1]), text)
        names = re.sub(r"\$(\w+)", r"\1", names)
        condition, chooses, sides = names.partition("?")
        if chooses:
            chosen = self.number(condition)
            first, _, second = sides.rpartition(":")
            return None if chosen is None else self.number(first if chosen else second)
        plain = re.sub(r"[A-Za-z_]\w*", lambda found: self.text(found[0]) or "?", names)
        plain = plain.replace("&&", " and ").replace("||", " or ")
        if len(plain) > 200 or re.search(r"[^\d\s+*/%()<>=!andor-]|\*\*", plain):
            return None
        try:
            return _computed(ast.parse(re.sub(r"\b0+(?=\d)", "", plain).strip(), mode="eval").body)
        except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
            return None


def _cut(value: str, mark: str, pattern: str) -> str:
    """The value without the shortest or longest beginning or end of a pattern."""
    ends = range(len(value) + 1)
    if mark[0] == "%":
        cuts = [value[:end] for end in reversed(ends) if fnmatchcase(value[end:], pattern)]
    else:
        cuts = [value[end:] for end in ends if fnmatchcase(value[:end], pattern)]
    return value if not cuts else cuts[-1] if len(mark) == 2 else cuts[0]


def _computed(node: ast.expr) -> int:
    """
    Raises:
        ValueError: not an expression of whole numbers.
    """
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return int(_OPERATORS[type(node.op)](_computed(node.left), _computed(node.right)))
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _OPERATORS:
        return int(_OPERATORS[type(node.ops[0])](_computed(node.left), _computed(node.comparators[0])))
    if isinstance(node, ast.BoolOp):
        values = [_computed(each) for each in node.values]
        return int(all(values) if isinstance(node.op, ast.And) else any(values))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not):
        value = _computed(node.operand)
        return -value if isinstance(node.op, ast.USub) else int(not value)
    raise ValueError("not an expression of whole numbers")
