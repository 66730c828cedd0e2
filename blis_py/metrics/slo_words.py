"""Targets and latencies in words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from blis_py.metrics.registry import METRICS
from blis_py.metrics.slo import limit_and_measured

_TARGET = re.compile(r"(?:(?P<slo_class>[^.]+)\.)?(?P<metric>[a-z0-9_]+)\.(?P<stat>[a-z]+|p\d+(?:\.\d+)?)")
_TIMES = 3.0
"""Ratio to the limit from which the distance is a factor, not a percentage."""


def title_of(what: str) -> str:
    """A target in the field's words: `critical p99 TTFT` from `critical.ttft.p99`."""
    match = _TARGET.fullmatch(what)
    if match is None:
        return what
    name = {"scheduling_delay": "scheduling delay"}.get(match["metric"], match["metric"].upper())
    return f"{match['slo_class'] or ''} {match['stat']} {name}".strip()


def latency(ms: float, beside: float | None = None) -> str:
    """A latency with its significant digits, in seconds from 1,000 ms on.

    Args:
        beside: a latency shown next to it, from which it must look different if it is.
    """
    scale, unit = (1000.0, "s") if ms >= 1000 else (1.0, "ms")
    if beside is not None and ms != beside and latency(ms) == latency(beside):
        return f"{ms / scale:,.6g} {unit}"
    return f"{ms / scale:,.0f} {unit}" if ms / scale >= 100 else f"{ms / scale:.3g} {unit}"


def sentence(verdict: Mapping[str, Any]) -> str:
    """A verdict with its distance: `p99 TTFT 514 ms exceeds 500 ms (by 3 %)`."""
    limit, measured, _ = limit_and_measured(verdict)
    title = title_of(verdict["slo"].partition("=")[0])
    unit = METRICS[verdict["metric"]].unit
    if verdict["met"] is None:
        return f"{title}: no such request"
    if measured is None:
        return f"{title} is never reached (target {_amount(limit, unit)})"
    shown, target = _amount(measured, unit, limit), _amount(limit, unit, measured)
    if verdict["met"]:
        return f"{title} {shown} (target {target}, {_share(1 - measured / limit)} below it)"
    return f"{title} {shown} exceeds {target} ({_excess(measured / limit)})"


def _amount(value: float, unit: Any, beside: float | None = None) -> str:
    return latency(value, beside) if unit.is_time else f"{value:,.4g} {unit.name}".rstrip()


def _excess(ratio: float) -> str:
    return f"{ratio:,.2g} ×" if ratio >= _TIMES else f"by {_share(ratio - 1)}"


def _share(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.01 or not share else f"{100 * share:.1g} %"
