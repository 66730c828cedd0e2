"""Rules of releases, switched one by one in our scheduler: which scenarios show them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields, replace
from typing import Any

from benchmarks.engines import ours
from benchmarks.engines.compare import first_difference
from benchmarks.engines.scenario import Scenario, StepTrace
from blis_py.core.config import ReleaseRules, SchedulerConfig


def switched(config: SchedulerConfig) -> dict[str, SchedulerConfig]:
    """The settings with each rule of `ReleaseRules` that is on or off the other way, by its name; with a
    number, without it."""
    found: dict[str, SchedulerConfig] = {}
    for field in fields(ReleaseRules):
        value, default = getattr(config, field.name), getattr(SchedulerConfig, field.name)
        other: Any = not value if isinstance(value, bool) else default
        if other != value:
            found[field.name] = replace(config, **{field.name: other})
    return found


def shown(
    scenario: Scenario, engine: list[StepTrace], config: SchedulerConfig, besides: Collection[str] = ()
) -> set[str]:
    """Rules without which our scheduler differs from an engine's trace in a scenario.

    Args:
        besides: rules that are not tried.
    """
    return {
        name
        for name, other in switched(config).items()
        if name not in besides and first_difference(engine, ours.trace(scenario, other)) is not None
    }
