"""A launch file read: settings of a run, and what its flags come to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from blis_py.errors import InputError
from blis_py.files.opening import read_text
from blis_py.files.paths import expanded, is_file
from blis_py.launch.fleet import fleet_of
from blis_py.launch.manifests import servers_of_manifest
from blis_py.launch.own_settings import OWN, own_settings
from blis_py.launch.resolve import ResolvedServer, resolve
from blis_py.launch.scripts import FilesBeside, LaunchedServers, ScriptContext, servers_of_script
from blis_py.launch.server import LaunchedServer

_YAML = (".yaml", ".yml", ".json")
_LONGEST = 200_000
"""Longest launch file, in letters."""


@dataclass
class Launch:
    """A launch file as settings of a run.

    Attributes:
        settings: value and flag by configuration key.
        read: one line: engine, release, model, parallelism.
        idle: flags that change nothing.
        unmodelled: flags with what they would change.
        unknown: flags that no table lists.
        notes: what else to say.
    """

    settings: dict[str, tuple[Any, str]]
    read: str
    idle: list[str] = field(default_factory=list)
    unmodelled: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def values(self) -> dict[str, Any]:
        """Values by configuration key."""
        return {key: value for key, (value, _) in self.settings.items()}

    def lines(self) -> Iterator[str]:
        """All of it in words."""
        yield self.read
        yield from self.notes
        if self.unmodelled:
            yield "not modelled: " + "; ".join(self.unmodelled)
        if self.unknown:
            yield "not known, and not counted: " + ", ".join(self.unknown)
        if self.idle:
            yield "changes nothing: " + ", ".join(self.idle)


def read_launch(
    sources: Sequence[str], variables: Mapping[str, str] | None = None, *, model: str = ""
) -> Launch:
    """The settings that launch files stand for.

    Args:
        sources: files, the text of a command, or `FILE:VARIANT` of a job of srt-slurm.
        variables: of the environment that a script is started in.
        model: the model, where it is named otherwise.

    Raises:
        InputError: a file without a server, a value that is not known, a flag under which nothing would hold.
    """
    servers: list[LaunchedServer] = []
    notes: list[str] = []
    own: dict[str, Any] = {}
    for source in sources:
        found, settings = _servers(source, dict(variables or {}))
        own |= settings
        servers += found.servers
        notes += found.notes
        if not found.servers:
            fix = "give a script, a line or a manifest that starts vLLM, SGLang or TensorRT-LLM"
            fix = "; ".join([*found.notes, fix])
            raise InputError("starts no server", key="--launch", value=source, fix=fix)
    launch = _together(servers, notes, own, model)
    if launch is None:
        raise InputError("starts no server of its own: all follow another", key="--launch", value=sources[0])
    return launch


def read_text_of(text: str, own: Mapping[str, Any]) -> Launch:
    """The settings that the text of a launch file stands for.

    Args:
        own: further settings, by configuration key.

    Raises:
        InputError: as `read_launch`; no server.
    """
    context = ScriptContext("the file", {})
    is_script = text.startswith("#!")
    found = servers_of_script(text, context) if is_script else servers_of_manifest(text, context)
    launch = _together(found.servers, found.notes, own, "")
    if launch is None:
        raise InputError("starts no server", file=context.name)
    return launch


def _together(
    launched: Sequence[LaunchedServer], notes: Sequence[str], own: Mapping[str, Any], model: str
) -> Launch | None:
    """
    Args:
        own: settings that the file says itself, over those of its servers.
    """
    engine = str(own.get("engine", ""))
    resolved = (resolve(server, model=model, engine=engine) for server in launched)
    servers = [each for each in resolved if each is not None]
    if not servers:
        return None
    settings = fleet_of(servers) | {key: (value, OWN) for key, value in own.items()}
    lists: dict[str, list[str]] = {"idle": [], "unmodelled": [], "unknown": []}
    for server in servers:
        for name, found in lists.items():
            found += [each for each in getattr(server.findings, name) if each not in found]
    all_notes = [*notes, *(note for server in servers for note in server.notes)]
    read = "; ".join(dict.fromkeys(_in_words(each) for each in servers))
    return Launch(settings, f"launch: {read}", **lists, notes=list(dict.fromkeys(all_notes)))


def _in_words(server: ResolvedServer) -> str:
    """Engine, release, model and parallelism of a server."""
    title = server.findings.table.title
    release = server.server.image.release
    model = str(server.settings.get("model", ("no model", ""))[0])
    parts = [f"{title} {release}".strip(), model, str(server.division)]
    if server.count > 1:
        parts.append(f"{server.count} instances")
    if server.role != "both":
        parts.append(server.role)
    parts.append(str(server.settings["gpu"][0]) if "gpu" in server.settings else "GPU not named")
    return f"{', '.join(parts)} ({server.server.where})"


def _servers(source: str, variables: dict[str, str]) -> tuple[LaunchedServers, dict[str, Any]]:
    """The servers of one file or text, and the settings that it says itself."""
    path = expanded(source, key="--launch")
    variant = ""
    if not is_file(path) and source.count(":") and len(source.split()) == 1:
        place, _, variant = source.rpartition(":")
        path = expanded(place, key="--launch")
    if not is_file(path):
        if len(source.split()) > 1:
            return servers_of_script(source, ScriptContext("--launch", variables, FilesBeside(Path()))), {}
        raise InputError("no such file", key="--launch", value=source)
    text = read_text(path)
    if len(text) > _LONGEST:
        raise InputError(f"longer than {_LONGEST:,} letters", file=path, fix="is it the right file?")
    context = ScriptContext(path.name, variables, FilesBeside(path.parent))
    own = own_settings(text, path.name)
    if path.suffix in _YAML:
        context = replace(context, variant=variant)
        return servers_of_manifest(text, context), own
    if variant:
        raise InputError("has no variants", file=path, value=variant, fix="give the file alone")
    return servers_of_script(text, context), own
