"""The digest of everything that determines a job's outcome: its settings, the files it names, and the
code."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from glob import escape
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

import numpy as np

from blis_py.config.models import DESCRIPTIONS, RunConfig
from blis_py.config.paths import named_files
from blis_py.errors import InputError
from blis_py.files.bundled import root
from blis_py.files.opening import read_text
from blis_py.files.yaml_files import parse_yaml
from blis_py.metrics.registry import METRICS
from blis_py.planning.job import Job
from blis_py.version import __version__

_LONGEST_NAME = 200
_PACKAGE = Path(__file__).parents[1]


class Contents:
    """Digests of files, each read once unless it changes."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int, int], str] = {}

    def key_of(self, job: Job) -> str | None:
        """The job's digest; None if a file is unreadable, which the run itself reports."""
        files = self.digests(job.config)
        if None in files.values():
            return None
        settings = job.as_dict()
        for path in files:
            _drop(settings["config"], path.split("."))
        content = json.dumps([settings, files, code_digest(), [*METRICS]], sort_keys=True, default=str)
        return sha256(content.encode()).hexdigest()

    def digests(self, config: RunConfig) -> dict[str, str | None]:
        """Content digests by configuration key, of the files and folders named there."""
        return {key: self._digest(key, path) for key, path in named_files(config).items()}

    def _digest(self, key: str, path: Path) -> str | None:
        try:
            members = sorted(_MEMBERS.get(key, _itself)(path))
            parts = [_label(key, path, member) + self._file(member) for member in members]
        except (OSError, InputError):
            return None
        return sha256("".join(parts).encode()).hexdigest() if parts else None

    def _file(self, path: Path) -> str:
        stat = path.stat()
        stamp = (str(path), stat.st_mtime_ns, stat.st_size)
        if stamp not in self._known:
            with path.open("rb") as file:
                self._known[stamp] = file_digest(file, "sha256").hexdigest()
        return self._known[stamp]


def _label(key: str, path: Path, member: Path) -> str:
    """The part of a file's name that matters: a workload's kind; of other files the name shown in reports."""
    stem, ending, rest = member.name.partition(".")
    name, _, part = path.name.partition("#")
    if key.startswith("workload.") and stem == name.partition(".")[0]:
        return f"{ending}{rest}#{part}"
    return f"{path.name}/{member.name}"


def _itself(path: Path) -> list[Path]:
    return [member for member in path.rglob("*") if member.is_file()] if path.is_dir() else [path]


def _configs(path: Path) -> list[Path]:
    """Configuration files of a checkpoint folder, without its weights."""
    return list(path.glob("*.json")) if path.is_dir() else [path]


def _with_header(path: Path) -> list[Path]:
    """A trace and its neighbours of the same name: either may be the header of the other."""
    whole = path.parent / path.name.partition("#")[0]
    if whole.is_dir():
        return _itself(whole)
    beside = path.parent.glob(f"{escape(whole.name.partition('.')[0])}.*")
    return sorted({whole, *(file for file in beside if file.is_file())})


def _with_references(path: Path) -> list[Path]:
    """A workload and the files it names in turn."""
    texts = _texts(parse_yaml(read_text(path), path))
    named = {path.parent / text for text in texts if len(text) < _LONGEST_NAME and "\0" not in text}
    return [path, *(file for file in named if file.is_file() and file != path)]


def _texts(data: Any) -> Iterator[str]:
    if isinstance(data, str):
        yield data
    elif isinstance(data, dict | list):
        for part in data.values() if isinstance(data, dict) else data:
            yield from _texts(part)


_MEMBERS: dict[str, Callable[[Path], list[Path]]] = {
    "model": _configs,
    "model_config": _configs,
    "workload.trace": _with_header,
    "workload.spec": _with_references,
    **dict.fromkeys(DESCRIPTIONS, _with_references),
}
"""Files to digest by key, where that is neither the named file alone nor the whole folder."""


def _drop(settings: dict[str, Any], keys: list[str]) -> None:
    """Remove path settings whose content digest says everything."""
    for key in keys[:-1]:
        settings = settings[key]
    settings[keys[-1]] = None


@cache
def code_digest() -> str:
    """Digest of everything else that determines a result: sources, profiles, workloads."""
    digest = sha256(f"{__version__} numpy {np.__version__}".encode())
    for path in _sources():
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _sources() -> Iterator[Path]:
    yield from sorted(_PACKAGE.rglob("*.py"))
    for kind in ("profiles", "workloads"):
        yield from sorted(path for path in root(kind).rglob("*") if path.is_file())
