"""Servers that a file of options describes: both sides of `trtllm-serve disaggregated`, jobs of srt-slurm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from blis_py.files.yaml_files import dump_yaml
from blis_py.launch.images import NO_IMAGE, ContainerImage, image_of
from blis_py.launch.server import LaunchedServer

OPTIONS = "options.yml"
_PAIR = {"context_servers": "prefill", "generation_servers": "decode"}
_OF_A_PAIR = ("num_instances", "urls", "router", "hostname", "port", "workers")
"""Keys of a side, and of the proxy in front of both, that no engine reads."""
_OF_THE_PROXY = (*_OF_A_PAIR, *_PAIR, "max_retries", "perf_metrics_max_requests", "conditional_disagg_config")
_JOB_SIDES = {"prefill": "prefill", "decode": "decode", "aggregated": "", "agg": ""}
_MODEL_FLAGS = {"sglang": "--model-path", "vllm": "--model", "trtllm": "--model"}


def is_pair(data: Mapping[str, Any]) -> bool:
    """Whether options are those of `trtllm-serve disaggregated -c`."""
    return any(side in data for side in _PAIR)


def servers_of_pair(
    data: Mapping[str, Any],
    where: str,
    *,
    image: ContainerImage = NO_IMAGE,
    environment: Mapping[str, str] | None = None,
) -> list[LaunchedServer]:
    """The servers of both sides; none where the file has their addresses alone, as started elsewhere."""
    common = {key: value for key, value in data.items() if key not in _OF_THE_PROXY}
    found = []
    for side, role in _PAIR.items():
        given = data.get(side)
        own = {k: v for k, v in given.items() if k not in _OF_A_PAIR} if isinstance(given, Mapping) else {}
        instances = given.get("num_instances", 1) if isinstance(given, Mapping) else 0
        if own and isinstance(instances, int) and instances > 0:
            server = _server("trtllm", {**common, **own}, f"{where}: {side}", image)
            server.environment = dict(environment or {})
            server.count, server.role = instances, role
            found.append(server)
    return found


def is_job(data: Mapping[str, Any]) -> bool:
    """Whether a mapping is a job of srt-slurm."""
    job = _base(data)
    return isinstance(job.get("backend"), Mapping) and isinstance(job.get("resources"), Mapping)


def servers_of_job(data: Mapping[str, Any], where: str) -> list[LaunchedServer]:
    """The workers of a job of srt-slurm, whose variants (`override_…`) are left out."""
    job = _base(data)
    backend, resources = job["backend"], job["resources"]
    model = job["model"] if isinstance(job.get("model"), Mapping) else {}
    engine = str(backend.get("type", "sglang")).removeprefix("dynamo-")
    image = image_of(str(model.get("container", "")))
    found = []
    for side, options in _sides(backend.get(f"{engine}_config")):
        workers = resources.get(
            f"{side}_workers", resources.get("agg_workers", 1) if not _JOB_SIDES[side] else 1
        )
        if engine not in _MODEL_FLAGS or not isinstance(workers, int) or workers < 1:
            continue
        words = [_MODEL_FLAGS[engine], str(model.get("path", ""))]
        server = _server(engine, options, f"{where}: {side}", image, words)
        environment = backend.get(f"{side}_environment")
        if isinstance(environment, Mapping):
            server.environment = {str(name): str(value) for name, value in environment.items()}
        server.count, server.role = workers, _JOB_SIDES[side]
        found.append(server)
    return found


def gpu_of_job(data: Mapping[str, Any]) -> str:
    """The type of GPU that a job asks for."""
    return str(_base(data)["resources"].get("gpu_type", ""))


def variants_of_job(data: Mapping[str, Any]) -> list[str]:
    """Names of the variants of a job."""
    return [str(name) for name in data if "override_" in str(name)]


def _base(data: Mapping[str, Any]) -> Mapping[str, Any]:
    base = data.get("base")
    return base if isinstance(base, Mapping) else data


def _sides(config: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for side in _JOB_SIDES if isinstance(config, Mapping) else ():
        if isinstance(config.get(side), Mapping):
            yield side, config[side]


def _server(
    engine: str, options: Mapping[str, Any], where: str, image: ContainerImage, words: list[str] | None = None
) -> LaunchedServer:
    """A server with its options as a file."""
    text = dump_yaml(dict(options))
    own = image if image.engine == engine else ContainerImage("", engine)
    flags = [*(words or []), "--config", OPTIONS]
    return LaunchedServer(
        engine, where, flags, image=own, file=lambda path: text if path == OPTIONS else None
    )
