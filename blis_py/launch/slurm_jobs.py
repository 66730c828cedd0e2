"""Jobs of srt-slurm: workers with their options, and variants of a base (`override_…`, `zip_override_…`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from blis_py.errors import InputError
from blis_py.launch.images import image_of
from blis_py.launch.option_servers import server_with
from blis_py.launch.server import LaunchedServer

_SIDES = {"prefill": "prefill", "decode": "decode", "aggregated": "", "agg": ""}
_MODEL_FLAGS = {"sglang": "--model-path", "vllm": "--model", "trtllm": "--model"}
_VARIANT = re.compile(r"(base|(?:zip_)?override_\w+)(?:\[(\d+)\])?")


def is_job(data: Mapping[str, Any]) -> bool:
    """Whether a mapping is a job of srt-slurm."""
    job = _base(data)
    described = isinstance(job.get("backend"), Mapping) or isinstance(job.get("roles"), Mapping)
    return described and isinstance(job.get("resources"), Mapping)


def chosen(data: Mapping[str, Any], variant: str, file: str) -> Mapping[str, Any]:
    """The job of a variant, as `srtctl apply -f FILE:VARIANT` takes it: `override_x`, `zip_override_x[0]`.

    Raises:
        InputError: no such variant, or one of several without its number.
    """
    match = _VARIANT.fullmatch(variant)
    known = ["base", *variants_of_job(data)]
    if match is None or match[1] not in known:
        fix = f"use one of {', '.join(known)}"
        raise InputError("has no such variant", file=file, key="--launch", value=variant, fix=fix)
    name, number = match[1], match[2]
    if name == "base":
        return _base(data)
    changes = data[name] if isinstance(data[name], Mapping) else {}
    if name.startswith("zip_"):
        changes = _slice(changes, name, number, file)
    elif number is not None:
        raise InputError(
            "is a single variant", file=file, key="--launch", value=variant, fix="drop the number"
        )
    return _merged(_base(data), changes)


def _slice(changes: Mapping[str, Any], name: str, number: str | None, file: str) -> Mapping[str, Any]:
    """The changes of one of the variants that lists of values stand for."""
    lengths = {length for length in _lengths(changes) if length > 1}
    if len(lengths) > 1:
        problem = f"has lists of {' and '.join(map(str, sorted(lengths)))} values"
        raise InputError(problem, file=file, key=name, fix="give all as many, or one")
    count = max(lengths, default=1)
    if number is None and count > 1:
        fix = f"write {name}[0] to {name}[{count - 1}]"
        raise InputError(f"stands for {count} variants", file=file, key="--launch", value=name, fix=fix)
    if int(number or 0) >= count:
        fix = f"write {name}[0] to {name}[{count - 1}]"
        raise InputError("has no such variant", file=file, key=name, value=number, fix=fix)
    return {key: _at(value, int(number or 0)) for key, value in changes.items()}


def _lengths(changes: Mapping[str, Any]) -> Iterator[int]:
    for value in changes.values():
        if isinstance(value, Mapping):
            yield from _lengths(value)
        elif isinstance(value, list):
            yield len(value)


def _at(value: Any, number: int) -> Any:
    if isinstance(value, Mapping):
        return {key: _at(each, number) for key, each in value.items()}
    if isinstance(value, list) and value:
        return value[0 if len(value) == 1 else number]
    return value


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings merged, everything else replaced, and what is null left out."""
    found = dict(base)
    for key, value in changes.items():
        before = found.get(key)
        if value is None:
            found.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(before, Mapping):
            found[key] = _merged(before, value)
        else:
            found[key] = value
    return found


def servers_of_job(data: Mapping[str, Any], where: str) -> list[LaunchedServer]:
    """The workers of a job; those of the base where it has variants."""
    job = _base(data)
    model = job["model"] if isinstance(job.get("model"), Mapping) else {}
    image = image_of(str(model.get("container", "")))
    engine = _engine(job)
    found = []
    for side, options, workers, environment in _workers(job, engine):
        if engine not in _MODEL_FLAGS or not isinstance(workers, int) or workers < 1:
            continue
        words = [_MODEL_FLAGS[engine], str(model.get("path", ""))]
        server = server_with(engine, options, f"{where}: {side}", image, words)
        if isinstance(environment, Mapping):
            server.environment = {str(name): str(value) for name, value in environment.items()}
        server.count, server.role = workers, _SIDES[side]
        found.append(server)
    return found


def _engine(job: Mapping[str, Any]) -> str:
    backend = job["backend"] if isinstance(job.get("backend"), Mapping) else {}
    return str(job.get("engine", backend.get("type", "sglang"))).removeprefix("dynamo-")


def _workers(job: Mapping[str, Any], engine: str) -> Iterator[tuple[str, Mapping[str, Any], Any, Any]]:
    """Side, options, number of workers and environment: by `roles`, or by `backend` and `resources`."""
    if isinstance(job.get("roles"), Mapping):
        for side, role in job["roles"].items():
            if side in _SIDES and isinstance(role, Mapping):
                options = role.get("args")
                environment = role.get("env", role.get("environment"))
                yield (
                    side,
                    options if isinstance(options, Mapping) else {},
                    role.get("workers", 1),
                    environment,
                )
        return
    backend, resources = job["backend"], job["resources"]
    config = backend.get(f"{engine}_config")
    for side, role in _SIDES.items() if isinstance(config, Mapping) else ():
        if isinstance(config.get(side), Mapping):
            alike = 1 if role else resources.get("agg_workers", 1)
            environment = backend.get(f"{side}_environment")
            yield side, config[side], resources.get(f"{side}_workers", alike), environment


def gpu_of_job(data: Mapping[str, Any]) -> str:
    """The type of GPU that a job asks for."""
    return str(_base(data)["resources"].get("gpu_type", ""))


def variants_of_job(data: Mapping[str, Any]) -> list[str]:
    """Names of the variants of a job."""
    return [str(name) for name in data if str(name).startswith(("override_", "zip_override_"))]


def _base(data: Mapping[str, Any]) -> Mapping[str, Any]:
    base = data.get("base")
    return base if isinstance(base, Mapping) else data
