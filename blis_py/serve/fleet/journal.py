"""The journal of a served run: a line for every request that has ended, until the run is saved."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import IO, Any

from blis_py.errors import InputError

log = logging.getLogger("blis.serve")


class RunJournal:
    """Append-only file of requests as JSON lines.

    Args:
        path: next to the folder that the run is saved to.
        force: replace the journal that is there.

    Raises:
        InputError: there is the journal of a run that did not end in order, or it cannot be written.
    """

    def __init__(self, path: Path, *, force: bool) -> None:
        self.path = path
        if path.exists() and path.stat().st_size and not force:
            fix = "move it away, add --force, or choose another --out"
            raise InputError("a run that was not saved is there", file=self.path, key="--out", fix=fix)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file: IO[str] | None = self.path.open("w", encoding="utf-8", buffering=1)
        except OSError as error:
            raise InputError(f"cannot be written: {error.strerror}", file=self.path, key="--out") from None

    def add(self, row: dict[str, Any]) -> None:
        """Write a request; a full disk ends the journal, not the server."""
        if self._file is None:
            return
        try:
            self._file.write(json.dumps(row, separators=(",", ":")) + "\n")
        except OSError as error:
            log.error("the journal ends here: %s", error)
            self._file = None

    def remove(self) -> None:
        """Remove it: the run has been saved."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self.path.unlink(missing_ok=True)
