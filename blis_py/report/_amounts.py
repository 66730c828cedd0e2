"""Numbers as tables show them."""

from __future__ import annotations


def ms(value: float | None) -> str:
    """Three to five digits of a time in ms; from 1,000 ms on in seconds, with their unit."""
    if value is None:
        return "-"
    return _digits(value) if value < 1000 else f"{_digits(value / 1000)} s"


def _digits(value: float) -> str:
    return f"{value:,.{2 if value < 100 else 1 if value < 1000 else 0}f}"


def short(value: float | None) -> str:
    """Two digits behind the point, or fewer of a large number."""
    return "-" if value is None else f"{value:,.{2 if value < 10 else 1 if value < 1000 else 0}f}"


def count(number: int, noun: str) -> str:
    """A number of things."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
