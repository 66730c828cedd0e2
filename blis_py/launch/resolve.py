"""One server as settings of an instance."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from blis_py.config.engine import load_engine, names
from blis_py.errors import InputError
from blis_py.files.paths import is_folder
from blis_py.files.yaml_files import parse_yaml
from blis_py.launch.engine_parts import combine, role_of
from blis_py.launch.findings import LaunchFindings
from blis_py.launch.flag_table import flag_table
from blis_py.launch.flag_words import flags_of, spelled, with_parts
from blis_py.launch.layout import DIVISIONS, GpuDivision
from blis_py.launch.open_text import is_open, shown, unset
from blis_py.launch.server import LaunchedServer
from blis_py.models.model_shape import ModelShape, load_model
from blis_py.models.published_formats import is_known

_OWN_VARIABLES = ("VLLM_", "SGLANG_", "SGL_", "TRTLLM_", "TLLM_", "NCCL_")
"""Beginnings of the variables of the engines, none of which is passed over."""
_CACHED = re.compile(r"models--([^/]+)--([^/]+)")
_BYTES_OF_16_BITS = 2
_MAX_DEPTH = 3
"""Option files that name option files."""


@dataclass
class ResolvedServer:
    """Settings of the instances of a server, alike ones taken together."""

    server: LaunchedServer
    findings: LaunchFindings
    settings: dict[str, tuple[Any, str]]
    """Value and flag by configuration key."""
    division: GpuDivision
    role: str
    count: int
    notes: list[str]

    @property
    def values(self) -> dict[str, Any]:
        """Values by configuration key."""
        return {key: value for key, (value, _) in self.settings.items()}


def resolve(server: LaunchedServer, *, model: str = "", engine: str = "") -> ResolvedServer | None:
    """The settings of a server; None for one that only follows another, as the second node of one server.

    Args:
        model: the model, where it is named otherwise.
        engine: the preset, where it is named otherwise.

    Raises:
        InputError: a flag whose value is not known or not valid, or under which no result would hold.
    """
    table = flag_table(server.engine)
    findings = LaunchFindings(table)
    notes: list[str] = []
    try:
        _read(server, findings)
    except InputError as error:
        raise InputError(
            error.problem, file=error.file or server.where, key=error.key, value=error.value, fix=error.fix
        ) from None
    if findings.parts.get("follower") or findings.parts.get("rank", "0") not in ("0", ""):
        return None
    if not engine:
        engine, note = preset_of(server.engine, server.image.release)
        notes += note
    settings: dict[str, tuple[Any, str]] = {"engine": (engine, server.where)}
    name = model or _model(findings, notes)
    shape = _shape(name)
    if name and not model:
        settings["model"] = name, findings.labels.get("model", "")
    _check_quantisation(findings, shape)
    division = DIVISIONS[server.engine](findings, shape)
    combine(server.engine, findings, division)
    where = findings.labels.get("tensor") or server.where
    settings["tp"] = division.gpus, where
    settings["attention_dp"] = division.attention_dp, findings.labels.get("data", where)
    settings["ep"] = division.ep, findings.labels.get("experts", where)
    settings |= findings.settings
    role = server.role or role_of(findings)
    if role == "both":
        for key in [key for key in settings if key.startswith("disaggregation.")]:
            del settings[key]
    if server.gpu:
        settings["gpu"] = server.gpu, server.where
    gpus = division.gpus * division.instances
    if server.gpus and server.gpus < gpus:
        notes.append(f"{server.where}: {gpus} GPUs by its flags, and {server.gpus} reserved")
    return ResolvedServer(
        server, findings, settings, division, role, server.count * division.instances, notes
    )


def _read(server: LaunchedServer, findings: LaunchFindings) -> None:
    for name, text in server.environment.items():
        if name.startswith(_OWN_VARIABLES) or findings.table.meaning("environment", name):
            findings.add("environment", name, text)
    for name, text in with_parts(flags_of(server.words, findings.table), findings.table):
        if name:
            findings.add("flags", name, text)
        elif "model" not in findings.parts and text and not findings.labels.get("model"):
            findings.parts["model"], findings.labels["model"] = text, "its first word"
        else:
            findings.unknown.append(shown(text))
    _read_options(server, findings, 0)


def _read_options(server: LaunchedServer, findings: LaunchFindings, depth: int) -> None:
    """The file of options that a flag names; flags of the command line count more."""
    path = findings.parts.pop("file", None)
    if path is None or depth > _MAX_DEPTH:
        return
    text = server.file(path)
    label = findings.labels["file"]
    if text is None:
        fix = "put it beside the script"
        raise InputError("names a file that is not there", key=label, value=shown(path), fix=fix)
    data = parse_yaml(text)
    if data is None:
        return
    if not isinstance(data, Mapping):
        raise InputError("names a file that is not a mapping", key=label, value=shown(path))
    own = LaunchFindings(findings.table)
    if server.engine == "trtllm":
        own.nested("", data)
    else:
        for name, value in _as_flags(data, findings):
            own.add("flags", name, value)
    first, second = (findings, own) if server.engine != "trtllm" else (own, findings)
    findings.settings = {**second.settings, **first.settings}
    findings.parts = {**second.parts, **first.parts}
    findings.labels = {**second.labels, **first.labels}
    for name in ("idle", "unmodelled", "unknown"):
        setattr(findings, name, list(dict.fromkeys([*getattr(findings, name), *getattr(own, name)])))
    _read_options(server, findings, depth + 1)


def _as_flags(data: Mapping[Any, Any], findings: LaunchFindings) -> Iterator[tuple[str, str]]:
    """The keys of an option file of vLLM or SGLang as flags."""
    for key, value in data.items():
        name = spelled(f"--{key}", findings.table)
        if isinstance(value, Mapping):
            yield name, json.dumps(value)
        elif isinstance(value, list):
            yield name, " ".join(map(str, value))
        elif value is False:
            off = f"--no-{name[2:]}"
            yield (off, "") if findings.table.meaning("flags", off) else (name, "false")
        else:
            yield name, "" if value is True else str(value)


def _model(findings: LaunchFindings, notes: list[str]) -> str:
    """The model by its path, or by the name under which it is served."""
    text, served = findings.parts.get("model", ""), findings.parts.get("served", "").split(" ")[0]
    cached = _CACHED.search(text)
    name = f"{cached[1]}/{cached[2]}" if cached else text.rstrip("/")
    if name and not is_open(name) and (is_known(name) or is_folder(name)):
        return name
    if served and not is_open(served) and is_known(served):
        if name:
            notes.append(f"the model is {served}, its served name: {shown(name)} is not a known one")
        return served
    if is_open(name):
        variables = " ".join(f"--launch-env {each}=…" for each in unset(name)) or "--model"
        notes.append(f"the model is not read: only a run of the script has {shown(name)}; give {variables}")
        return ""
    return name


def _shape(name: str) -> ModelShape | None:
    if not name:
        return None
    try:
        return load_model(name)
    except (InputError, OSError):
        return None


def _check_quantisation(findings: LaunchFindings, shape: ModelShape | None) -> None:
    text = findings.parts.get("quantization", "").lower()
    if text in ("", "none"):
        return
    label = f"{findings.labels['quantization']} {text}"
    if shape is not None and min(shape.weights.experts, shape.weights.dense) < _BYTES_OF_16_BITS:
        findings.idle.append(label)
    else:
        would = "weights take less memory and time; give --model of a checkpoint that is quantised so"
        findings.unmodelled.append(f"{label}: {would}")


def preset_of(engine: str, release: str) -> tuple[str, list[str]]:
    """The preset of an engine's release, and what to say where there is none of that release."""
    if not release:
        return engine, [f"the release of {engine} is not said: {engine}, the newest preset, is taken"]
    name = f"{engine}-{release}"
    try:
        load_engine(name)
    except InputError:
        spans = [load_engine(each).releases for each in names() if each.partition("-")[0] == engine]
        number = tuple(map(int, re.findall(r"\d+", release)[:2]))
        later = [span[0] for span in spans if span and number < _number(span[0])]
        nearest = f"{engine}-{min(later, key=_number)}" if later else engine
        return nearest, [f"no preset describes {engine} {release}: {nearest} is the nearest"]
    return name, []


def _number(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))
