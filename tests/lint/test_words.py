"""Words that docstrings and comments do not use for parts of a program; `make lint` runs this, too."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator

import pytest
from sources import PRODUCT, ROOT

WORDS = re.compile(r"\b(somebody|nobody|anybody|everybody|whoever|told|asked)\b", re.IGNORECASE)
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


def test_names_of_tests_say_what_is_in_the_fields_terms() -> None:
    named = re.compile(r"\bdef (test_\w*?(?:somebody|nobody|anybody|everybody|whoever|_told|_asked)\w*)")
    hits = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for name in named.findall(path.read_text(encoding="utf-8"))
    ]
    assert not hits, "\n".join(hits)
