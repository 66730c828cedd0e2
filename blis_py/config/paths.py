"""File names in a configuration: base of relative paths, and distinction from plain names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from blis_py.config.layers import did_you_mean
from blis_py.config.models import KIND_SECTIONS, RunConfig
from blis_py.config.pools import PoolSection
from blis_py.errors import InputError
from blis_py.files import bundled
from blis_py.files.paths import exists, expanded, full_path, is_file, is_folder


def from_folder(leaves: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Settings by key, with relative paths resolved against `folder`."""

    def moved(key: str, value: Any) -> Any:
        own = isinstance(value, str) and key in _IS_FILE and _IS_FILE[key](value)
        return str(folder / expanded(value, key=key)) if own else value

    return {
        key: [_moved_pool(pool, moved) for pool in value]
        if key == "pools" and isinstance(value, list)
        else moved(key, value)
        for key, value in leaves.items()
    }


def _moved_pool(pool: Any, moved: Callable[[str, Any], Any]) -> Any:
    """A pool as plain data, with its own files moved."""
    if not isinstance(pool, Mapping):
        return pool
    latency = pool.get("latency")
    if isinstance(latency, Mapping):
        latency = {key: moved(f"latency.{key}", value) for key, value in latency.items()}
        pool = {**pool, "latency": latency}
    return {key: moved(key, value) for key, value in pool.items()}


def with_full_paths(config: RunConfig) -> RunConfig:
    """The configuration with absolute paths, so that a saved one works from any folder."""

    def full(key: str, value: str | None) -> str | None:
        return str(full_path(value, key=key)) if value and _IS_FILE[key](value) else value

    load = config.workload
    return replace(
        config,
        model_config=full("model_config", config.model_config),
        gpu=full("gpu", config.gpu) or config.gpu,
        pools=tuple(_full_pool(pool, full) for pool in config.pools),
        engine=full("engine", config.engine) or config.engine,
        latency=replace(
            config.latency,
            kernel_profile=full("latency.kernel_profile", config.latency.kernel_profile),
            profile=full("latency.profile", config.latency.profile),
            expert_load=full("latency.expert_load", config.latency.expert_load) or "auto",
        ),
        workload=replace(
            load,
            trace=full("workload.trace", load.trace),
            trace_header=full("workload.trace_header", load.trace_header),
            tokenizer=full("workload.tokenizer", load.tokenizer),
            spec=full("workload.spec", load.spec),
        ),
        **{
            name: replace(own, **{key: full(f"{name}.{key}", getattr(own, key)) for key in kind.files})
            for name, kind in KIND_SECTIONS.items()
            for own in (getattr(config, name),)
        },
    )


def _full_pool(pool: PoolSection, full: Callable[[str, Any], Any]) -> PoolSection:
    latency = {
        key: full(f"latency.{key}", value) if f"latency.{key}" in _IS_FILE else value
        for key, value in pool.latency.items()
    }
    return replace(pool, gpu=full("gpu", pool.gpu), engine=full("engine", pool.engine), latency=latency)


def named_files(config: RunConfig) -> dict[str, Path]:
    """The user's files and folders named in a configuration, by key."""
    files = {}
    for pool in config.pools:
        values = {"gpu": pool.gpu, **{f"latency.{key}": value for key, value in pool.latency.items()}}
        for key, name in {"engine": pool.engine, **values}.items():
            if name and key in _IS_FILE and _IS_FILE[key](name):
                files[f"pools.{pool.name}.{key}"] = full_path(name, key=key)
    for key, is_own in _IS_FILE.items():
        value: Any = config
        for part in key.split("."):
            value = getattr(value, part)
        if value and is_own(value):
            files[key] = full_path(value, key=key)
    if config.model and "model_config" not in files and is_folder(expanded(config.model)):
        files["model"] = full_path(config.model)
    return files


def workload_source(name: str) -> str:
    """The key that `--workload NAME` sets: a preset, a bundled spec or a file.

    Raises:
        InputError: there is no workload of that name.
    """
    from blis_py.workload.presets import AS_BLIS, PRESETS

    if name == AS_BLIS or name in PRESETS:
        return "workload.preset"
    if _is_bundled(name) or _looks_like_file(name) or is_folder(name):
        return "workload.spec"
    specs = {path.stem for path in bundled.root("workloads").glob("*.yaml")}
    raise InputError(
        "no such workload",
        key="--workload",
        value=name,
        fix=did_you_mean(name, {*PRESETS, *specs, "a .yaml file"}),
    )


def spec_path(name: str) -> Path:
    """The file of a workload spec: the bundled one with that name, or itself."""
    return _bundled(name) if _is_bundled(name) else Path(name)


def _bundled(name: str) -> Path:
    return bundled.root("workloads") / f"{name}.yaml"


def _is_bundled(name: str) -> bool:
    return Path(name).name == name and is_file(_bundled(name))


def _is_bundled_fit(name: str) -> bool:
    return is_folder(bundled.root("profiles") / "fits" / name)


def _looks_like_file(name: str) -> bool:
    """Whether a GPU or a workload is given as a file rather than by name."""
    return name.endswith((".yaml", ".yml", ".json")) or name.startswith(("/", "./", "../", "~"))


def looks_like_load(name: str) -> bool:
    """Whether a load of experts is given as a file rather than by name."""
    return ".csv" in Path(name).name or name.startswith(("/", "./", "../", "~"))


_IS_FILE = {
    "model_config": lambda name: True,
    "latency.kernel_profile": lambda name: True,
    "latency.profile": lambda name: exists(expanded(name)) or not _is_bundled_fit(name),
    "latency.expert_load": looks_like_load,
    "workload.trace": lambda name: True,
    "workload.trace_header": lambda name: True,
    "workload.tokenizer": lambda name: True,
    "workload.spec": lambda name: not _is_bundled(name),
    **{f"{name}.{key}": lambda name: True for name, kind in KIND_SECTIONS.items() for key in kind.files},
    "gpu": _looks_like_file,
    "engine": _looks_like_file,
}
"""Keys that can name a file, with the test whether a value does."""
