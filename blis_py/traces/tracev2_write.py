"""Writer of TraceV2, with a run's measurements."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from blis_py.errors import InputError
from blis_py.files.cells import all_harmless
from blis_py.outputs.staging import Outputs
from blis_py.requests.table import MODALITIES, Content, Ints, RequestTable
from blis_py.traces.files import ROWS_AT_ONCE, Cells, text_cells, writing
from blis_py.traces.tracev2_header import write_header

if TYPE_CHECKING:
    from blis_py.metrics.record import RunRecord

End = tuple[str, str, str]
"""Outcome of a request: status (`ok`, `timeout`, `error`), error message, finish reason."""

# indexed by `Outcome`
_OUTCOMES: tuple[End, ...] = (
    ("ok", "", ""),
    ("ok", "", "length"),
    ("error", "rejected", ""),
    ("error", "unservable", ""),
    ("timeout", "", ""),
    ("error", "still queued when the run ended", ""),
    ("error", "still running when the run ended", ""),
    ("error", "evicted", ""),
)


@dataclass(frozen=True, slots=True)
class MeasuredColumns:
    """Observations of each request; times in ns, negative without tokens."""

    first_token_ns: Ints
    last_token_ns: Ints
    chunks: Ints
    """Number of times that tokens, or blocks of them, came."""
    ends: Sequence[End]
    server_input_tokens: Ints | None = None
    """Prompt tokens as the server counts them; 0 = unknown."""


def write(
    table: RequestTable,
    header_path: str | Path,
    csv_path: str | Path,
    *,
    record: RunRecord | MeasuredColumns | None = None,
    mode: str = "generated",
    seed: int | None = None,
    workload: str | None = None,
    server: Mapping[str, Any] | None = None,
    header: Mapping[str, Any] | None = None,
) -> None:
    """Write the two files of a TraceV2; the CSV is gzip if its name ends in .gz.

    Args:
        record: a run of this table, whose token times and outcomes are written too.
        mode: `generated`, `replayed` or `real`.
        seed, workload, server, header: provenance for the header (see `tracev2_header.write_header`).

    Raises:
        InputError: a table that TraceV2 cannot represent: a prefix without a group, a group with prefixes of
        different lengths, a name with a carriage return.
    """
    header_path, csv_path = Path(header_path), Path(csv_path)
    _check_names(table, csv_path)
    _check_prefixes(table, csv_path)
    measured = record if record is None or isinstance(record, MeasuredColumns) else _of_run(record)
    columns = _standard(table, measured) | _ours(table)
    with Outputs() as outputs:
        own = outputs.file(header_path)
        write_header(own, mode=mode, seed=seed, workload=workload, server=server, more=header)
        with writing(outputs.file(csv_path)) as text:
            rows = csv.writer(text, lineterminator="\n")
            rows.writerow(columns)
            for start in range(0, len(table), ROWS_AT_ONCE):
                piece = slice(start, min(start + ROWS_AT_ONCE, len(table)))
                rows.writerows(zip(*(cells(piece) for cells in columns.values()), strict=False))


def _check_names(table: RequestTable, path: Path) -> None:
    of_columns = [table.client, table.tenant, table.slo_class, table.prefix_group, table.model]
    of_columns += [] if table.extra_key is None else [table.extra_key]
    for names in (*(column.names for column in of_columns), table.session_names or ()):
        for name in names:
            if "\r" in name:
                raise InputError("a name with a carriage return cannot be written", file=path, value=name)


def _check_prefixes(table: RequestTable, path: Path) -> None:
    if not table.prefix_tokens.any():
        return
    pairs = np.unique(table.prefix_group.codes.astype(np.int64) << 32 | table.prefix_tokens)
    lengths: dict[str, list[int]] = {}
    for code, tokens in zip((pairs >> 32).tolist(), (pairs & (1 << 32) - 1).tolist(), strict=True):
        lengths.setdefault(table.prefix_group.names[code], []).append(tokens)
    for group, tokens in lengths.items():
        if not group and any(tokens):
            raise InputError("a shared prefix without a prefix group cannot be written", file=path)
        if len(tokens) > 1:
            raise InputError(
                "a prefix group with prefixes of different lengths cannot be written",
                file=path,
                key=f"prefix_group {group!r}",
                value=tokens,
            )


def _of_run(record: RunRecord) -> MeasuredColumns:
    ends = [_OUTCOMES[code] for code in record.outcome.tolist()]
    return MeasuredColumns(record.first_token_ns, record.last_token_ns, record.outputs, ends)


def _standard(table: RequestTable, measured: MeasuredColumns | None) -> dict[str, Cells]:
    ids, own_names = _numbered(table)
    arrival_us = _numbers(table.arrival_ns // 1000)
    columns: dict[str, Cells] = {
        "request_id": _numbers(ids),
        "client_id": text_cells(table.client),
        "tenant_id": text_cells(table.tenant),
        "slo_class": text_cells(table.slo_class),
        "session_id": lambda piece: all_harmless(table.session_ids(piece)),
        "round_index": _always(0) if table.round_index is None else _numbers(table.round_index),
        "prefix_group": text_cells(table.prefix_group),
        "prefix_length": _numbers(table.prefix_tokens),
        "streaming": lambda piece: _truths(table.streaming[piece]),
        "input_tokens": _numbers(table.prompt_tokens - table.prefix_tokens),
        "output_tokens": _numbers(_output_cells(table)),
        **{f"{name}_tokens": _of_modality(table, column) for column, name in enumerate(MODALITIES)},
        "reason_ratio": _always(0),
        "model": text_cells(table.model),
        "deadline_us": _numbers(np.where(table.deadline_ns < 0, 0, table.deadline_ns // 1000)),
    }
    if np.any(table.slo_target_ns > 0):
        columns["slo_target_us"] = _numbers(table.slo_target_ns // 1000)
    counted = None if measured is None else measured.server_input_tokens
    by_server = _always(0) if counted is None else _numbers(counted)
    columns |= {"server_input_tokens": by_server, "arrival_time_us": arrival_us, "send_time_us": arrival_us}
    columns |= _measured(measured)
    if own_names:
        columns["x_request_id"] = lambda piece: all_harmless(table.ids(piece))
    if table.think_ns is not None:
        columns["think_time_us"] = _numbers(np.maximum(table.think_ns, 0) // 1000)
    return columns


def _of_modality(table: RequestTable, column: int) -> Cells:
    tokens = table.modality_tokens
    return _always(0) if tokens is None else _numbers(tokens[:, column])


def _measured(measured: MeasuredColumns | None) -> dict[str, Cells]:
    if measured is None:
        first = last = chunks = _always(0)
        status, message, finish = _always("ok"), _always(""), _always("")
    else:
        ends = measured.ends
        first = _numbers(np.maximum(measured.first_token_ns // 1000, 0))
        last = _numbers(np.maximum(measured.last_token_ns // 1000, 0))
        chunks = _numbers(measured.chunks)

        def texts(place: int) -> Cells:
            return lambda piece: all_harmless([end[place] for end in ends[piece]])

        status, message, finish = texts(0), texts(1), texts(2)
    return {
        "first_chunk_time_us": first,
        "last_chunk_time_us": last,
        "num_chunks": chunks,
        "status": status,
        "error_message": message,
        "finish_reason": finish,
    }


def _ours(table: RequestTable) -> dict[str, Cells]:
    """Our own columns, each only if a standard one cannot represent the table."""
    columns: dict[str, Cells] = {}
    if np.any((table.max_tokens != table.output_tokens) & ~_failed(table)):
        columns["max_tokens"] = _numbers(table.max_tokens)
    if np.any(table.arrival_ns % 1000):
        columns["arrival_time_ns"] = _numbers(table.arrival_ns)
    if np.any((table.deadline_ns >= 0) & ((table.deadline_ns % 1000 > 0) | (table.deadline_ns == 0))):
        columns["deadline_ns"] = _numbers(table.deadline_ns)
    if np.any(table.slo_target_ns % 1000):
        columns["slo_target_ns"] = _numbers(table.slo_target_ns)
    network_ns = table.network_ns
    if network_ns is not None:
        columns["network_rtt_ns"] = lambda piece: network_ns[piece, 0].tolist()
        columns["network_token_ns"] = lambda piece: network_ns[piece, 1].tolist()
    constrained = table.constrained
    if constrained is not None and constrained.any():
        columns["constrained"] = lambda piece: _truths(constrained[piece])
    if table.extra_key is not None:
        columns["extra_key"] = text_cells(table.extra_key)
    own = _own_contents(table)
    if any(own):
        columns["content"] = lambda piece: own[piece]
    return columns


def _truths(values: NDArray[np.bool_]) -> list[str]:
    return ["true" if value else "false" for value in values.tolist()]


def _failed(table: RequestTable) -> Any:
    """Mask of rows read from an output length of 0: one token, no budget."""
    return (table.max_tokens == 0) & (table.output_tokens == 1)


def _output_cells(table: RequestTable) -> Ints:
    return np.where(_failed(table), 0, table.output_tokens)


def _own_contents(table: RequestTable) -> list[str]:
    """Shared runs per row as JSON, empty if equal to the prefix of the row's group."""
    if len(table.contents) == 0 and not np.any(table.prefix_tokens):
        return []
    encoded = [json.dumps(runs, separators=(",", ":")) for runs in table.contents]
    expected: dict[tuple[int, int], Content] = {}
    cells = []
    for code, tokens, index in zip(
        table.prefix_group.codes.tolist(), table.prefix_tokens.tolist(), table.content.tolist(), strict=True
    ):
        key = (code, tokens)
        if key not in expected:
            expected[key] = ((table.prefix_group.names[code], tokens),) if tokens else ()
        runs = table.contents[index] if index >= 0 else ()
        cells.append("" if runs == expected[key] else (encoded[index] if runs else "[]"))
    return cells


def request_numbers(table: RequestTable) -> Ints:
    """The `request_id` of each row in a TraceV2."""
    return _numbered(table)[0]


def _numbered(table: RequestTable) -> tuple[Ints, bool]:
    """Request numbers, and whether any name differs from `request_<number>`."""
    rows = np.arange(len(table), dtype=np.int64)
    if table.request_id is None:
        return rows, False
    numbers = [name.removeprefix("request_") for name in table.request_id]
    plain = all(
        number.isdecimal() and name == f"request_{int(number)}" and int(number) < 2**62
        for name, number in zip(table.request_id, numbers, strict=True)
    )
    return (np.array([int(number) for number in numbers], dtype=np.int64), False) if plain else (rows, True)


def _numbers(column: Ints) -> Cells:
    return lambda piece: column[piece].tolist()


def _always(value: Any) -> Cells:
    return lambda piece: repeat(value)
