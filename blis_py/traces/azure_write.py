"""Writer of Azure LLM traces, in the spelling with seconds from the start and named columns."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from blis_py.files.cells import all_harmless
from blis_py.requests.table import Labels, RequestTable
from blis_py.traces.azure import LABELS, NAME, RELATIVE
from blis_py.traces.files import ROWS_AT_ONCE, writing

Cells = Callable[[slice], Iterable[Any]]


def write(table: RequestTable, path: Path) -> None:
    """Write arrivals in seconds to the nanosecond, lengths, and the label columns in use."""
    columns: dict[str, Cells] = {
        RELATIVE[0]: lambda piece: map(in_seconds, table.arrival_ns[piece].tolist()),
        RELATIVE[1]: lambda piece: table.prompt_tokens[piece].tolist(),
        RELATIVE[2]: lambda piece: table.output_tokens[piece].tolist(),
    }
    names = (table.slo_class, table.tenant, table.client, table.model)
    columns |= {name: _texts(labels) for name, labels in zip(LABELS, names, strict=True) if any(labels.names)}
    if table.request_id is not None:
        columns[NAME] = lambda piece: all_harmless(table.ids(piece))
    with writing(path) as text:
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(columns)
        for start in range(0, len(table), ROWS_AT_ONCE):
            piece = slice(start, min(start + ROWS_AT_ONCE, len(table)))
            rows.writerows(zip(*(cells(piece) for cells in columns.values()), strict=True))


def in_seconds(time_ns: int) -> str:
    """Seconds with all significant digits, and no trailing zeros."""
    whole, fraction = divmod(time_ns, 10**9)
    return f"{whole}.{fraction:09d}".rstrip("0").rstrip(".")


def _texts(labels: Labels) -> Cells:
    written = Labels(labels.codes, tuple(all_harmless(labels.names)))
    return lambda piece: written.take(piece).to_list()
