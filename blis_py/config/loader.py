"""The configuration of a run: one strict loader, and the way back to YAML.

Layers, later over earlier: defaults, settings implied by the engine or a profile, the config file, a policy
bundle, flags and `--set`. The result is a `RunConfig` (`config/models.py`); `dump` writes it so that loading
it again gives the same run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from blis_py.config.check import check
from blis_py.config.derived import ROLE, settings_of
from blis_py.config.disaggregation import DisaggregationSection
from blis_py.config.engine import load_engine
from blis_py.config.implied import (
    deciding,
    drop_outdated,
    imply_engine,
    imply_fitted,
    imply_lengths,
    independent,
)
from blis_py.config.layers import Layers, flatten
from blis_py.config.models import RunConfig
from blis_py.config.paths import from_folder, with_full_paths, workload_source
from blis_py.config.pools import PoolSection, of_pool, read_pools
from blis_py.core.light_dataclass import copied
from blis_py.errors import InputError
from blis_py.files.paths import full_path
from blis_py.files.yaml_files import dump_yaml, load_mapping, parse_yaml

DEFAULT_POOL = "default"
_GIVEN = "given"


def load_config(
    path: str | Path | None = None,
    overrides: Mapping[str, Any] | Sequence[tuple[str, str, Any]] = (),
    *,
    sets: Sequence[str] = (),
    policy_config: str | Path | None = None,
    base: RunConfig | None = None,
) -> RunConfig:
    """Load the configuration of a run.

    Args:
        path: YAML file; relative paths in it are relative to its folder.
        overrides: values by dotted key over the file, or (flag, key, value) triples, with the flag's name for
        messages.
        sets: `a.b.c=value` texts, which override everything but a contradicting flag.
        policy_config: a BLIS policy bundle, over the file and under the overrides.
        base: initial configuration, in place of the defaults.

    Raises:
        InputError: unknown key (with its full path and the nearest known one), a value of the wrong
            type or out of bounds, or settings that contradict each other.
    """
    layers = Layers()
    if base is not None:
        _lay_written(layers, _known_of(base, overrides), file=None)
    if path is not None:
        leaves = flatten(load_mapping(Path(path)), RunConfig)
        _lay_written(layers, from_folder(leaves, full_path(path).parent), file=path)
    written = deciding(layers)
    if policy_config is not None:
        from blis_py.config.policy import KEYS, read_bundle

        bundle, else_ = read_bundle(policy_config)
        layers.add(bundle, file=policy_config, labels=KEYS)
        layers.add({k: v for k, v in else_.items() if k not in layers.values}, file=policy_config)
    if isinstance(overrides, Mapping):
        layers.add(flatten(overrides, RunConfig), file=None)
    else:
        for name, key, value in overrides:
            _lay_flag(layers, name, key, value)
    for text in sets:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InputError("must look like a.b.c=value", key="--set", value=text)
        _lay_flag(layers, f"--set {key.strip()}", key.strip(), _yaml_value(key, value))
    if _GIVEN in layers.values:
        raise layers.error("says what was set, and cannot be set", _GIVEN, fix="drop it")
    read_pools(layers)
    unknown = base is not None and base.given is None
    if not unknown:
        drop_outdated(layers, written, _defaults)
    imply_fitted(layers, unknown)
    imply_lengths(layers)
    imply_engine(layers)
    config = layers.build(RunConfig)
    config = replace(config, given=None if unknown else _given(layers, config))
    check(config, layers)
    config = with_full_paths(config)
    if config.all_pools:
        pool_configs(config)  # reports the contradictions within each pool
    return config


def pool_configs(config: RunConfig) -> list[tuple[PoolSection, RunConfig]]:
    """The pools of a configuration, each with the configuration of its instances alone.

    Without pools there is one, of `num_instances`. The preset of a pool's engine on its GPU replaces that of
    the configuration.

    Raises:
        InputError: an override that is unknown, of the wrong type, or contradictory.
    """
    if not config.all_pools:
        return [(PoolSection(name=DEFAULT_POOL, count=config.num_instances), config)]
    return [(pool, _pool_config(config, pool)) for pool in config.all_pools]


def _pool_config(config: RunConfig, pool: PoolSection) -> RunConfig:
    overrides = pool.overrides()
    if "gpu" in overrides:
        overrides.setdefault("engine", config.engine)
    of_pools = ("pools", "links", "disaggregation.", "num_instances")
    given = (
        None if config.given is None else tuple(key for key in config.given if not key.startswith(of_pools))
    )
    base = replace(config, pools=(), links=(), num_instances=max(pool.count, 1), given=given)
    base = replace(base, disaggregation=DisaggregationSection())
    base = replace(base, routing=replace(base.routing, capacity_weights=False))
    if "model" in overrides or "model_config" in overrides:
        base = replace(base, model=None, model_config=None)
    try:
        own = load_config(overrides=overrides, base=base)
    except InputError as error:
        raise of_pool(error, f".{pool.name}") from error
    return _of_phase(_derived_in_phase(own, pool.role), pool, config)


def _derived_in_phase(own: RunConfig, role: str) -> RunConfig:
    """The configuration of a pool's instances with what their engine derives otherwise in one phase alone."""
    preset, given = load_engine(own.engine), own.given
    if role == "both" or given is None or not preset.rules:
        return own
    open_ = [key for key in preset.rules if key.startswith("scheduler.") and key not in given]
    settings = {key: value for key, value in settings_of(own).items() if key not in open_}
    derived = preset.on({**settings, ROLE: role})
    return replace(
        own, scheduler=replace(own.scheduler, **{key.partition(".")[2]: derived[key] for key in open_})
    )


