"""Parts of a document: tiles, tables, charts, code, in sections; the template writes them as HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from blis_py.pages._numbers import number

Chart = dict[str, Any]
"""A specification for `assets/chart.js` or `assets/bars.js`."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A value in a tile or a table."""

    text: str
    value: float | int | None = None
    """The number behind the text, for sorting and for readers of the file."""
    source: str = ""
    """File and path of the number: `summary.json: cluster.ttft_ms.p99`."""
    tone: str = ""
    """`good`, `bad`, `warn`, or neither."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A headline figure."""

    name: str
    cell: Cell
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells under headings; the first column names the row."""

    caption: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    texts: frozenset[int] = frozenset()
    """Columns of text beside the first."""
    sortable: bool = False


@dataclass(frozen=True, slots=True)
class Code:
    """A block of text to copy."""

    caption: str
    text: str
    folded: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a document with a heading."""

    key: str
    title: str
    paragraphs: Sequence[str] = ()
    tiles: Sequence[Tile] = ()
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    codes: Sequence[Code] = ()


@dataclass(frozen=True, slots=True)
class Document:
    """A report."""

    title: str
    kind: str
    subtitle: str
    verdict: Cell
    """The answer in a sentence."""
    findings: Sequence[Cell] = ()
    """Targets and warnings below it."""
    sections: Sequence[Section] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    """Files embedded as they are, by name."""


def figure(values: Mapping[str, Any], path: str, *, file: str, scale: float = 1.0) -> Cell:
    """The number at a dotted path of a file.

    Args:
        scale: factor on the text alone; the value stays that of the file.
    """
    value: Any = values
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return Cell("–", None, f"{file}: {path}")
    return Cell(number(value * scale), value, f"{file}: {path}")
