"""Confidence intervals of a result."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Intervals:
    """Aggregate of many reruns."""

    reruns: int
    level: float
    """Share of the reruns within an interval; the rest is split evenly below and above."""
    varied: tuple[str, ...]
    """Inputs that differ between reruns."""
    metrics: dict[str, tuple[float, float] | None]
    """Low and high by name, such as `ttft_ms.p99`; `None` if undefined in any rerun."""
    slo: dict[str, float | None]
    """Probability that each target is met; `None` if its requests do not occur."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
