"""The settings of a run in one line: the foot of every figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from blis_py.config.disaggregation import pools_in

Config = Mapping[str, Any]
"""A configuration as plain data, as in `config.yaml`."""


def foot(config: Config) -> str:
    """Workload, cluster, scheduler, engine preset and step-time model; empty if unknown."""
    if not config:
        return ""
    parts = (workload(config), cluster(config), scheduler(config), engine(config), step_times(config))
    return " · ".join(part for part in parts if part)


def workload(config: Config) -> str:
    """Source and rate of the requests."""
    load = config.get("workload") or {}
    named = load.get("trace") or load.get("spec") or load.get("preset")
    lengths = [load.get(name) for name in ("prompt_tokens", "output_tokens")]
    text = _name(named) if named else f"{lengths[0]} in / {lengths[1]} out" if all(lengths) else ""
    if load.get("concurrency"):
        text += f", {load['concurrency']:,} at once"
    own_rate = named or load.get("concurrency") or "rate" not in load
    rate = load.get("rate") or (None if own_rate else 1)
    text += f" at {rate:g} requests/s" if rate else ""
    scale = load.get("time_scale") or 1
    return f"{text}, time × {scale:g}" if scale != 1 else text


def cluster(config: Config) -> str:
    """Number and type of instances and GPUs."""
    served: dict[str, list[Config]] = {}
    for pool in pools_in(config):
        own = {**config, **{name: value for name, value in pool.items() if value is not None}}
        served.setdefault(_served(own), []).append(own)
    if served:
        return ", ".join(f"{_counted(pools)} {what}" for what, pools in served.items())
    count = config.get("num_instances")
    parts = [f"{count:,} instance{'' if count == 1 else 's'}"] if count else []
    return " ".join([*parts, _served(config, "of " if parts else "")]).strip()


def _counted(pools: Sequence[Config]) -> str:
    """`2 prefill and 1 decode instance`."""
    roles = {"prefill": " prefill", "decode": " decode"}
    parts = [f"{pool['count']:,}{roles.get(pool.get('role', ''), '')}" for pool in pools]
    return f"{' and '.join(parts)} instance{'' if pools[-1]['count'] == 1 else 's'}"


def _served(config: Config, before: str = "of ") -> str:
    """Model and GPUs of an instance."""
    tp, parts = config.get("tp") or 1, list[str]()
    model = config.get("model") or config.get("model_config")
    if model:
        parts.append(f"{before}{_name(model)}")
    if config.get("gpu"):
        gpu = _name(str(config["gpu"]))
        parts.append(f"on {f'{tp} × ' if tp > 1 else ''}{gpu.upper() if gpu.isalnum() else gpu}")
    return " ".join(parts)


def scheduler(config: Config) -> str:
    """Scheduling policy and prefix cache."""
    settings, routing = config.get("scheduler") or {}, config.get("routing") or {}
    parts = [f"scheduler {settings['policy']}"] if settings.get("policy") else []
    if settings.get("batch_former", "running-first") != "running-first":
        parts.append(settings["batch_former"])
    if settings.get("prefix_cache", "hash") != "hash":
        parts.append(f"prefix cache {settings['prefix_cache']}")
    if routing.get("policy", "round-robin") != "round-robin":
        parts.append(f"routing {routing['policy']}")
    return ", ".join(parts)


def engine(config: Config) -> str:
    """Preset of the engine."""
    return f"engine {_name(config['engine'])}" if config.get("engine") else ""


def step_times(config: Config) -> str:
    """Latency model and its profile."""
    settings = config.get("latency") or {}
    if not settings.get("model"):
        return ""
    source = settings.get("profile") or settings.get("kernel_profile")
    return f"step times {settings['model']}{f' ({_name(source)})' if source else ''}"


def foot_of_several(common: Config, varied: Sequence[str]) -> str:
    """Foot of a figure of several runs: `common` settings, and the names of those that differ."""
    stated = f"varied: {', '.join(varied)}" if varied else ""
    return " · ".join(part for part in (foot(common), stated) if part)


def _name(path: str) -> str:
    """Short name of a path: a file's stem; for a trace in a result folder, the folder's name."""
    name = Path(str(path))
    if name.suffix not in (".yaml", ".yml", ".csv", ".json", ".jsonl", ".gz"):
        return name.name
    stem = name.name.partition(".")[0]
    return f"{name.parent.name}/{stem}" if stem == "trace" and name.parent.name else stem
