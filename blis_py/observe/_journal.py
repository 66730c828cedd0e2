"""The journal of a measurement: a line for every request that has ended, so that it can be resumed."""

from __future__ import annotations

import json
from dataclasses import fields
from hashlib import sha256
from pathlib import Path
from typing import IO

import numpy as np

from blis_py.errors import InputError
from blis_py.observe.driver import MeasuredRequest
from blis_py.requests.table import RequestTable

NAME = "journal.jsonl"
_FINISHED = ("run.yaml", "trace.yaml", "trace.csv")
"""Files of a measurement that has been written."""
_OF_THE_WORKLOAD = (
    *("arrival_ns", "prompt_tokens", "output_tokens", "max_tokens", "deadline_ns", "content"),
    *("session", "think_ns"),
)
_COLUMNS = tuple(field.name for field in fields(MeasuredRequest))


def digest(table: RequestTable) -> str:
    """Digest of everything that a workload asks of a server."""
    columns = [getattr(table, name) for name in _OF_THE_WORKLOAD]
    found = sha256()
    for name, column in zip(_OF_THE_WORKLOAD, columns, strict=True):
        found.update(f"{name} {0 if column is None else len(column)} ".encode())
        if column is not None:
            found.update(np.ascontiguousarray(column).tobytes())
    found.update(repr([list(table.contents[n]) for n in range(len(table.contents))]).encode())
    return found.hexdigest()[:16]


class MeasurementJournal:
    """Append-only file of measured requests; a broken last line is ignored when it is read again.

    Args:
        identity: what the measurement is of; a resumed one must equal it.
    """

    def __init__(self, path: Path, identity: dict[str, object]) -> None:
        self._path, self._identity = path, identity
        self._file: IO[str] | None = None

    def begin(self, *, resume: bool, force: bool = False) -> list[MeasuredRequest]:
        """Open the journal; return what it holds already.

        Args:
            force: drop the journal that is there, and let a finished measurement be replaced.

        Raises:
            InputError: the folder has a finished measurement; or there is a journal and it is not to be
                resumed, or it is of something else.
        """
        if force:
            self._path.unlink(missing_ok=True)
        else:
            self._refuse(resume=resume)
        requests: list[MeasuredRequest] = []
        if self._path.exists():
            requests = self._read()
        else:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._path.open("a", encoding="utf-8")
        if not requests and not self._path.stat().st_size:
            self._write(self._identity)
        return requests

    def _refuse(self, *, resume: bool) -> None:
        if self._path.exists():
            if not resume:
                fix = "add --resume, --force to begin anew, or choose another --out"
                raise InputError("an interrupted measurement is there", file=self._path, key="--out", fix=fix)
            return
        for name in _FINISHED:
            if (file := self._path.with_name(name)).exists():
                key = "--resume" if resume else "--out"
                fix = "choose another --out, or replace it with --force"
                raise InputError("a finished measurement is there", file=file, key=key, fix=fix)

    def _read(self) -> list[MeasuredRequest]:
        lines = self._path.read_text(encoding="utf-8").splitlines()
        rows = []
        for number, line in enumerate(lines):
            try:
                rows.append(json.loads(line))
            except ValueError:
                if number != len(lines) - 1:
                    raise InputError("not JSON", file=self._path, key=f"line {number + 1}") from None
        if rows and not isinstance(rows[0], dict):
            raise InputError("is no journal of a measurement", file=self._path, fix="choose another --out")
        if rows and rows[0] != self._identity:
            differing = sorted(key for key in self._identity if rows[0].get(key) != self._identity[key])
            fix = "resume with the same flags, or choose another --out"
            raise InputError("is of another measurement", file=self._path, key=", ".join(differing), fix=fix)
        if len(rows) < len(lines):  # drop the broken line
            text = "".join(f"{line}\n" for line in lines[: len(rows)])
            self._path.write_text(text, encoding="utf-8")
        try:
            return [MeasuredRequest(**{**row, "end": tuple(row["end"])}) for row in rows[1:]]
        except (TypeError, KeyError) as error:
            fix = "begin anew with --force"
            raise InputError(f"a damaged line: {error}", file=self._path, fix=fix) from None

    def add(self, measured: MeasuredRequest) -> None:
        self._write({name: getattr(measured, name) for name in _COLUMNS})

    def _write(self, row: dict[str, object]) -> None:
        assert self._file is not None
        self._file.write(json.dumps(row, separators=(",", ":")) + "\n")

    def flush(self) -> None:
        if self._file is not None:
            self._file.flush()

    def end(self, *, remove: bool) -> None:
        """Close it; a complete measurement needs it no longer."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if remove:
            self._path.unlink(missing_ok=True)