def _of_phase(own: RunConfig, pool: PoolSection, config: RunConfig) -> RunConfig:
    """The configuration of a pool's instances with what its engine does otherwise in one phase alone: ranks
    of SGLang's prefill follow the random number of the hand-over (`server_args.py`,
    `_handle_load_balance_method`)."""
    handoff = config.disaggregation.handoff or config.engine.partition("-")[0]
    given = own.given is None or "scheduler.rank_choice" in own.given
    if pool.role != "prefill" or handoff != "sglang" or own.attention_dp == 1 or given:
        return own
    return replace(own, scheduler=replace(own.scheduler, rank_choice="follow-bootstrap-room"))


def _known_of(
    base: RunConfig, overrides: Mapping[str, Any] | Sequence[tuple[str, str, Any]]
) -> dict[str, Any]:
    """The settings in a configuration that count as set.

    If unknown, settings equal to its engine's preset do not count when another engine is selected.
    """
    leaves = flatten(as_dict(base), RunConfig)
    keys = overrides if isinstance(overrides, Mapping) else [key for _, key, _ in overrides]
    if base.given is not None or "engine" not in keys:
        return leaves
    own = load_engine(base.engine).on(settings_of(base))
    return {key: value for key, value in leaves.items() if key not in own or value != own[key]}


def _lay_written(layers: Layers, leaves: dict[str, Any], file: str | Path | None) -> None:
    """Add settings as written by `dump`, or as all set.

    Where all are there and the list of those that were set is not, these are the ones that do not follow
    from others.
    """
    given = leaves.pop(_GIVEN, None)
    layers.add(leaves, file=file)
    if given is None:
        defaults = _defaults()
        if file is None or not defaults.keys() - {_GIVEN} <= leaves.keys():
            return
        given = independent(leaves, defaults)
    if not isinstance(given, list) or not all(isinstance(key, str) and key in leaves for key in given):
        raise InputError("must list keys that are in the file", file=file, key=_GIVEN, value=given)
    layers.given.difference_update(leaves.keys() - set(given))


def _defaults() -> dict[str, Any]:
    return flatten(as_dict(RunConfig()), RunConfig)


def _given(layers: Layers, config: RunConfig) -> tuple[str, ...]:
    """The keys that were set; mappings count as a whole."""
    known = flatten(as_dict(config), RunConfig)
    keys = (next((k for k in _upwards(path) if k in known), None) for path in layers.given)
    return tuple(sorted({key for key in keys if key is not None}))


def _upwards(path: str) -> Iterator[str]:
    while path:
        yield path
        path = path.rpartition(".")[0]


def dump(config: RunConfig) -> str:
    """YAML text that `load_config` reads back as an equal configuration."""
    return dump_yaml(as_dict(config))


def as_dict(config: RunConfig) -> dict[str, Any]:
    """Nested plain data with every key, defaults included."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        return list(value) if isinstance(value, tuple) else value

    values = {key: plain(value) for key, value in copied(config).items()}
    for key in ("pools", "links"):
        if not values[key]:
            del values[key]
    if config.disaggregation == DisaggregationSection():
        del values["disaggregation"]
    if config.pools:
        values["pools"] = [_overridden(pool) for pool in values["pools"]]
    return values


def _overridden(pool: dict[str, Any]) -> dict[str, Any]:
    """The overrides of a pool."""
    return {key: value for key, value in pool.items() if value not in (None, {})}


def _yaml_value(key: str, text: str) -> Any:
    try:
        return parse_yaml(text)
    except InputError as error:
        raise InputError(error.problem, key=f"--set {key}", value=text, fix="quote the value") from None


def _lay_flag(layers: Layers, name: str, key: str, value: Any) -> None:
    """Set a flag; one that names a section (a mapping in the Python API) sets its content."""
    section = {f.name: f.default_factory for f in fields(RunConfig)}.get(key)
    if key == "workload" and isinstance(value, str):
        layers.flag(name, workload_source(value), value)
    elif isinstance(value, Mapping) and isinstance(section, type) and is_dataclass(section):
        for path, item in flatten(value, section, f"{key}.").items():
            layers.flag(f"{name}.{path.partition('.')[2]}", path, item)
    else:
        layers.flag(name, key, value)
