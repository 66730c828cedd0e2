"""Free text in a table that a spreadsheet may open: what it would run as a formula is given a quote in front.

A quote before what begins like a formula is such a quote, and is taken away on reading, so that any text is
read back as it was written.
"""

from __future__ import annotations

from collections.abc import Sequence

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def harmless(text: str) -> str:
    """What to write into the cell."""
    return f"'{text}" if text.lstrip("'").startswith(_FORMULA) else text


def meant(cell: str) -> str:
    """What was written there."""
    return cell[1:] if cell.startswith("'") and cell.lstrip("'").startswith(_FORMULA) else cell


def all_harmless(texts: Sequence[str]) -> Sequence[str]:
    together = "".join(texts)
    if not any(mark in together for mark in _FORMULA):
        return texts
    return [harmless(text) for text in texts]
