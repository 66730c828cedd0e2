"""Bad rows of a trace: an error, or skipped and counted."""

from __future__ import annotations

import sys

from blis_py.errors import InputError


class BadRows:
    """Policy on bad rows: raise an error at the first, or skip them all.

    Attributes:
        count: number of skipped rows.
        first: the error of the first of them.
    """

    def __init__(self, *, skip: bool = False, fix: str | None = None) -> None:
        """`fix` is an alternative remedy besides correcting the row."""
        self.skip = skip
        self.count = 0
        self.first: InputError | None = None
        self._fix = fix
        self._line = sys.maxsize
        """Line of the first."""

    def refuse(self, error: InputError, line: int, rows: int = 1) -> None:
        """Report `rows` bad rows, the first of which ends on this line.

        Raises:
            InputError: the given one, unless bad rows are skipped.
        """
        if not self.skip:
            fix = ", or ".join(filter(None, (error.fix, self._fix))) or None
            raise InputError(error.problem, file=error.file, key=error.key, value=error.value, fix=fix)
        self.count += rows
        if line < self._line:
            self.first, self._line = error, line

    def note(self) -> str | None:
        """A sentence on the skipped rows."""
        if self.first is None:
            return None
        if self.count == 1:
            return f"one bad row of the trace was skipped: {self.first}"
        return f"{self.count:,} bad rows of the trace were skipped; the first: {self.first}"
