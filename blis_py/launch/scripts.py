"""Servers that a script or the words of a container start."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from blis_py.errors import InputError
from blis_py.files.opening import read_text
from blis_py.files.paths import is_file
from blis_py.files.yaml_files import parse_yaml
from blis_py.launch.commands import (
    container_command,
    installed_release,
    server_command,
    surroundings,
)
from blis_py.launch.images import NO_IMAGE, ContainerImage, image_of
from blis_py.launch.open_text import shown
from blis_py.launch.option_servers import OPTIONS, servers_of_pair
from blis_py.launch.server import LaunchedServer
from blis_py.launch.shell_run import ShellCommand, ShellRun, inner_script, run_script

_OF_PAIRS = (["disaggregated"], ["disaggregated_mpi_worker"])
_MAX_DEPTH = 5
"""Scripts in containers in scripts."""


class FilesBeside:
    """Texts of files in the folder of a launch file, by path or name, or where their whole path leads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, path: str) -> str | None:
        own = Path(shown(path))
        for each in (self._folder / shown(path).lstrip("/"), self._folder / own.name, own):
            if is_file(each):
                return read_text(each)
        return None


def _no_file(path: str) -> str | None:
    return None


@dataclass(frozen=True)
class ScriptContext:
    """Surroundings of a script.

    Attributes:
        name: of its file, for messages.
        variables: with which it is started.
        file: text of a file beside it; None if it is not there.
        image: container that it runs in.
        environment: of that container.
        variant: of a job that has several; empty = its base.
    """

    name: str
    variables: Mapping[str, str]
    file: Callable[[str], str | None] = _no_file
    image: ContainerImage = NO_IMAGE
    environment: Mapping[str, str] = field(default_factory=dict)
    depth: int = 0
    variant: str = ""


@dataclass
class LaunchedServers:
    """Servers, and what to say about the file that starts them."""

    servers: list[LaunchedServer] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, other: LaunchedServers) -> None:
        self.servers += other.servers
        self.notes += other.notes


def servers_of_script(text: str, context: ScriptContext) -> LaunchedServers:
    """The servers that a script starts.

    Raises:
        InputError: it is not valid shell text.
    """
    try:
        run = run_script(text, {**context.variables, **context.environment})
    except InputError as error:
        raise InputError(
            error.problem, file=context.name, key=error.key, value=error.value, fix=error.fix
        ) from None

    def file(path: str) -> str | None:
        return run.file(path) or context.file(path)

    named = context.image if context.image.name else _named_image(run)
    found = LaunchedServers(notes=[f"{context.name}: {_helped(note)}" for note in run.notes])
    for command in run.commands:
        found.add(_of_command(command, replace(context, file=file, image=named)))
    found.servers = list(_once(found.servers))
    return found


def _once(servers: Sequence[LaunchedServer]) -> Iterator[LaunchedServer]:
    """The servers, those of a file that a proxy and its workers both name counted once."""
    seen: list[str] = []
    for server in servers:
        text = server.file(OPTIONS) if server.words == ["--config", OPTIONS] else None
        if text is None or f"{server.role} {text}" not in seen:
            yield server
            seen.append(f"{server.role} {text}")


def servers_of_words(words: Sequence[str], context: ScriptContext) -> LaunchedServers:
    """The servers that a container starts with these words.

    Raises:
        InputError: a script among them is not valid shell text.
    """
    script = inner_script(["", *words])
    if script is not None:
        return servers_of_script(script, context)
    return _of_command(ShellCommand(0, tuple(words), dict(context.environment)), context)


def _of_command(command: ShellCommand, context: ScriptContext) -> LaunchedServers:
    outside, around = surroundings(command.before)
    if outside or around:
        context = replace(context, image=around or context.image)
        command = command._replace(environment={**outside, **command.environment}, before=())
    container = container_command(command.words)
    if container is not None and context.depth < _MAX_DEPTH:
        environment = {**command.environment, **container.environment}
        inner = replace(context, image=container.image, environment=environment, depth=context.depth + 1)
        found = servers_of_words(container.words, inner)
        for each in found.servers:
            each.where = _place(context.name, command.line)
        return found
    server = server_command(command.words, context.image)
    if server is None:
        return LaunchedServers()
    image = server.image if server.image.engine == server.engine else ContainerImage("", server.engine)
    environment = {**command.environment, **server.environment}
    where = _place(context.name, command.line)
    if server.engine == "trtllm" and server.words[:1] in (["mm_embedding_serve"], *_OF_PAIRS):
        if server.words[0] == "mm_embedding_serve":  # encodes images
            return LaunchedServers()
        return _of_pair(server.words, where, image, environment, context)
    return LaunchedServers(
        [LaunchedServer(server.engine, where, server.words, environment, image, context.file)]
    )


def _of_pair(
    words: Sequence[str],
    where: str,
    image: ContainerImage,
    environment: Mapping[str, str],
    context: ScriptContext,
) -> LaunchedServers:
    """The servers of the file of `trtllm-serve disaggregated -c`; none where they are started elsewhere."""
    given = " ".join(words).replace("--config_file", "-c").replace("=", " ").split()
    path = given[given.index("-c") + 1] if "-c" in given[:-1] else ""
    text = context.file(path) if path else None
    if text is None:
        named = shown(path) or "its file of options"
        return LaunchedServers(notes=[f"{where}: {named} is not there: servers of it are not counted"])
    data = parse_yaml(text)
    if not isinstance(data, Mapping):
        raise InputError("is not a mapping", file=where, key="-c", value=shown(path))
    return LaunchedServers(servers_of_pair(data, where, image=image, environment=environment))


def _place(name: str, line: int) -> str:
    return f"{name}:{line}" if line else name


def _helped(note: str) -> str:
    """A note with the variables that would decide it."""
    names = list(dict.fromkeys(re.findall(r"\$(\w+)", note)))
    return f"{note}; give {' '.join(f'--launch-env {name}=…' for name in names)}" if names else note


def _named_image(run: ShellRun) -> ContainerImage:
    """The engine and release that a script names otherwise: a variable with an image, or `pip install`."""
    for command in run.commands:
        installed = installed_release(command.words)
        if installed is not None:
            return ContainerImage("pip", *installed)
    for name, value in run.variables.values.items():
        if "IMAGE" in name.upper() and isinstance(value, str):
            image = image_of(value)
            if image.engine:
                return image
    return NO_IMAGE
