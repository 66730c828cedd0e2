"""Tables, JSON lines and lists with arbitrary names of the columns for arrivals and lengths.

Any CSV, Parquet, JSON lines or JSON list can be read by assigning roles to its columns (`--columns
arrival=ts,input=prompt_len,output=gen_len`); formats that differ in nothing else are lines in `DIALECTS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blis_py.core.bounds import MAX_TOKENS
from blis_py.errors import InputError
from blis_py.files.csv_files import header_of
from blis_py.requests.table import Ints, Labels, RequestTable
from blis_py.traces._conversations import in_conversations
from blis_py.traces._gathered import FAILED
from blis_py.traces._json_columns import read_json_columns, read_list_columns
from blis_py.traces._suggested import conversation_in
from blis_py.traces._units import TraceClock
from blis_py.traces.columns import Columns, read_columns
from blis_py.traces.kinds import BadCells, TraceKind, integers, labels, repeated, texts
from blis_py.traces.reading import Reading

LABELS = ("slo_class", "tenant_id", "client_id", "model", "prefix_group")
SESSION, TURN = "session_id", "turn"
ROLES = ("arrival", "input", "output", "max_tokens", "request_id", *LABELS, SESSION, TURN)
"""Roles of columns; `input` and `output` are required."""


@dataclass(frozen=True)
class Dialect:
    """Columns of a published format, by role; some releases have the optional ones."""

    columns: Mapping[str, str]
    optional: Mapping[str, str] = field(default_factory=dict)


DIALECTS = {
    # github.com/HPMLL/BurstGPT, CC-BY-4.0; later releases add a session and an elapsed time
    "burstgpt": Dialect(
        {"arrival": "Timestamp", "input": "Request tokens", "output": "Response tokens", "model": "Model"},
        {SESSION: "Session ID"},
    ),
    # github.com/Mutinifni/splitwise-sim, MIT
    "splitwise": Dialect(
        {
            "arrival": "arrival_timestamp",
            "input": "prompt_size",
            "output": "token_size",
            "request_id": "request_id",
        }
    ),
}


def read(path: Path, reading: Reading) -> RequestTable:
    """The requests of a CSV file with the columns given by `reading.columns`.

    Raises:
        InputError: an unknown role, a missing column, or a bad cell; with the line.
    """
    kinds = _kinds(reading)
    return of_columns(read_columns(path, kinds, bad_rows=reading.bad), reading.columns, reading)


def read_lines(path: Path, reading: Reading) -> RequestTable:
    """The requests of JSON lines with the keys given by `reading.columns`.

    Raises:
        InputError: an unknown role, a missing key, or a bad value; with the line.
    """
    kinds = _kinds(reading)
    return of_columns(read_json_columns(path, kinds, reading), reading.columns, reading)


def read_list(path: Path, reading: Reading, document: list[Any]) -> RequestTable:
    """The requests of a JSON list of objects with the keys given by `reading.columns`.

    Raises:
        InputError: an unknown role, a missing key, or a bad value; with the number of the entry.
    """
    return of_columns(read_list_columns(path, document, _kinds(reading), reading), reading.columns, reading)


def _kinds(reading: Reading) -> dict[str, TraceKind]:
    check_roles(reading.columns)
    return {name: _kind(role, reading) for role, name in reading.columns.items()}


def check_roles(columns: Mapping[str, str]) -> None:
    """Refuse unknown roles, and a column with two roles.

    Raises:
        InputError: an unknown role, or a column with two roles.
    """
    for role in columns:
        if role not in ROLES:
            raise InputError(
                "not a role of a column", key="--columns", value=role, fix=f"there are {', '.join(ROLES)}"
            )
    for role in ("input", "output"):
        if role not in columns:
            raise InputError(
                "does not say which column it is", key=f"--columns {role}", fix=f"add {role}=NAME"
            )
    for name in columns.values():
        if list(columns.values()).count(name) > 1:
            raise InputError("is given two roles", key="--columns", value=name, fix="give each column one")


def of_columns(table: Columns, columns: Mapping[str, str], reading: Reading) -> RequestTable:
    """Requests from parsed columns; failed requests are left out and counted."""
    failed = table.leave_out(table[columns["output"]] == 0)
    reading.left_out(failed, FAILED)
    if "request_id" in columns:
        ids = table[columns["request_id"]]
        table.refuse(repeated(ids), "the same id as a row before", columns["request_id"], ids)
    reading.has_times = "arrival" in columns
    arrival_ns = table[columns["arrival"]] if reading.has_times else np.zeros(len(table), dtype=np.int64)

    def named(role: str) -> Labels | None:
        return table[columns[role]] if role in columns else None

    requests = RequestTable.build(
        arrival_ns,
        table[columns["input"]],
        table[columns["output"]],
        max_tokens=table[columns["max_tokens"]] if "max_tokens" in columns else None,
        slo_class=named("slo_class"),
        tenant=named("tenant_id"),
        client=named("client_id"),
        model=named("model"),
        prefix_group=named("prefix_group"),
        request_id=table[columns["request_id"]].tolist() if "request_id" in columns else None,
    )
    if SESSION not in columns:
        return requests
    names, turn = table[columns[SESSION]].to_list(), table[columns[TURN]] if TURN in columns else None
    return in_conversations(requests, names, reading, turn=turn)


def _kind(role: str, reading: Reading) -> TraceKind:
    if role == "arrival":
        return moments(reading)
    if role in (*LABELS, SESSION):
        return labels()
    if role == "request_id":
        return texts()
    return integers(0) if role == TURN else counts(least=1 if role == "input" else 0)


def counts(least: int) -> TraceKind:
    """Token counts; also values such as 12.0, which other programs write for columns with gaps."""

    def whole(cell: str) -> int:
        number = float(cell)
        if "_" in cell or not number.is_integer():
            raise ValueError(cell)
        return int(number)

    return TraceKind("i8", whole, "not a whole number", integers(least, MAX_TOKENS).finish)


def moments(reading: Reading) -> TraceKind:
    """Numbers in a unit of time, by default s, or dates with or without a time zone (UTC then), to ns.

    Raises:
        InputError: an unknown unit.
    """
    clock = TraceClock(reading, "s")

    def parse(cell: str) -> str:
        if not _is_number(cell):
            datetime.fromisoformat(cell.strip())
        return cell

    def finish(cells: NDArray[Any]) -> Ints:
        try:
            numbers = cells.astype(np.float64)
        except ValueError:
            if _is_number(cells[0]):
                wrong = np.array([not _is_number(cell) for cell in cells], dtype=np.bool_)
                raise BadCells("not a number, unlike the first row", wrong) from None
            clock.check_dates()
            return _dates_ns(cells)
        return clock.ns(numbers)

    return TraceKind("O", parse, "neither a number nor a date", finish)


def _dates_ns(cells: NDArray[Any]) -> Ints:
    """Dates in ns since 1970, UTC unless they have a time zone, which all of them must or none."""
    try:
        moments = [datetime.fromisoformat(cell.strip()) for cell in cells]
    except ValueError:
        raise BadCells(
            "neither a number nor a date", np.array([not _is_date(cell) for cell in cells])
        ) from None
    zoned = np.array([moment.tzinfo is not None for moment in moments], dtype=np.bool_)
    if zoned.any() and not zoned.all():
        raise BadCells("has a time zone, or none, unlike the first row", zoned != zoned[0], "give it to all")
    whole = [moment.replace(tzinfo=moment.tzinfo or UTC) for moment in moments]
    nanoseconds = [int(moment.timestamp()) * 10**9 + moment.microsecond * 1000 for moment in whole]
    since_1970 = np.array(nanoseconds, dtype=np.int64)
    if since_1970.min(initial=0) < 0:
        raise BadCells("before 1970", since_1970 < 0, "is the clock right?")
    return since_1970


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _is_date(cell: str) -> bool:
    try:
        datetime.fromisoformat(cell.strip())
    except ValueError:
        return False
    return True


def read_burstgpt(path: Path, reading: Reading) -> RequestTable:
    """BurstGPT: seconds, tokens of request and response, answering model."""
    return _read_dialect(path, reading, DIALECTS["burstgpt"])


def read_splitwise(path: Path, reading: Reading) -> RequestTable:
    """splitwise-sim: seconds, sizes of prompt and answer."""
    return _read_dialect(path, reading, DIALECTS["splitwise"])


def _read_dialect(path: Path, reading: Reading, dialect: Dialect) -> RequestTable:
    there = header_of(path)
    more = {role: name for role, name in dialect.optional.items() if name in there}
    if SESSION not in more and (conversation := conversation_in(there)):
        more[SESSION] = conversation
    reading.columns = {**dialect.columns, **more}
    return read(path, reading)
