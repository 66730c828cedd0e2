"""Runs as points of throughput, cost and latency, and their SLO classes, with what the registry names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from blis_py.metrics.load import SATURATED
from blis_py.metrics.registry import headings_in, shown_in
from blis_py.pages.cost import cost_of

Json = dict[str, Any]


def axes() -> list[Json]:
    """The latencies that points are drawn at: path in the summary, label, unit."""
    return [
        {"key": f"{each.key}.{stat}", "label": f"{each.label} {stat}", "unit": each.unit.name}
        for each, stat in shown_in("axes")
    ]


def columns() -> dict[str, str]:
    """Headings of the latencies of an SLO class, by path in the summary."""
    return headings_in("pages")


def classes(summary: Mapping[str, Any]) -> list[Json]:
    """Main figures by SLO class."""
    return [
        {
            "name": name,
            "requests": group["requests"]["injected"],
            **{path: _figure(group, path) for path in columns()},
        }
        for name, group in summary["classes"].items()
    ]


def point(summary: Mapping[str, Any], settings: Mapping[str, Any]) -> Json:
    """A run as a point."""
    cluster = summary["cluster"]
    return point_at(lambda path: _figure(cluster, path), summary["load"]["verdict"], settings)


def point_at(figure: Callable[[str], float | None], verdict: str | None, settings: Mapping[str, Any]) -> Json:
    """A run or a candidate of a search as a point.

    Args:
        figure: its figures by path.
    """
    return {
        **{path: figure(path) for path in headings_in("axes")},
        "throughput": figure("throughput.output_tokens_per_s"),
        "saturated": verdict == SATURATED,
        "dollars": cost_of(settings).dollars_per_hour,
    }


def _figure(group: Mapping[str, Any], path: str) -> Any:
    key, _, statistic = path.partition(".")
    return group[key][statistic]
