"""Rows of a trace that are no good: one is an error, or all of them are left out and counted."""

from __future__ import annotations

import sys

from blis_py.errors import InputError


class BadRows:
    """What a reader does about rows that are no good: it refuses the first one, or leaves all of them out.

    Attributes:
        count: how many have been left out.
        first: the complaint about the first of them.
    """

    def __init__(self, *, skip: bool = False, fix: str | None = None) -> None:
        """`fix` is what to propose beside the correction of the row."""
        self.skip = skip
        self.count = 0
        self.first: InputError | None = None
        self._fix = fix
        self._line = sys.maxsize
        """Of the first."""

    def refuse(self, error: InputError, line: int, rows: int = 1) -> None:
        """To be called for the first of so many bad rows, which ends on this line.

        Raises:
            InputError: the given one, unless they are to be left out.
        """
        if not self.skip:
            fix = ", or ".join(filter(None, (error.fix, self._fix))) or None
            raise InputError(error.problem, file=error.file, key=error.key, value=error.value, fix=fix)
        self.count += rows
        if line < self._line:
            self.first, self._line = error, line

    def note(self) -> str | None:
        """What has been left out, in a sentence."""
        if self.first is None:
            return None
        if self.count == 1:
            return f"one bad row of the trace was skipped: {self.first}"
        return f"{self.count:,} bad rows of the trace were skipped; the first: {self.first}"
