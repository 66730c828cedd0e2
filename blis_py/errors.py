"""The one exception a user is meant to read."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class InputError(ValueError):
    """Bad input: says where it is, what was found there and what to do.

    The CLI prints it as a single line and exits with code 2.

    Args:
        problem: what is wrong, in a few words ("unknown key", "must be positive").
        file: the file it was read from, if any.
        key: dotted path of the offending key, flag or column ("clients[0].arrival.cv", "--tp").
        value: the value found there; omitted from the message when ``None``.
        fix: what to do about it, in the imperative.
    """

    def __init__(
        self,
        problem: str,
        *,
        file: str | Path | None = None,
        key: str | None = None,
        value: Any = None,
        fix: str | None = None,
    ) -> None:
        self.problem, self.file, self.key, self.value, self.fix = problem, file, key, value, fix
        where = ": ".join(str(part) for part in (file, key) if part is not None)
        found = "" if value is None else f" (found {value!r})"
        then = "" if fix is None else f"; {fix}"
        super().__init__((f"{where}: " if where else "") + problem + found + then)
