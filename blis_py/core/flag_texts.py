"""Readers of flags whose texts name several things.

Each takes the flag and its text; a setting names its reader (`setting(read=…)`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from blis_py.errors import InputError


def numbers(name: str, text: str) -> list[float]:
    """`1,2.5,3`.

    Raises:
        InputError: anything else.
    """
    try:
        return [decimal(part) for part in text.split(",")]
    except ValueError:
        raise InputError("must be numbers", key=name, value=text, fix="write 1,2.5,3") from None


def whole_numbers(name: str, text: str) -> list[int]:
    """`1,2,4`.

    Raises:
        InputError: anything else.
    """
    try:
        return [digits(part.strip()) for part in text.split(",")]
    except ValueError:
        raise InputError("must be whole numbers", key=name, value=text, fix="write 1,2,4") from None


def pairs(
    what: str, example: str, sign: str = "=", read: Callable[[str], Any] | None = None
) -> Callable[[str, str], dict[str, Any]]:
    """A reader of comma-separated pairs, each name once.

    Args:
        what: "each class once with its share".
        example: a text that is right.
        sign: between name and value.
        read: of a value, by default a number; raises ValueError if it is none.
    """

    def pairs_of(name: str, text: str) -> dict[str, Any]:
        pairs: dict[str, Any] = {}
        for part in text.split(","):
            label, between, value = (piece.strip() for piece in part.partition(sign))
            try:
                known = (read or decimal)(value)
            except ValueError:
                between = ""
            if not between or not label or label in pairs:
                raise InputError(f"must give {what}", key=name, value=text, fix=f"write {example}")
            pairs[label] = known
        return pairs

    return pairs_of


def digits(text: str) -> int:
    """A whole number without a sign.

    Raises:
        ValueError: anything else.
    """
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(text)
    return int(text)


def decimal(text: str) -> float:
    """A number in the digits 0 to 9.

    Raises:
        ValueError: anything else.
    """
    if not text.isascii():
        raise ValueError(text)
    return float(text)


def word(text: str) -> str:
    """A text that is not empty.

    Raises:
        ValueError: an empty one.
    """
    if not text:
        raise ValueError(text)
    return text


scorers = pairs("each scorer once with its weight", "queue-depth:1,kv-utilization:2", ":")
"""Scorers and their weights."""
