"""Words that docstrings, comments and names do not use for parts of a program; `make lint` runs this, too."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator

import pytest
from sources import PRODUCT, ROOT, modules

PERSONS = {"somebody", "nobody", "anybody", "everybody", "whoever", "told", "untold", "asked", "came"}
VERBS = {"tell", "tells", "said", "saw", "knows", "asks", "gave"}
"""Verbs of persons, which the product's own names do without, too."""
WORDS = re.compile(r"\b(somebody|nobody|anybody|everybody|whoever|told|asked)\b", re.IGNORECASE)
PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
"""Words of an identifier in snake or camel case."""
CODE = re.compile(r"`[^`]*`")


def prose(source: str) -> Iterator[tuple[int, str]]:
    """Each line of a comment, or of a string that stands by itself, with its number."""
    for node in ast.walk(ast.parse(source)):
        text = node.value if isinstance(node, ast.Expr) else None
        if isinstance(text, ast.Constant) and isinstance(text.value, str):
            yield from enumerate(text.value.splitlines(), text.lineno)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def found(source: str) -> list[tuple[int, str]]:
    """Line numbers and words; names of code in backquotes are free."""
    if not WORDS.search(source):
        return []
    return sorted((line, word) for line, text in prose(source) for word in WORDS.findall(CODE.sub("", text)))


@pytest.mark.parametrize("part", PRODUCT)
def test_parts_of_a_program_are_not_persons(part: str) -> None:
    files = sorted((ROOT / part).rglob("*.py"))
    hits = [
        f"{path.relative_to(ROOT)}:{line}: {word}"
        for path in files
        for line, word in found(path.read_text(encoding="utf-8"))
    ]
    assert not hits, "say it in the field's terms:\n" + "\n".join(hits)


def test_docstrings_attributes_and_comments_are_read_and_code_is_not() -> None:
    source = '''"""First line.

Whoever waits is told; `nobody` is a name.
"""
told = "asked"
"""Nobody's."""
x = 1  # everybody
'''
    assert found(source) == [(3, "Whoever"), (3, "told"), (6, "Nobody"), (7, "everybody")]


def names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Names that a module gives to something of its own, with their lines."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.lineno, node.name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.arg(arg=name):
                yield node.lineno, name


def personified(path: str, tree: ast.Module, words: set[str] = PERSONS) -> Iterator[str]:
    """Names of a module, and the module's own, with one of these words in them."""
    for line, name in ((0, path.rpartition("/")[2].removesuffix(".py")), *names(tree)):
        if words & {word.lower() for word in PARTS.findall(name)}:
            yield f"{path}:{line}: {name}"


@pytest.mark.parametrize("part", [*PRODUCT, pytest.param("tests", marks=pytest.mark.slow), "benchmarks"])
def test_names_are_the_fields_nouns(part: str) -> None:
    words = PERSONS | VERBS if part in PRODUCT else PERSONS
    hits = [hit for path, tree in modules(part).items() for hit in personified(path, tree, words)]
    assert not hits, "name it in the field's terms:\n" + "\n".join(hits)


def test_all_kinds_of_names_are_read_and_texts_are_not() -> None:
    source = "class Asked:\n  def _told(self, nobody): x.told_ns = f.told(ASKED='told')\nmasked = 'asked'\n"
    assert [hit.rpartition(" ")[2] for hit in personified("a/was_told.py", ast.parse(source))] == [
        "was_told",
        "Asked",
        "_told",
        "nobody",
        "told_ns",
    ]
