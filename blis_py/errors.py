"""The one exception meant for users."""

from __future__ import annotations

import reprlib
from pathlib import Path
from typing import Any

LONGEST_VALUE = 100
"""Longest value shown in a message, in characters."""
_LONGEST_PART, LONGEST_LINE = 300, 2000


class _Short(reprlib.Repr):
    """`repr` with a bounded length, for objects of any size and depth."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxlist, self.maxtuple, self.maxdict = 4, 12, 12, 12
        self.maxstring = self.maxother = self.maxlong = LONGEST_VALUE

    def repr_int(self, x: int, level: int) -> str:
        bits = x.bit_length()
        return super().repr_int(x, level) if bits < 300 else f"a whole number of {bits:,} bits"


_short = _Short().repr


class InputError(ValueError):
    """Bad input: location, value found, and remedy.

    The CLI prints it as a single line and exits with code 2.

    Args:
        problem: what is wrong, in a few words ("unknown key", "must be positive").
        file: the file it was read from, if any.
        key: dotted path of the offending key, flag or column ("clients[0].arrival.cv", "--tp").
        value: the value found there, cut where it is long; omitted from the message when ``None``.
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
        where = ": ".join(plain(str(part)) for part in (file, key) if part is not None)
        shown_value = "" if value is None else f" (found {plain(_short(value))})"
        then = "" if fix is None else f"; {plain(fix, LONGEST_LINE)}"
        super().__init__((f"{where}: " if where else "") + plain(problem) + shown_value + then)


def plain(text: str, longest: int = _LONGEST_PART) -> str:
    """Text on one line of bounded length, without terminal control characters."""
    if len(text) > longest:
        text = f"{text[: longest // 2]}…{text[-longest // 2 :]}"
    if not text.isprintable():
        text = " ".join(text.split())
        text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    return text
