"""Azure LLM inference traces (2023 and 2024): one request per row, arrival and two lengths.

Two spellings are read: the public files' `TIMESTAMP,ContextTokens,GeneratedTokens` (wall-clock times, with
or without a UTC offset), and `arrival_s,input_tokens,output_tokens` (seconds from the start).
Source: github.com/Azure/AzurePublicDataset, CC-BY-4.0 (Patel et al., Splitwise, ISCA 2024).
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from blis_py.errors import InputError
from blis_py.traces.files import SECONDS, BadCell, Kind, csv_header, integers, read_columns
from blis_py.workload.lengths import MOST_TOKENS
from blis_py.workload.table import Ints, RequestTable

RELATIVE = ("arrival_s", "input_tokens", "output_tokens")
WALL_CLOCK = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d{1,9})?)(Z|[+-]\d\d:?\d\d)?")


def recognises(first_line: str) -> bool:
    names = {name.strip() for name in first_line.split(",")}
    return names >= set(RELATIVE) or names >= set(WALL_CLOCK)


def read(path: Path, header: Path | None = None) -> RequestTable:
    """The requests of the trace, in the order of the file; wall-clock times count from the earliest.

    A replaying client asks for exactly the recorded output, so `max_tokens` is `output_tokens`.

    Raises:
        InputError: with file, line, column and value.
    """
    if header is not None:
        raise InputError("an Azure trace has no header file", file=header, fix="leave it out")
    with_clock = WALL_CLOCK[0] in csv_header(path)
    when, prompt, output = WALL_CLOCK if with_clock else RELATIVE
    clock = Kind("O", str, "not text", _Timestamps()) if with_clock else SECONDS
    tokens = integers(1, MOST_TOKENS)
    columns = read_columns(path, {when: clock, prompt: tokens, output: tokens})
    arrival_ns = np.concatenate(columns[when])
    if with_clock:
        arrival_ns = arrival_ns - arrival_ns.min()
    return RequestTable.build(arrival_ns, np.concatenate(columns[prompt]), np.concatenate(columns[output]))


class _Timestamps:
    """Conversion to ns since 1970; every row must have the UTC offset of the first."""

    def __init__(self) -> None:
        self.offset: str | None = None

    def __call__(self, cells: NDArray[np.object_]) -> Ints:
        bare: list[str] = []
        for index, cell in enumerate(cells):
            match = _TIMESTAMP.fullmatch(cell.strip())
            if match is None:
                raise BadCell("not a timestamp", index, "write 2023-11-16 18:15:46.6805900")
            offset = match[2] or ""
            if self.offset is None:
                self.offset = offset
            if offset != self.offset:
                raise BadCell("another UTC offset than the rows before", index, "use one offset")
            bare.append(match[1])
        try:
            return np.array(bare, dtype="datetime64[ns]").astype(np.int64)
        except ValueError:
            index = next(at for at, cell in enumerate(bare) if not _is_date(cell))
            raise BadCell("not a date that exists", index) from None


def _is_date(cell: str) -> bool:
    try:
        np.datetime64(cell)
    except ValueError:
        return False
    return True
