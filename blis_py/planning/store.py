"""Outcomes on disk, keyed by the content that determines them, to avoid repeated runs."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from blis_py.files.paths import check_name, expanded
from blis_py.outputs.places import check_folder, is_stream
from blis_py.outputs.staging import write_text
from blis_py.planning.job import JobOutcome, outcome_from

_MAX_BYTES = 1 << 26


class ResultStore(Protocol):
    """Storage of outcomes."""

    def get(self, key: str) -> JobOutcome | None: ...

    def put(self, key: str, outcome: JobOutcome) -> None: ...


class Nowhere:
    """Store without content."""

    def get(self, key: str) -> JobOutcome | None:
        return None

    def put(self, key: str, outcome: JobOutcome) -> None:
        return None


class Folder:
    """Store with a file for each outcome; corrupt files are ignored.

    Raises:
        InputError: the folder is not writable.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = default_folder() if path is None else expanded(check_name(str(path), key="--cache"))
        check_folder(_nearest(self.path), "--cache")

    def get(self, key: str) -> JobOutcome | None:
        try:
            file = self._file(key)
            if not file.is_file() or file.stat().st_size > _MAX_BYTES:  # reading a pipe would block
                return None
            digest, _, body = file.read_text(encoding="utf-8").partition("\n")
            if digest != sha256(body.encode()).hexdigest():
                return None
            entry = json.loads(body)
            return outcome_from(entry["outcome"]) if entry["key"] == key else None
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            return None

    def put(self, key: str, outcome: JobOutcome) -> None:
        """Store a simulated outcome; failing to is harmless, since the job can run again.

        Refusals are not stored: they name files, whose names may change, and are quickly found again.
        """
        if not outcome.ran or is_stream(self._file(key)):
            return
        body = json.dumps({"key": key, "outcome": asdict(outcome)}, allow_nan=False)
        file = self._file(key)
        with suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            write_text(file, f"{sha256(body.encode()).hexdigest()}\n{body}")

    def _file(self, key: str) -> Path:
        return self.path / key[:2] / f"{key}.json"


def default_folder() -> Path:
    """The platform's cache folder, or the one that `BLIS_CACHE` names."""
    if os.environ.get("BLIS_CACHE"):
        return Path(os.environ["BLIS_CACHE"])
    if sys.platform == "darwin":
        home = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        home = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "blis-py" / "runs"


def _nearest(path: Path) -> Path:
    """The folder, or its nearest existing ancestor."""
    return path if path.exists() or path == path.parent else _nearest(path.parent)
