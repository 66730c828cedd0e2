"""Settings of a launch file that its server's flags cannot say: lines `# blis: key=value …`."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from blis_py.config.layers import flatten
from blis_py.config.loader import as_dict, load_config, pool_configs
from blis_py.config.models import RunConfig
from blis_py.config.pools import OVERRIDES, PoolSection
from blis_py.errors import InputError
from blis_py.files.yaml_files import parse_yaml
from blis_py.models.published_formats import bundled_as

OWN = "# blis:"
_LINE = re.compile(r"(?m)^# blis: (.*)$")
_OF_A_LOAD = ("workload", "slo", "goodput", "goodput_by_class", "seed", "horizon", "drain", "given")
"""Settings of a run that are no server's."""
_OF_POOLS_ALONE = ("price_per_hour", "weight", "routing_policy", "routing_scorers")
"""Settings that pools have and configurations have not."""
_OF_SIDES = ("prefill_", "decode_", "shared_", "xpyd")
"""Beginnings of the settings of pools for prefill and decode."""
_DECIDING = ("engine", "gpu", "latency.model")
"""Settings from which others are derived."""
_MOST_ROUNDS = 4
_WIDTH = 100


def own_settings(text: str, file: str) -> dict[str, Any]:
    """The settings in the lines of a launch file, by configuration key.

    Raises:
        InputError: a line that is not of `key=value`.
    """
    found: dict[str, Any] = {}
    for line in _LINE.findall(text):
        try:
            words = shlex.split(line)
        except ValueError:
            words = [line]
        for word in words:
            key, equals, value = word.partition("=")
            if not equals:
                raise InputError("must look like key=value", file=file, key=OWN, value=word)
            found[key] = parse_yaml(value)
    return found


def lines_of(settings: Mapping[str, Any]) -> list[str]:
    """Lines that `own_settings` reads back as these settings."""
    lines: list[str] = []
    for key, value in settings.items():
        word = shlex.quote(f"{key}={json.dumps(value) if not isinstance(value, str) else _quoted(value)}")
        if lines and len(lines[-1]) + len(word) < _WIDTH:
            lines[-1] += f" {word}"
        else:
            lines.append(f"# blis: {word}")
    return lines


def _quoted(text: str) -> str:
    """The text, in quotes where YAML would read something else."""
    return text if parse_yaml(text) == text else json.dumps(text)


def server_settings(config: RunConfig) -> dict[str, Any]:
    """All settings of a configuration but those of its load, by configuration key; pools as `pools` alone,
    whatever they were written as."""
    leaves = _leaves(config)
    if not config.all_pools:
        return leaves
    kept = {k: v for k, v in leaves.items() if not k.startswith(("disaggregation.", "num_instances"))}
    apart = config.disaggregation
    names = (each.name for each in fields(apart) if not each.name.startswith(_OF_SIDES))
    kept |= {f"disaggregation.{name}": getattr(apart, name) for name in names}
    return {**kept, "pools": [_pool(pool, own, leaves) for pool, own in pool_configs(config)]}


def _leaves(config: RunConfig) -> dict[str, Any]:
    leaves = flatten(as_dict(config), RunConfig)
    kept = {key: value for key, value in leaves.items() if key.partition(".")[0] not in _OF_A_LOAD}
    if config.model is not None:
        kept["model"] = bundled_as(config.model) or config.model
    return kept


def _pool(pool: PoolSection, own: RunConfig, common: Mapping[str, Any]) -> dict[str, Any]:
    """A pool with everything in which its instances differ from the configuration."""
    found: dict[str, Any] = {"name": pool.name, "role": pool.role, "count": pool.count}
    for name in _OF_POOLS_ALONE:
        value = getattr(pool, name)
        if value is not None:
            found[name] = value
    for key, value in _leaves(own).items():
        section, _, leaf = key.partition(".")
        if section not in OVERRIDES or common.get(key) == value:
            continue
        if leaf:
            found.setdefault(section, {})[leaf] = value
        else:
            found[key] = value
    return found


def _plain(key: str, value: Any) -> Any:
    """A value as `server_settings` has it."""
    return (bundled_as(str(value)) or value) if key == "model" else value


def unsaid(config: RunConfig, by_flags: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a configuration that do not follow from these.

    Args:
        by_flags: settings that the flags of a server say, by configuration key.
    """
    wanted = server_settings(config)
    rest = {key: wanted[key] for key in _DECIDING if key in wanted}
    rest |= {
        key: wanted[key] for key in by_flags if key in wanted and _plain(key, by_flags[key]) != wanted[key]
    }
    for _ in range(_MOST_ROUNDS):
        try:
            back = server_settings(load_config(overrides={**by_flags, **rest}))
        except InputError:  # settings of which one needs another
            rest |= wanted
            break
        more = {key: value for key, value in wanted.items() if back.get(key) != value}
        if not more:
            break
        rest |= more
    return {
        key: value
        for key, value in rest.items()
        if key not in by_flags or _plain(key, by_flags[key]) != value
    }
