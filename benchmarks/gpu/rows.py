"""Everything a campaign measures, row by row in one file: a JSON object per line, written as it is found.

A row has the name of its script, a key that names it there, and the number of the run that measured it; a
line with `provenance` says of each run where, in what state and with which software it was. A row with
`error` says what could not be measured, and why. Nothing but appending whole lines is ever done to the file,
so whatever ends a run leaves what there was.
"""

from __future__ import annotations

import json
import sys
import traceback
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

Row = dict[str, Any]
T = TypeVar("T")

RESULTS = "results.jsonl"
SAME = ("gpu", "revision")
"""What has to be the same for a row of an earlier run to be as good as a new one; a revision has the hash of
its sources."""
_LONGEST_ERROR = 2000


def read_rows(out: Path) -> list[Row]:
    """All lines of a folder's file but those that were cut off, which are reported."""
    try:
        lines = (out / RESULTS).read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    rows = []
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            rows.append(json.loads(line))
        except ValueError:
            print(f"{out / RESULTS}:{number}: cut off, left out", file=sys.stderr)
    return rows


class Rows:
    """The rows of one script.

    Args:
        out: folder of the file, made if need be; `None` = rows are not kept.
        provenance: of this run.
    """

    def __init__(self, out: Path | None, script: str, provenance: dict[str, Any]) -> None:
        self._out, self._script, self._run = out, script, uuid.uuid4().hex[:8]
        self._before: dict[str, Row] = {}
        self.failures = 0
        self._provenance: dict[str, Any] | None = provenance
        """Until it has been written: with the first row."""
        if out is None:
            return
        out.mkdir(parents=True, exist_ok=True)
        found = read_rows(out)
        alike = {row["run"] for row in found if _alike(row.get("provenance"), provenance)}
        mine = (row for row in found if row["script"] == script and "key" in row and "error" not in row)
        self._before = {row["key"]: row for row in mine if row["run"] in alike}

    def before(self, key: str) -> Row | None:
        """The row of this key, if it has been measured before on this GPU and at this revision."""
        return self._before.get(key)

    def add(self, key: str, values: Row) -> Row:
        """A new row; on disk when this returns."""
        self._before[key] = row = self.note(key, values)
        return row

    def once(self, key: str, measure: Callable[[], Row]) -> Row | None:
        """The row of this key, measured now unless it was before.

        Whatever goes wrong with it is noted instead, and does not keep the others from being measured.
        """
        try:
            return self.before(key) or self.add(key, measure())
        except Exception as error:
            self._failed(key, error)
            return None

    def guarded(self, key: str, cases: Iterable[T]) -> Iterator[T]:
        """These cases, as far as they can be made; what goes wrong is noted under `key`."""
        try:
            yield from cases
        except Exception as error:
            self._failed(key, error)

    def _failed(self, key: str, error: Exception) -> None:
        traceback.print_exc()
        self.failures += 1
        self.note(key, {"error": f"{type(error).__name__}: {error}"[:_LONGEST_ERROR]})

    def after(self, state: dict[str, Any]) -> None:
        """In what state the GPU was when the last row had been measured."""
        if self._provenance is None:
            self._append({"script": self._script, "run": self._run, "state_after": state})

    def note(self, key: str, values: Row) -> Row:
        """A row that does not keep it from being measured again in this run; with `error`, in none."""
        if self._provenance is not None:
            self._append({"script": self._script, "run": self._run, "provenance": self._provenance})
            self._provenance = None
        row = {"script": self._script, "run": self._run, "key": key, **values}
        self._append(row)
        return row

    def _append(self, row: Row) -> None:
        if self._out is None:
            return
        path = self._out / RESULTS
        with path.open("ab+") as file:  # every write goes to the end
            torn = file.tell() and not _ends_in_newline(file)
            file.write((b"\n" if torn else b"") + json.dumps(row).encode() + b"\n")


def _alike(one: dict[str, Any] | None, other: dict[str, Any]) -> bool:
    """Whether a row of the one run is as good as one of the other."""
    return (
        one is not None
        and bool(other.get("revision"))
        and all(one.get(name) == other.get(name) for name in SAME)
    )


def _ends_in_newline(file: Any) -> bool:
    file.seek(-1, 2)
    return bool(file.read(1) == b"\n")
