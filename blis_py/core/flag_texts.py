"""Readers of flags whose texts name several things, or whose numbers have a meaning of BLIS's.

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
        return [float(part) for part in text.split(",")]
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
    what: str, example: str, sign: str = "=", read: Callable[[str], Any] = float
) -> Callable[[str, str], dict[str, Any]]:
    """A reader of comma-separated pairs, each name once.

    Args:
        what: "each class once with its share".
        example: a text that is right.
        sign: between name and value.
        read: of a value; raises ValueError if it is none.
    """

    def pairs_of(name: str, text: str) -> dict[str, Any]:
        pairs: dict[str, Any] = {}
        for part in text.split(","):
            label, between, value = (piece.strip() for piece in part.partition(sign))
            try:
                known = read(value)
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
    if not text.isdecimal():
        raise ValueError(text)
    return int(text)


def word(text: str) -> str:
    """A text that is not empty.

    Raises:
        ValueError: an empty one.
    """
    if not text:
        raise ValueError(text)
    return text


def zero_is_usual(usual: int) -> Callable[[str, int], int]:
    """A reader for which 0 is BLIS's default value."""
    return lambda name, value: value or usual


def largest_is_never(name: str, value: str) -> str | None:
    """None for the largest 64-bit number, BLIS's default horizon."""
    return None if value == str(2**63 - 1) else value


def negative_is_endless(name: str, value: float) -> float | None:
    """Seconds, None if negative.

    Raises:
        InputError: 0.
    """
    if value == 0:
        fix = "give seconds, or a negative value for endless patience"
        raise InputError("must not be 0", key=name, fix=fix)
    return None if value < 0 else value


scorers = pairs("each scorer once with its weight", "queue-depth:1,kv-utilization:2", ":")
"""Scorers and their weights."""
