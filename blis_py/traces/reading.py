"""How a recording is to be read, and what there is to say about it afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blis_py.errors import InputError
from blis_py.requests.table import Ints
from blis_py.requests.think_time import ThinkTime
from blis_py.traces.bad_rows import BadRows


@dataclass
class Reading:
    """What a reader is told, and what it tells.

    Attributes:
        header: the header file of a format that has one.
        columns: role (`arrival`, `input`, ...) -> column, for tables whose names mean nothing to us.
        time_unit: of numbers in the column of arrivals.
        tokenizer: a `tokenizer.json`, for recordings that hold text.
        part: which of several runs in one file, from 0; None where there is but one.
        bad: what to do about rows that are no good.
        notes: what the user should know of the recording.
        chosen_as: which format it was taken for, and why; empty where somebody said which it is.
        asks_for_models: whether its models are those that requests ask for, and not those that once answered.
        has_times: whether it says when requests came; if not, they all come at once, or as a rate says.
        session_mode: `closed-loop`: turns of sessions wait for the answer before them; `fixed`: they come at
            their times; None: the latter where they have any.
        think: how long clients think before a turn, where not as recorded.
        as_blis: sessions as in BLIS: conversations forget the last token of every answer, and pauses that
            are not recorded are the gaps between arrivals.
        accumulates: the recording has what each turn adds to its conversation.
        only_pauses: later turns have pauses before them, and no times.
        answered_ns: when the last token of each request's answer came, 0 where that is not known.
    """

    header: Path | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    time_unit: str = "s"
    tokenizer: Path | None = None
    part: int | None = None
    bad: BadRows = field(default_factory=BadRows)
    notes: list[str] = field(default_factory=list)
    chosen_as: str = ""
    asks_for_models: bool = False
    has_times: bool = True
    session_mode: str | None = None
    think: ThinkTime | None = None
    as_blis: bool = False
    accumulates: bool = False
    only_pauses: bool = False
    answered_ns: Ints | None = None

    def tell(self, note: str) -> None:
        self.notes.append(note)

    def left_out(self, count: int, why: str) -> None:
        """Tell that so many recorded requests are not among those that are played."""
        if count:
            several = "request was" if count == 1 else "requests were"
            self.tell(f"{count:,} {several} left out: {why}")

    def told(self) -> tuple[str, ...]:
        """All there is to say, bad rows that were skipped last."""
        skipped = self.bad.note()
        return (*self.notes, *(() if skipped is None else (skipped,)))

    def chosen(self, parts: list[Any], file: Path, what: str) -> Any:
        """One of the runs in a file.

        Raises:
            InputError: there are several and nobody said which, or there are not so many.
        """
        if self.part is None and len(parts) > 1:
            fix = f"name one: {file.name}#0 to {file.name}#{len(parts) - 1}"
            raise InputError(f"holds {len(parts)} {what}", file=file, fix=fix)
        index = self.part or 0
        if index >= len(parts):
            raise InputError(f"holds {len(parts)} {what}", file=file, key=f"#{index}", fix="count from 0")
        return parts[index]
