"""Error bars of a result."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Intervals:
    """What many reruns came to."""

    reruns: int
    level: float
    """Share of the reruns within an interval; as many lie below as above."""
    varied: tuple[str, ...]
    """What was different from one rerun to the next."""
    metrics: dict[str, tuple[float, float] | None]
    """Low and high by name, such as `ttft_ms.p99`; `None` where some rerun has no such figure."""
    slo: dict[str, float | None]
    """Probability that each target is met; `None` where it speaks of requests that never come."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
