"""The common part of all runs of a study: every given setting that is not varied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blis_py.config.loader import load_config
from blis_py.config.models import RunConfig
from blis_py.config.paths import workload_source
from blis_py.errors import InputError
from blis_py.planning.axes import Axis, Point

Override = tuple[str, str, Any]
"""Name, key and value of an override."""


@dataclass(frozen=True)
class Study:
    """Arguments of `load_config`, common to all runs."""

    path: str | Path | None = None
    overrides: tuple[Override, ...] = ()
    sets: tuple[str, ...] = ()
    policy_config: str | Path | None = None
    start: RunConfig | None = None

    def config(self, point: Point | None = None, axes: Sequence[Axis] = ()) -> RunConfig:
        """The configuration, with the values of a point.

        Raises:
            InputError: settings that contradict each other.
        """
        keys = {each.name: each.key for each in axes}
        more = [_override(name, keys[name], value) for name, value in (point or {}).items()]
        return load_config(
            self.path,
            [*self.overrides, *more],
            sets=self.sets,
            policy_config=self.policy_config,
            base=self.start,
        )

    def check(self, axes: Sequence[Axis]) -> None:
        """
        Raises:
            InputError: a setting both given and varied, or varied twice.
        """
        given = {key: name for name, key, _ in self.overrides}
        given |= {key: f"--set {key}" for key in (text.partition("=")[0].strip() for text in self.sets)}
        for each in axes:
            if each.key in given:
                problem = f"is varied, and given by {given[each.key]}, too"
                raise InputError(problem, key=each.name, fix="drop one of the two")
            given[each.key] = f"--vary {each.name}"

    def over(self, overrides: Mapping[str, Any]) -> Study:
        """A copy with these keys set."""
        more = tuple((key, key, value) for key, value in overrides.items())
        return Study(self.path, (*self.overrides, *more), self.sets, self.policy_config, self.start)


def _override(name: str, key: str, value: Any) -> Override:
    if key == "workload" and isinstance(value, str):
        return name, workload_source(value), value
    return name, key, value
