"""The scheduler's settings in the preset of a release, so that presets and comparison check each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from typing import Any

from blis_py.config.engine import EnginePreset, load_engine
from blis_py.core.config import SchedulerConfig
from blis_py.errors import InputError

_SECTION = "scheduler."
FIELDS = frozenset(field.name for field in fields(SchedulerConfig))
"""Settings of our scheduler."""
_OWN_NAMES = {"policy": "scheduler"}
"""Fields by another name than their key in the configuration."""


@lru_cache(maxsize=64)
def preset_of(package: str, version: str) -> EnginePreset:
    """The preset of a release; of one without, the engine's newest."""
    minor = ".".join(version.split(".")[:2])
    for name in (f"{package}-{version}", f"{package}-{minor}"):
        try:
            return load_engine(name)
        except InputError:
            continue
    return load_engine(package)


def scheduler_settings(package: str, version: str, asynchronous: bool) -> dict[str, Any]:
    """Fields of `SchedulerConfig` that the preset of a release sets, for one loop."""
    preset = preset_of(package, version)
    values = preset.on({f"{_SECTION}async_scheduling": asynchronous})
    found: dict[str, Any] = {}
    for key, value in values.items():
        name = key.removeprefix(_SECTION)
        name = _OWN_NAMES.get(name, name)
        if key.startswith(_SECTION) and name in FIELDS and preset.applies(key, asynchronous):
            found[name] = value
    return found


def config(package: str, version: str, asynchronous: bool, own: Mapping[str, Any]) -> SchedulerConfig:
    """The preset's settings under those of a scenario."""
    return SchedulerConfig(**{**scheduler_settings(package, version, asynchronous), **own})
