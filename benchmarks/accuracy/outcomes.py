"""Measured operating points with the errors of their predictions, and the groups that tables are made of."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from points import Point
from predictions import Prediction

from blis_py.hardware.layout import Layout

BESIDE = ("prefill and decode", "multi-token", "AMD", "a disaggregated")
"""Reasons that do not count against coverage: not aggregated, with speculation, or not NVIDIA's."""


@dataclass(frozen=True)
class Outcome:
    """A point and its errors, or the reason why there are none."""

    point: Point
    errors: dict[str, float]
    """Predicted over measured minus 1, by metric and statistic."""
    refused: str = ""
    contradictory: bool = False
    learned: bool = False
    """Whether its configuration was among those that terms were learned on."""
    without: dict[str, float] = field(default_factory=dict)
    """Errors by the terms that other model families show."""

    @property
    def aside(self) -> bool:
        return self.refused.startswith(BESIDE)

    @property
    def sound(self) -> bool:
        return bool(self.errors) and not self.contradictory and not self.point.contradicted


def outcome_of(point: Point, found: Prediction) -> Outcome:
    if "refused" in found:
        return Outcome(point, {}, refused=found["refused"])
    errors, without = (
        {name: found[key][name] / value - 1 for name, value in point.measured.items() if name in found[key]}
        if key in found
        else {}
        for key in ("predicted", "without")
    )
    return Outcome(point, errors, "", point.impossible(), found["learned"], without)


def sampled(points: Iterable[Point], every: int) -> Iterator[Point]:
    """Every n-th point of each configuration, shortest first."""
    groups: dict[tuple[object, ...], list[Point]] = defaultdict(list)
    for p in points:
        width = (p.gpus, p.ep, p.attention_dp)
        groups[p.source, p.engine, p.model, p.precision, p.gpu, width, p.refused].append(p)
    for group in groups.values():
        group.sort(key=lambda p: (p.prompt_tokens, p.output_tokens, p.concurrency))
        yield from group[::every]


def by(of: Iterable[Outcome], key: Callable[[Outcome], str]) -> dict[str, list[Outcome]]:
    found: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in of:
        found[key(outcome)].append(outcome)
    return dict(found)


def engine_of(outcome: Outcome) -> str:
    return outcome.point.engine


def configuration_of(outcome: Outcome) -> str:
    p = outcome.point
    layout = Layout(p.gpus, p.attention_dp, p.ep)
    return f"{p.engine}, {p.family} {p.precision or '16 bits'} on {p.gpu} {layout}"


def in_flight(outcome: Outcome) -> str:
    count = outcome.point.concurrency
    return "  1 to 8" if count <= 8 else " 9 to 64" if count <= 64 else "65 and more"


def format_of(outcome: Outcome) -> str:
    return outcome.point.precision or "16 bits"


def learned_label(outcome: Outcome) -> str:
    return f"{outcome.point.engine}, {'learned on' if outcome.learned else 'not learned on'}"
