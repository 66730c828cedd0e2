"""Common part of `blis models`, `blis gpus` and their like: rows, as a table or as JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from blis_py.cli.flags.flag import Flags, Group
from blis_py.cli.flags.formats import FORMAT, format_of

Row = Mapping[str, Any]

GROUPS: tuple[Group, ...] = (("Output", (FORMAT,)),)


def show(flags: Flags, rows: Sequence[Row], columns: Mapping[str, str], more: Iterable[str] = ()) -> None:
    """Print the rows: all keys as JSON, or those named in `columns` as a table.

    Args:
        columns: key -> heading. Numbers stand to the right.
        more: lines below the table.
    """
    if format_of(flags) == "json":
        from blis_py.result import to_json

        sys.stdout.write(to_json(list(rows)))
    else:
        _table(rows, columns, more)
    sys.stdout.flush()


def _table(rows: Sequence[Row], columns: Mapping[str, str], more: Iterable[str]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False, emoji=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for key, heading in columns.items():
        numbers = all(isinstance(row[key], int | float) or row[key] is None for row in rows)
        table.add_column(heading, justify="right" if numbers else "left", no_wrap=numbers)
    for row in rows:
        table.add_row(*(_cell(row[key]) for key in columns))
    console.print(table)
    for line in more:
        console.print(line, markup=False)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}".removesuffix(".0") if isinstance(value, int | float) else str(value)
