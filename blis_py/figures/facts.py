"""What was run, in a line: the foot of every figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Config = Mapping[str, Any]
"""A configuration as plain data, as in `config.yaml`."""


def foot(config: Config) -> str:
    """Workload, cluster, scheduler, engine preset and step-time model; empty where nothing is known."""
    if not config:
        return ""
    parts = (workload(config), cluster(config), scheduler(config), engine(config), step_times(config))
    return " · ".join(part for part in parts if part)


def workload(config: Config) -> str:
    """Where the requests came from, and how fast."""
    load = config.get("workload") or {}
    named = load.get("trace") or load.get("spec") or load.get("preset")
    prompt, output = load.get("prompt_tokens", "?"), load.get("output_tokens", "?")
    text = _name(named) if named else f"{prompt} in / {output} out"
    if load.get("concurrency"):
        text += f", {load['concurrency']:,} at once"
    rate = load.get("rate") or (None if named or load.get("concurrency") else 1)
    text += f" at {rate:g} requests/s" if rate else ""
    scale = load.get("time_scale", 1)
    return f"{text}, time × {scale:g}" if scale != 1 else text


def cluster(config: Config) -> str:
    """How many instances of what, on which GPUs."""
    count, tp = config.get("num_instances", 1), config.get("tp", 1)
    where = f"{count:,} instance{'' if count == 1 else 's'}"
    model = config.get("model") or config.get("model_config")
    if model:
        where += f" of {_name(model)}"
    if config.get("gpu"):
        gpus = _name(str(config["gpu"])).upper()
        where += f" on {f'{tp} × ' if tp > 1 else ''}{gpus}"
    return where


def scheduler(config: Config) -> str:
    """Whose turn it is, and which prefix cache serves it."""
    settings = config.get("scheduler") or {}
    if not settings.get("policy"):
        return ""
    text = f"scheduler {settings['policy']}"
    if settings.get("batch_former", "running-first") != "running-first":
        text += f", {settings['batch_former']}"
    if settings.get("prefix_cache", "hash") != "hash":
        text += f", prefix cache {settings['prefix_cache']}"
    if (config.get("routing") or {}).get("policy", "round-robin") != "round-robin":
        text += f", routing {config['routing']['policy']}"
    return text


def engine(config: Config) -> str:
    """The preset of the engine."""
    return f"engine {_name(config['engine'])}" if config.get("engine") else ""


def step_times(config: Config) -> str:
    """The latency model, and the profile it reads."""
    settings = config.get("latency") or {}
    if not settings.get("model"):
        return ""
    source = settings.get("profile") or settings.get("kernel_profile")
    return f"step times {settings['model']}{f' ({_name(source)})' if source else ''}"


def foot_of_several(configs: Sequence[Config], varied: Sequence[str]) -> str:
    """What the runs have in common, and which settings differ."""
    known = [config for config in configs if config]
    parts = []
    for part in (workload, cluster, scheduler, engine, step_times):
        texts = {part(config) for config in known}
        if len(texts) == 1 and (text := texts.pop()):
            parts.append(text)
    if varied:
        parts.append(f"varied: {', '.join(varied)}")
    return " · ".join(parts)


def _name(path: str) -> str:
    """Of a file its name without the ending, and of a trace in a result the folder's."""
    name = Path(str(path))
    if name.suffix not in (".yaml", ".yml", ".csv", ".json", ".jsonl", ".gz"):
        return name.name
    stem = name.name.partition(".")[0]
    return f"{name.parent.name}/{stem}" if stem == "trace" and name.parent.name else stem
