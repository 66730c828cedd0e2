"""A container of a manifest: image, command, environment and GPUs, and the servers that it starts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from blis_py.launch.images import image_of
from blis_py.launch.open_text import unknown
from blis_py.launch.scripts import LaunchedServers, ScriptContext, servers_of_script, servers_of_words

_GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu", "gpu")


@dataclass(frozen=True)
class PodContainer:
    """A container: `command` replaces the image's own."""

    image: str
    command: tuple[str, ...]
    args: tuple[str, ...]
    environment: Mapping[str, str]
    gpus: int


def mapping(value: Any) -> Mapping[str, Any]:
    """A mapping; an empty one in place of anything else."""
    return value if isinstance(value, Mapping) else {}


def sequence(value: Any) -> Sequence[Any]:
    """A list; an empty one in place of anything else."""
    return value if isinstance(value, list) else ()


def count(value: Any, default: int = 1) -> int:
    """A number of replicas or GPUs; the default in place of anything else."""
    text = str(value).strip()
    return int(text) if text.isdigit() else default


def container_of(data: Mapping[str, Any]) -> PodContainer:
    """The container of a pod's specification."""
    environment = {}
    for each in sequence(data.get("env")):
        if isinstance(each, Mapping) and "value" in each:
            environment[str(each.get("name"))] = str(each["value"])
    return PodContainer(
        str(data.get("image", "")),
        _words(data.get("command"), environment),
        _words(data.get("args"), environment),
        environment,
        gpus_of(mapping(data.get("resources"))),
    )


def gpus_of(resources: Mapping[str, Any]) -> int:
    """GPUs among limits or requests; 0 = none are named."""
    for part in ("limits", "requests"):
        for name in _GPU_RESOURCES:
            if name in mapping(resources.get(part)):
                return count(mapping(resources[part])[name], 0)
    return 0


def _words(value: Any, environment: Mapping[str, str]) -> tuple[str, ...]:
    """The words of a command, `$(NAME)` replaced; a text is one word."""
    words = [value] if isinstance(value, str) else sequence(value)

    def replaced(match: re.Match[str]) -> str:
        return environment.get(match[1], unknown(f"${match[1]}"))

    return tuple(re.sub(r"\$\((\w+)\)", replaced, _text(each)) for each in words)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def servers_in(container: PodContainer, context: ScriptContext) -> LaunchedServers:
    """The servers that a container starts."""
    environment = {**context.environment, **container.environment}
    own = replace(context, image=image_of(container.image), environment=environment)
    words = [*container.command, *container.args]
    if len(words) == 1 and len(words[0].split()) > 1:
        return servers_of_script(words[0], own)
    return servers_of_words(words, own)
