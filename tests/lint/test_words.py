"""Words that texts and names do not use for parts of a program; `make lint` runs this, too.

Texts are docstrings, comments and all other strings of Python files, and whole files of other kinds.
"""

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
WORDS = re.compile(
    r"(?<![~\w])((?:some|any|every)(?:body|one)|nobody|whom?ever|told|asked)(?![/\w])", re.IGNORECASE
)
"""Words that no text uses, except in a path or in the name of a repository."""
WORDS_AND_VERBS = re.compile(rf"{WORDS.pattern}|\b(tells|knows|wants|remembers)\b", re.IGNORECASE)
KEYS = {"everybody", "nobody", "asked", "told"}
"""Strings that may stand for themselves: keys of JSON files, and former names, which stay accepted."""
PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
"""Words of an identifier in snake or camel case."""
CODE = re.compile(r"`[^`\n]*`")
FOLDERS = (*PRODUCT, "docs", "examples", "benchmarks", "notebooks", "training", "workloads", "profiles")
SUFFIXES = {".py", ".md", ".yaml", ".yml", ".toml", ".js", ".html", ".css", ".cu", ".cuh", ".h"}


def strings(source: str) -> Iterator[tuple[int, str]]:
    """Each line of a comment or of a string of a Python file, with its number."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value not in KEYS:
            yield from enumerate(node.value.splitlines(), node.lineno)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def found(source: str, words: re.Pattern[str] = WORDS, suffix: str = ".py") -> list[tuple[int, str]]:
    """Line numbers and words; names of code in backquotes are free."""
    if not words.search(source):
        return []
    lines = strings(source) if suffix == ".py" else enumerate(source.splitlines(), 1)
    return sorted((line, hit[0]) for line, text in lines for hit in words.finditer(CODE.sub("", text)))


@pytest.mark.parametrize("folder", [*FOLDERS, pytest.param("tests", marks=pytest.mark.slow), "."])
def test_parts_of_a_program_are_not_persons(folder: str) -> None:
    paths = sorted((ROOT / folder).glob("*" if folder == "." else "**/*"))
    files = [path for path in paths if path.suffix in SUFFIXES and path.name != "test_words.py"]
    words = WORDS if folder == "tests" else WORDS_AND_VERBS
    hits = [
        f"{path.relative_to(ROOT)}:{line}: {word}"
        for path in files
        for line, word in found(path.read_text(encoding="utf-8"), words, path.suffix)
    ]
    assert files
    assert not hits, "say it in the field's terms:\n" + "\n".join(hits)


def test_all_texts_of_a_program_are_read_and_its_code_is_not() -> None:
    source = '''"""First line.

Whoever waits is told; `nobody` is a name.
"""
told = data["asked"]
"""Nobody's."""
x = f"{told} asked for {x}", "someone/model"  # everybody knows
'''
    words = [(3, "Whoever"), (3, "told"), (6, "Nobody"), (7, "asked"), (7, "everybody")]
    assert found(source) == words
    assert found(source, WORDS_AND_VERBS) == [*words, (7, "knows")]


def test_a_file_of_another_kind_is_read_as_a_whole() -> None:
    assert found("# Nobody\nx: told # `asked`\n", suffix=".yaml") == [(1, "Nobody"), (2, "told")]


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
