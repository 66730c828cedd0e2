"""Reading options of a recording, and the resulting notes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blis_py.errors import InputError
from blis_py.requests.table import Ints
from blis_py.requests.think_time import ThinkTime
from blis_py.traces.bad_rows import BadRows

_MOST_IN_FLIGHT = 2**31
"""Larger numbers are no limit of a benchmark."""


@dataclass
class Reading:
    """Options and results of a reader.

    Attributes:
        header: the header file of a format that has one.
        columns: role (`arrival`, `input`, ...) -> column, for tables with unknown column names.
        time_unit: of numeric arrivals; None = that of the format.
        hash_block_size: tokens per hash id of a prompt; None = that of the format.
        tokenizer: a `tokenizer.json`, for text recordings.
        part: index of the run in a file with several, from 0; None = the file has only one.
        bad: policy on bad rows.
        notes: notes on the recording for the user.
        chosen_as: detected format and the evidence; empty if the format was given.
        requests_models: whether its models are requested ones rather than those that answered.
        has_times: whether it has arrival times; if not, all requests arrive at once, or at a given rate.
        session_mode: `closed-loop`: turns of sessions wait for the answer before them; `fixed`: they come at
            their times; None: the latter where they have any.
        think: think time before a turn, if not as recorded.
        as_blis: sessions as in BLIS: conversations omit the last token of every answer, and missing pauses
        are the gaps between arrivals.
        accumulates: whether the recording has only the addition of each turn to its conversation.
        only_pauses: whether later turns have pauses in place of arrival times.
        answered_ns: time of each answer's last token, 0 if unknown.
        concurrency: requests that the recorded benchmark kept in flight; None = it was no closed loop.
        paced: whether that benchmark had a request rate, too.
        rate: requests/s of the recorded benchmark, for recordings without arrival times.
        assumed_unit: unit of arrivals that neither the user nor the file states.
    """

    header: Path | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    time_unit: str | None = None
    hash_block_size: int | None = None
    tokenizer: Path | None = None
    part: int | None = None
    bad: BadRows = field(default_factory=BadRows)
    notes: list[str] = field(default_factory=list)
    chosen_as: str = ""
    requests_models: bool = False
    has_times: bool = True
    session_mode: str | None = None
    think: ThinkTime | None = None
    as_blis: bool = False
    accumulates: bool = False
    only_pauses: bool = False
    answered_ns: Ints | None = None
    concurrency: int | None = None
    paced: bool = False
    rate: float | None = None
    assumed_unit: str | None = None

    def note(self, note: str) -> None:
        self.notes.append(note)

    def kept_in_flight(self, concurrency: Any, *, paced: bool = False) -> None:
        """Note a benchmark's limit on requests in flight, if it is one."""
        if type(concurrency) is int and 0 < concurrency <= _MOST_IN_FLIGHT:
            self.concurrency, self.paced = concurrency, paced

    def left_out(self, count: int, why: str) -> None:
        """Note that `count` recorded requests were left out."""
        if count:
            several = "request was" if count == 1 else "requests were"
            self.note(f"{count:,} {several} left out: {why}")

    def stated(self) -> tuple[str, ...]:
        """All notes, skipped rows last."""
        skipped = self.bad.note()
        return (*self.notes, *(() if skipped is None else (skipped,)))

    def chosen(self, parts: list[Any], file: Path, what: str) -> Any:
        """The selected run in a file.

        Raises:
            InputError: several runs without a selection, or no such run.
        """
        if self.part is None and len(parts) > 1:
            fix = f"name one: {file.name}#0 to {file.name}#{len(parts) - 1}"
            raise InputError(f"holds {len(parts)} {what}", file=file, fix=fix)
        index = self.part or 0
        if index >= len(parts):
            raise InputError(f"holds {len(parts)} {what}", file=file, key=f"#{index}", fix="count from 0")
        return parts[index]
