"""Servers that a file of options describes: those of both sides of `trtllm-serve disaggregated`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blis_py.files.yaml_files import dump_yaml
from blis_py.launch.images import NO_IMAGE, ContainerImage
from blis_py.launch.server import LaunchedServer

OPTIONS = "options.yml"
_PAIR = {"context_servers": "prefill", "generation_servers": "decode"}
_OF_A_PAIR = ("num_instances", "urls", "router", "hostname", "port", "workers")
"""Keys of a side, and of the proxy in front of both, that no engine reads."""
_OF_THE_PROXY = (*_OF_A_PAIR, *_PAIR, "max_retries", "perf_metrics_max_requests", "conditional_disagg_config")


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
            server = server_with("trtllm", {**common, **own}, f"{where}: {side}", image)
            server.environment = dict(environment or {})
            server.count, server.role = instances, role
            found.append(server)
    return found


def server_with(
    engine: str, options: Mapping[str, Any], where: str, image: ContainerImage, words: list[str] | None = None
) -> LaunchedServer:
    """A server with its options as a file."""
    text = dump_yaml(dict(options))
    own = image if image.engine == engine else ContainerImage("", engine)
    flags = [*(words or []), "--config", OPTIONS]
    return LaunchedServer(
        engine, where, flags, image=own, file=lambda path: text if path == OPTIONS else None
    )
