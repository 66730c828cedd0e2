"""Servers together as the settings of a run: alike instances, or pools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blis_py.config.pools import OVERRIDES
from blis_py.launch.resolve import ResolvedServer

_SECTIONS = ("scheduler", "latency")
_COMMON = ("engine", "model", "gpu")
"""Settings of all pools where they agree."""
Settings = dict[str, tuple[Any, str]]
"""Value and flag by configuration key."""


def fleet_of(servers: Sequence[ResolvedServer]) -> Settings:
    """The settings of a run on these servers."""
    groups = _groups(servers)
    if len(groups) == 1 and groups[0][0].role == "both":
        first, count = groups[0]
        settings = dict(first.settings)
        if count > 1:
            settings["num_instances"] = count, first.server.where
        return settings
    names = _names([each for each, _ in groups])
    settings = {}
    for key in _COMMON:
        values = [each.settings.get(key) for each, _ in groups]
        texts = {value[0] if value else None for value in values}
        if len(texts) == 1 and values[0] is not None:
            settings[key] = values[0]
    for each, _ in groups:
        settings |= {key: value for key, value in each.settings.items() if not _is_of_pool(key)}
    pools = [_pool(name, each, count, settings) for name, (each, count) in zip(names, groups, strict=True)]
    settings["pools"] = pools, groups[0][0].server.where
    return settings


def _groups(servers: Sequence[ResolvedServer]) -> list[tuple[ResolvedServer, int]]:
    """Alike servers taken together, in order, with their number; prefill first."""
    found: list[tuple[ResolvedServer, int]] = []
    for server in servers:
        for number, (other, count) in enumerate(found):
            if other.role == server.role and other.values == server.values:
                found[number] = other, count + server.count
                break
        else:
            found.append((server, server.count))
    order = ("prefill", "decode", "both")
    return sorted(found, key=lambda each: order.index(each[0].role))


def _names(servers: Sequence[ResolvedServer]) -> list[str]:
    names: list[str] = []
    for server in servers:
        name = "server" if server.role == "both" else server.role
        alike = sum(each.role == server.role for each in servers)
        names.append(name if alike == 1 else f"{name}{sum(each.startswith(name) for each in names) + 1}")
    return names


def _is_of_pool(key: str) -> bool:
    section, _, leaf = key.partition(".")
    return section in OVERRIDES or (bool(leaf) and section in _SECTIONS)


def _pool(name: str, server: ResolvedServer, count: int, common: Settings) -> dict[str, Any]:
    pool: dict[str, Any] = {"name": name, "role": server.role, "count": count}
    for key, (value, _) in server.settings.items():
        section, _, leaf = key.partition(".")
        if key in common or not _is_of_pool(key):
            continue
        if leaf:
            pool.setdefault(section, {})[leaf] = value
        else:
            pool[key] = value
    return pool
