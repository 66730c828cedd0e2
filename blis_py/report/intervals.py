"""Intervals on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from blis_py.metrics.intervals import Intervals
from blis_py.metrics.registry import main


def _rows() -> dict[str, str]:
    """Labels by the keys of a summary."""
    return {
        "throughput.requests_per_s": "requests/s",
        "throughput.output_tokens_per_s": "output tokens/s",
        **{
            f"{metric.key}.{stat}": metric.with_unit(stat)
            for metric in main()
            for stat in ("mean", "p50", "p90", "p99")
        },
        "goodput.requests_per_s": "goodput, requests/s",
        "prefix_hit_rate": "prefix hit rate",
        "preemptions": "preemptions",
    }


def print_intervals(intervals: Intervals, cluster: Mapping[str, object]) -> None:
    """The main figures with their intervals, and the chance that each target is met.

    Args:
        cluster: the figures of the run itself, as in its summary.
    """
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 100, highlight=False, markup=False)
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column(f"{intervals.reruns} reruns")
    for name in ("this run", f"{intervals.level:.0%} from", "to"):
        table.add_column(name, justify="right")
    for name, label in _rows().items():
        if (interval := intervals.metrics.get(name)) is not None:
            table.add_row(label, *map(_figure, (value_at(cluster, name), *interval)))
    console.print()
    console.print(table)
    console.print(f"what differs between them: {', '.join(intervals.varied)}")
    for text, chance in intervals.slo.items():
        stated = "no such requests" if chance is None else f"met with probability {chance:.0%}"
        console.print(f"{text}: {stated}")


def value_at(values: Any, path: str) -> Any:
    """The value at a dotted path; None if there is none."""
    for name in path.split("."):
        values = values.get(name) if isinstance(values, Mapping) else None
    return values


def _figure(value: object) -> str:
    if not isinstance(value, (int, float)):
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.4g}"
