"""Figures of a sweep's table in words."""

from __future__ import annotations

from blis_py.metrics.slo_words import latency, title_of
from blis_py.planning.sweep import Sweep


def titled(metric: str) -> str:
    """A figure in the field's words: `p99 TTFT`, `output tokens per s`."""
    name, _, stat = metric.partition(".")
    if name.endswith("_ms"):
        return title_of(f"{name.removesuffix('_ms')}.{stat}")
    return stat.replace("_", " ") if name == "throughput" else metric


def amount(metric: str, value: float | None) -> str:
    """A figure, with its unit where it is a time."""
    if value is None:
        return "none"
    return latency(value) if metric.partition(".")[0].endswith("_ms") else f"{value:,.6g}"


def notes(done: Sweep) -> list[str]:
    """Notes of the runs, each once: on what their step times were not validated, what has no effect."""
    every = (note for row in done.rows for note in row.outcome.facts.get("notes", ()))
    return list(dict.fromkeys(map(str, every)))
