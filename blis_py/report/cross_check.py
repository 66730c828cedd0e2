"""Latency models beside each other on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from blis_py.metrics.registry import shown_in


def print_cross_check(rows: Sequence[Mapping[str, Any]]) -> None:
    """A line for each latency model; those that do not apply below, with the reason."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 100, highlight=False, markup=False)
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("latency model")
    columns = {"verdict": "verdict", "requests_per_s": "requests/s"}
    columns |= {f"{metric.key}.{stat}": f"{metric.label} {stat}" for metric, stat in shown_in("models")}
    for heading in columns.values():
        table.add_column(heading, justify="left" if heading == "verdict" else "right")
    for row in rows:
        if "refused" not in row:
            table.add_row(row["latency_model"], *(_figure(row[key]) for key in columns))
    console.print()
    console.print(table)
    for row in rows:
        if "refused" in row:
            console.print(f"{row['latency_model']} does not apply: {row['refused']}")


def _figure(value: object) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, (int, float)):
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.4g}"
