"""The configuration of a run: one strict loader, and the way back to YAML.

Layers, later over earlier: defaults, the config file, a policy bundle, flags and `--set`. `RunConfig`
(`config/models.py`) is what remains, and `dump` writes it so that loading it again gives the same run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from blis_py.config.check import check
from blis_py.config.layers import Layers, flatten
from blis_py.config.models import DEFAULT_ENGINE, PLAIN_ENGINE, RunConfig
from blis_py.config.paths import from_folder, with_full_paths, workload_source
from blis_py.config.pools import PoolSection, of_pool, read_pools
from blis_py.errors import InputError
from blis_py.files.paths import full_path
from blis_py.files.yaml_files import dump_yaml, load_mapping, parse_yaml

DEFAULT_POOL = "default"
_OF_AN_ENGINE = ("latency.profile", "latency.alpha_coeffs", "latency.beta_coeffs", "latency.linear")


def load_config(
    path: str | Path | None = None,
    overrides: Mapping[str, Any] | Sequence[tuple[str, str, Any]] = (),
    *,
    sets: Sequence[str] = (),
    policy_config: str | Path | None = None,
    base: RunConfig | None = None,
) -> RunConfig:
    """The configuration of a run.

    Args:
        path: YAML file; relative paths in it start at its own folder.
        overrides: what goes over it: values by dotted key, or (flag, key, value) triples, where the
            flag's name is what messages call it.
        sets: `a.b.c=value` texts, the last word on everything but a flag that disagrees.
        policy_config: a BLIS policy bundle, over the file and under the overrides.
        base: a configuration to start from, in place of the defaults.

    Raises:
        InputError: unknown key (with its full path and the nearest known one), a value of the wrong
            type or out of bounds, or settings that contradict each other.
    """
    layers = Layers()
    if base is not None:
        layers.add(_inherited(base, overrides), file=None)
    if path is not None:
        leaves = flatten(load_mapping(Path(path)), RunConfig)
        layers.add(from_folder(leaves, full_path(path).parent), file=path)
    if policy_config is not None:
        from blis_py.config.policy import KEYS, read_bundle

        layers.add(read_bundle(policy_config), file=policy_config, labels=KEYS)
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
    read_pools(layers)
    _imply_fitted(layers, inherited=base)
    _imply_engine(layers)
    config = layers.build(RunConfig)
    check(config, layers)
    config = with_full_paths(config)
    if config.pools:
        pool_configs(config)  # every contradiction within one is told now
    return config


def pool_configs(config: RunConfig) -> list[tuple[PoolSection, RunConfig]]:
    """The pools of a configuration, each with the configuration of its instances by themselves.

    Without pools there is one, of `num_instances`. The preset of a pool's engine on its GPU replaces that of
    the configuration.

    Raises:
        InputError: what a pool overrides is unknown, of the wrong type, or contradicts something.
    """
    if not config.pools:
        return [(PoolSection(name=DEFAULT_POOL, count=config.num_instances), config)]
    return [(pool, _pool_config(config, pool)) for pool in config.pools]


def _pool_config(config: RunConfig, pool: PoolSection) -> RunConfig:
    overrides = pool.overrides()
    if "gpu" in overrides:
        overrides.setdefault("engine", config.engine)
    base = replace(config, pools=(), num_instances=max(pool.count, 1))
    try:
        return load_config(overrides=overrides, base=base)
    except InputError as error:
        raise of_pool(error, f".{pool.name}") from error


def _inherited(
    base: RunConfig, overrides: Mapping[str, Any] | Sequence[tuple[str, str, Any]]
) -> dict[str, Any]:
    """What a configuration says; of its engine only as long as nobody wants another one."""
    leaves = flatten(as_dict(base), RunConfig)
    keys = overrides if isinstance(overrides, Mapping) else [key for _, key, _ in overrides]
    if "engine" not in keys:
        return leaves
    from blis_py.config.engine import load_engine

    own = load_engine(base.engine).on(base.gpu)
    return {key: value for key, value in leaves.items() if key not in own or value != own[key]}


def _imply_fitted(layers: Layers, inherited: RunConfig | None) -> None:
    """A profile of measured steps says by itself which latency model is meant, and how it was measured."""
    key = "latency.model"
    model = layers.values.get(key)
    left_alone = inherited is not None and model == inherited.latency.model and not layers.by_flag(key)
    if layers.values.get("latency.profile") and (model is None or left_alone):
        layers.add({key: "fitted"}, file=None)
    if layers.values.get("latency.profile") and layers.values.get(key) == "fitted":
        from blis_py.config.implied import implied_settings

        implied = implied_settings(str(layers.values["latency.profile"]))
        layers.add({k: v for k, v in implied.items() if k not in layers.values}, file=None)


def _imply_engine(layers: Layers) -> None:
    """The preset of the engine, under everything else.

    Step times measured on an engine of one's own, or told by coefficients, are those of no other one.
    """
    values = layers.values
    told = any(values.get(key) for key in _OF_AN_ENGINE) or values.get("latency.model") in (
        "fitted",
        "linear",
    )
    name = values.get("engine", PLAIN_ENGINE if told else DEFAULT_ENGINE)
    if not isinstance(name, str):
        return  # told with the other settings of a wrong kind
    from blis_py.config.engine import load_engine

    preset = load_engine(name).on(str(layers.values.get("gpu", RunConfig.gpu)))
    layers.add({"engine": name, **{k: v for k, v in preset.items() if k not in layers.values}}, file=None)


def dump(config: RunConfig) -> str:
    """YAML text that `load_config` reads back as an equal configuration."""
    return dump_yaml(as_dict(config))


def as_dict(config: RunConfig) -> dict[str, Any]:
    """Nested plain data with every key, defaults included."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        return list(value) if isinstance(value, tuple) else value

    values = {key: plain(value) for key, value in asdict(config).items()}
    for key in ("pools", "links"):
        if not values[key]:
            del values[key]
    if config.pools:
        values["pools"] = [_given(pool) for pool in values["pools"]]
    return values


def _given(pool: dict[str, Any]) -> dict[str, Any]:
    """What a pool says."""
    return {key: value for key, value in pool.items() if value not in (None, {})}


def _yaml_value(key: str, text: str) -> Any:
    try:
        return parse_yaml(text)
    except InputError as error:
        raise InputError(error.problem, key=f"--set {key}", value=text, fix="quote the value") from None


def _lay_flag(layers: Layers, name: str, key: str, value: Any) -> None:
    """A flag that names a section (a mapping given to the Python API) sets what is in it."""
    section = {f.name: f.default_factory for f in fields(RunConfig)}.get(key)
    if key == "workload" and isinstance(value, str):
        layers.flag(name, workload_source(value), value)
    elif isinstance(value, Mapping) and isinstance(section, type) and is_dataclass(section):
        for path, item in flatten(value, section, f"{key}.").items():
            layers.flag(f"{name}.{path.partition('.')[2]}", path, item)
    else:
        layers.flag(name, key, value)
