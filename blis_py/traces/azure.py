"""Azure LLM inference traces (2023 to 2025): one request per row, arrival and two lengths.

Two spellings are read: the public files' `TIMESTAMP,ContextTokens,GeneratedTokens` (wall-clock times, with
or without a UTC offset; with `NumImages` in the multimodal trace), and `arrival_s,input_tokens,output_tokens`
(seconds from the start). Either may have further columns that say whose a request is: `LABELS`. A client's
log has the second spelling, `prompt_id` (or `prompt_slot`) where rows of the same number sent the same
prompt, and latencies, which have no effect. Any other column is refused.
Source: github.com/Azure/AzurePublicDataset, CC-BY-4.0 (Patel et al., Splitwise, ISCA 2024).
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from blis_py.core.bounds import LAST_NS, MAX_TOKENS
from blis_py.files.csv_files import header_of
from blis_py.requests.same_prompts import same_prompts
from blis_py.requests.table import Ints, RequestTable
from blis_py.traces._gathered import FAILED
from blis_py.traces._units import TraceClock
from blis_py.traces.columns import read_columns
from blis_py.traces.kinds import BadCells, TraceKind, integers, labels, repeated, texts
from blis_py.traces.reading import Reading

RELATIVE = ("arrival_s", "input_tokens", "output_tokens")
WALL_CLOCK = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
LABELS = ("slo_class", "tenant_id", "client_id", "model")
NAME = "request_id"
IMAGES = "NumImages"
SAME = ("prompt_id", "prompt_slot")
MEASURED = ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms", "ttft_s", "tpot_s", "itl_s", "e2e_s", "instance")
"""Columns of a client's log that are no property of a request."""
_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d{1,9})?)(Z|[+-]\d\d:?\d\d)?", re.ASCII)
_YEARS = (1970, 2200)
"""Years within 64-bit nanoseconds since 1970, with a margin."""


def read(path: Path, reading: Reading) -> RequestTable:
    """The requests of the trace, in the order of the file; wall-clock times count from the earliest.

    A replaying client asks for exactly the recorded output, so `max_tokens` is `output_tokens`. Requests
    without output failed when they were recorded; they are left out and counted.

    Raises:
        InputError: with file, line, column and value.
    """
    with_clock = WALL_CLOCK[0] in header_of(path)
    when, prompt, output = WALL_CLOCK if with_clock else RELATIVE
    columns = read_columns(
        path,
        _kinds(with_clock, reading),
        optional=(NAME, *LABELS, *((IMAGES,) if with_clock else SAME)),
        ignored=() if with_clock else MEASURED,
        bad_rows=reading.bad,
    )
    reading.left_out(columns.leave_out(columns[output] == 0), FAILED)
    if with_clock:
        since_ns = columns[when] - columns[when].min()
        columns.refuse(
            since_ns > LAST_NS, "is more than a century after the first", when, _dates(columns[when])
        )
    if NAME in columns:
        columns.refuse(repeated(columns[NAME]), "the same id as a row before", NAME)
    reading.requests_models = True
    if with_images := int((columns.ints(IMAGES) > 0).sum()):
        have = "request has images: only its" if with_images == 1 else "requests have images: only their"
        reading.note(f"{with_images:,} {have} tokens count, no encoder is simulated")
    arrival_ns = columns[when]
    same = next((columns[name] for name in SAME if name in columns), None)
    content, contents = (None, ()) if same is None else same_prompts(same, columns[prompt])
    return RequestTable.build(
        arrival_ns - arrival_ns.min() if with_clock else arrival_ns,
        columns[prompt],
        columns[output],
        slo_class=columns.labels("slo_class"),
        tenant=columns.labels("tenant_id"),
        client=columns.labels("client_id"),
        model=columns.labels("model"),
        content=content,
        contents=contents,
        request_id=None if (names := columns.get(NAME)) is None else names.tolist(),
    )


def _kinds(with_clock: bool, reading: Reading) -> dict[str, TraceKind]:
    """Kinds of the columns, by name."""
    when, prompt, output = WALL_CLOCK if with_clock else RELATIVE
    return {
        when: TraceKind("O", str, "not text", _Timestamps()) if with_clock else _seconds(reading),
        prompt: integers(1, MAX_TOKENS),
        output: integers(0, MAX_TOKENS),
        NAME: texts(),
        **{name: labels() for name in LABELS},
        **{name: integers() for name in ((IMAGES,) if with_clock else SAME)},
    }


def _seconds(reading: Reading) -> TraceKind:
    """Numbers of seconds, or of the unit given."""
    return TraceKind("f8", float, "not a number of seconds", TraceClock(reading, "s").ns)


class _Timestamps:
    """Conversion to ns since 1970, in UTC; either all rows have a UTC offset or none has."""

    def __init__(self) -> None:
        self._zoned: bool | None = None

    def __call__(self, cells: NDArray[np.object_]) -> Ints:
        matches = [_TIMESTAMP.fullmatch(cell.strip()) for cell in cells]
        _refuse([match is None for match in matches], "not a timestamp", "write 2023-11-16 18:15:46.6805900")
        offsets = [match[2] for match in matches if match is not None]
        if self._zoned is None:
            self._zoned = offsets[0] is not None
        problem = "has a UTC offset, unlike the rows before" if not self._zoned else "has no UTC offset"
        _refuse([(offset is not None) != self._zoned for offset in offsets], problem, "give it to all rows")
        bare = [match[1] for match in matches if match is not None]
        first, last = _YEARS
        years = [int(cell[:4]) for cell in bare]
        problem = f"not a date from {first} to {last}"
        _refuse([not first <= year <= last for year in years], problem, "is the clock right?")
        try:
            local_ns = np.array(bare, dtype="datetime64[ns]").astype(np.int64)
        except ValueError:
            raise BadCells(
                "not a date that exists", np.array([not _is_date(cell) for cell in bare])
            ) from None
        return local_ns - np.array([_offset_ns(offset) for offset in offsets], dtype=np.int64)


def _offset_ns(offset: str | None) -> int:
    """A UTC offset such as +05:30 in ns; zero for Z and for none."""
    if offset is None or offset == "Z":
        return 0
    minutes = int(offset[1:3]) * 60 + int(offset[-2:])
    return (-minutes if offset[0] == "-" else minutes) * 60 * 10**9


def _refuse(bad: list[bool], problem: str, fix: str | None = None) -> None:
    if any(bad):
        raise BadCells(problem, np.array(bad, dtype=np.bool_), fix)


def _dates(since_1970_ns: Ints) -> NDArray[np.str_]:
    return np.datetime_as_string(since_1970_ns.astype("datetime64[ns]"), unit="s")


def _is_date(cell: str) -> bool:
    try:
        np.datetime64(cell)
    except ValueError:
        return False
    return True
