"""Compose files: services with image, command and environment."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from blis_py.errors import InputError
from blis_py.launch.manifests.containers import PodContainer, count, mapping, sequence, servers_in
from blis_py.launch.open_text import is_open
from blis_py.launch.scripts import LaunchedServers, ScriptContext
from blis_py.launch.shell_expand import ShellVariables
from blis_py.launch.shell_lexer import pieces_of


def servers_of_compose(data: Mapping[str, Any], context: ScriptContext) -> LaunchedServers:
    """The servers of a compose file, its variables replaced.

    Raises:
        InputError: a command with a quote that is not closed.
    """
    variables = ShellVariables(dict(context.variables))
    data = mapping(_replaced(data, variables))
    found = LaunchedServers()
    for name, service in mapping(data.get("services")).items():
        own = replace(context, name=f"{context.name}: {name}", file=_Files(data, service, context.file))
        one = mapping(service)
        deploy = mapping(one.get("deploy"))
        container = PodContainer(
            str(one.get("image", "")),
            _words(one.get("entrypoint"), own.name),
            _words(one.get("command"), own.name),
            _environment(one.get("environment")),
            _gpus(deploy),
        )
        servers = servers_in(container, own)
        for server in servers.servers:
            server.count = count(one.get("scale", deploy.get("replicas")))
            server.gpus = container.gpus
        found.add(servers)
    return found


class _Files:
    """Texts of the files that a service has by path: from `configs`, else beside the compose file."""

    def __init__(self, data: Mapping[str, Any], service: Any, beside: Callable[[str], str | None]) -> None:
        self._known, self._beside = mapping(data.get("configs")), beside
        self._sources: dict[str, str] = {}
        for each in sequence(mapping(service).get("configs")):
            source = str(mapping(each).get("source", each))
            self._sources[str(mapping(each).get("target", f"/{source}"))] = source

    def __call__(self, path: str) -> str | None:
        config = mapping(self._known.get(self._sources.get(path, "")))
        if isinstance(config.get("content"), str):
            return str(config["content"])
        return self._beside(str(config.get("file", path)))


def _replaced(value: Any, variables: ShellVariables) -> Any:
    """Texts with `${NAME:-default}` replaced; `$$` is a dollar sign."""
    if isinstance(value, str):
        parts = value.split("$$")
        return "$".join(variables.joined(pieces_of(part.replace("\\", "\\\\"), 0)) for part in parts)
    if isinstance(value, Mapping):
        return {key: _replaced(each, variables) for key, each in value.items()}
    if isinstance(value, list):
        return [_replaced(each, variables) for each in value]
    return value


def _words(value: Any, name: str) -> tuple[str, ...]:
    if isinstance(value, str):
        try:
            return tuple(shlex.split(value))
        except ValueError as error:
            raise InputError(f"has a command that cannot be split: {error}", file=name) from None
    return tuple(map(str, sequence(value)))


def _environment(value: Any) -> dict[str, str]:
    if isinstance(value, Mapping):
        return {str(name): str(text) for name, text in value.items() if text is not None}
    pairs = (str(each).partition("=") for each in sequence(value))
    return {name: text for name, equals, text in pairs if equals and not is_open(name)}


def _gpus(deploy: Mapping[str, Any]) -> int:
    """GPUs that are reserved; 0 = not said, or all."""
    reserved = mapping(mapping(mapping(deploy.get("resources")).get("reservations")))
    for device in sequence(reserved.get("devices")):
        one = mapping(device)
        if "gpu" in [str(each) for each in sequence(one.get("capabilities"))]:
            return count(one.get("count"), 0) or len(sequence(one.get("device_ids")))
    return 0
