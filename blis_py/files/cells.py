"""Escaping of free text in tables that a spreadsheet may open: formulas get a leading quote.

A text that begins with a quote before a formula is escaped as well, and reading removes one quote, so that
any text survives a round trip.
"""

from __future__ import annotations

from collections.abc import Sequence

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def harmless(text: str) -> str:
    """Escaped cell content."""
    return f"'{text}" if text.lstrip("'").startswith(_FORMULA) else text


def meant(cell: str) -> str:
    """Unescaped cell content."""
    return cell[1:] if cell.startswith("'") and cell.lstrip("'").startswith(_FORMULA) else cell


def all_harmless(texts: Sequence[str]) -> Sequence[str]:
    together = "".join(texts)
    if not any(mark in together for mark in _FORMULA):
        return texts
    return [harmless(text) for text in texts]
