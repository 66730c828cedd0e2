"""The journal of a measurement: a line for every request that has ended, so that it can be resumed."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import IO

from blis_py.errors import InputError
from blis_py.observe.driver import MeasuredRequest

NAME = "journal.jsonl"
_COLUMNS = tuple(field.name for field in fields(MeasuredRequest))


class MeasurementJournal:
    """Append-only file of measured requests; a broken last line is ignored when it is read again.

    Args:
        identity: what the measurement is of; a resumed one must equal it.
    """

    def __init__(self, path: Path, identity: dict[str, object]) -> None:
        self._path, self._identity = path, identity
        self._file: IO[str] | None = None

    def begin(self, *, resume: bool) -> list[MeasuredRequest]:
        """Open the journal; return what it holds already.

        Raises:
            InputError: there is one and it is not to be resumed, or it is of something else.
        """
        requests: list[MeasuredRequest] = []
        if self._path.exists():
            if not resume:
                fix = "add --resume, or choose another --out"
                raise InputError("an interrupted measurement is there", file=self._path, key="--out", fix=fix)
            requests = self._read()
        else:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._path.open("a", encoding="utf-8")
        if not requests and not self._path.stat().st_size:
            self._write(self._identity)
        return requests

    def _read(self) -> list[MeasuredRequest]:
        lines = self._path.read_text(encoding="utf-8").splitlines()
        rows = []
        for number, line in enumerate(lines):
            try:
                rows.append(json.loads(line))
            except ValueError:
                if number != len(lines) - 1:
                    raise InputError("not JSON", file=self._path, key=f"line {number + 1}") from None
        if rows and rows[0] != self._identity:
            differing = sorted(key for key in self._identity if rows[0].get(key) != self._identity[key])
            fix = "resume with the same flags, or choose another --out"
            raise InputError("is of another measurement", file=self._path, key=", ".join(differing), fix=fix)
        if len(rows) < len(lines):  # drop the broken line
            text = "".join(f"{line}\n" for line in lines[: len(rows)])
            self._path.write_text(text, encoding="utf-8")
        return [MeasuredRequest(**{**row, "end": tuple(row["end"])}) for row in rows[1:]]

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
