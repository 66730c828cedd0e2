"""The engine under the name that a wheel installs: `blis_engine`, since `engine` could be any other package.

The repository has it as `engine`. Renaming concerns whole names only: those of import statements, and strings
that are the name of a module.
"""

from __future__ import annotations

import io
import re
import shutil
import tokenize
from collections.abc import Iterator
from pathlib import Path

SOURCE, INSTALLED = "engine", "blis_engine"
_LEFT_OUT = ("checkpoints", "__pycache__")
_MODULE = re.compile(rf"""(?P<quote>["']){SOURCE}(?P<rest>(\.\w+)+)(?P=quote)""")
_BETWEEN = (tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.DEDENT)
"""Tokens behind which a statement may begin."""


def write(root: Path, folder: Path) -> None:
    """The renamed package below a folder, without checkpoints.

    Args:
        root: of the repository.
    """
    shutil.copytree(root / SOURCE, folder / INSTALLED, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    for path in (folder / INSTALLED).rglob("*.py"):
        path.write_text(renamed(path.read_text("utf-8"), str(path.relative_to(folder))), encoding="utf-8")


def renamed(source: str, name: str) -> str:
    """The source of a module under the new name.

    Args:
        name: of the file, for the error.

    Raises:
        ValueError: `import engine.x`, which would need its uses renamed as well.
    """
    lines = source.splitlines(keepends=True)
    for (row, column), old, new in reversed([*_changes(source, name)]):
        line = lines[row - 1]
        lines[row - 1] = f"{line[:column]}{new}{line[column + len(old) :]}"
    return "".join(lines)


def _changes(source: str, name: str) -> Iterator[tuple[tuple[int, int], str, str]]:
    """Place, old and new text of every name to change, in order."""
    begins, keyword = True, ""  # whether a statement begins here, and with which word the last one did
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.string == SOURCE and keyword == "from":
            yield token.start, SOURCE, INSTALLED
        elif token.string == SOURCE and keyword == "import":
            raise ValueError(f"{name}:{token.start[0]}: write `from {SOURCE} import …`, which can be renamed")
        elif token.type == tokenize.STRING and (whole := _MODULE.fullmatch(token.string)):
            quote = whole["quote"]
            yield token.start, token.string, f"{quote}{INSTALLED}{whole['rest']}{quote}"
        keyword = token.string if begins else ""
        begins = (
            token.type in _BETWEEN
            or token.string in (";", ":")
            or (begins and token.type == tokenize.COMMENT)
        )
