"""Writer of Azure LLM traces, in the spelling with seconds from the start and named columns."""

from __future__ import annotations

import csv
from pathlib import Path

from blis_py.files.cells import all_harmless
from blis_py.requests.table import RequestTable
from blis_py.traces.azure import LABELS, NAME, RELATIVE
from blis_py.traces.files import ROWS_AT_ONCE, Cells, text_cells, writing


def write(table: RequestTable, path: Path) -> None:
    """Write arrivals in seconds to the nanosecond, lengths, and the label columns in use."""
    columns: dict[str, Cells] = {
        RELATIVE[0]: lambda piece: map(in_seconds, table.arrival_ns[piece].tolist()),
        RELATIVE[1]: lambda piece: table.prompt_tokens[piece].tolist(),
        RELATIVE[2]: lambda piece: table.output_tokens[piece].tolist(),
    }
    names = (table.slo_class, table.tenant, table.client, table.model)
    columns |= {
        name: text_cells(labels) for name, labels in zip(LABELS, names, strict=True) if any(labels.names)
    }
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
