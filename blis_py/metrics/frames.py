"""One row per request, or per run of identical steps: as data frames and as CSV files."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from blis_py.errors import InputError
from blis_py.files.cells import all_harmless
from blis_py.files.packages import data_frame, extra
from blis_py.metrics import csv_bytes
from blis_py.metrics._columns import Column, Times, whole_ns
from blis_py.metrics._network import client_latencies_ns
from blis_py.metrics.groups import slo_classes, tenants
from blis_py.metrics.kinds import kind_of
from blis_py.metrics.latencies import latencies
from blis_py.metrics.record import Outcome, RunRecord
from blis_py.metrics.registry import METRICS, Floats, Metric
from blis_py.metrics.visits import Onward, Role, Visits
from blis_py.requests.table import Ints, Labels

if TYPE_CHECKING:
    import pandas as pd

_OUTCOMES = tuple(outcome.name.lower() for outcome in Outcome)
_ONWARD = tuple(end.name.lower() for end in Onward)
_ROLES = tuple(role.name.lower() for role in Role)
_ROWS_AT_ONCE = 50_000


BinaryFile = BinaryIO | gzip.GzipFile


def request_columns(record: RunRecord) -> dict[str, Column]:
    """The columns of the requests table, in order; `instance` is -1 for requests never dispatched."""
    table, times = record.table, latencies(record)
    return {
        "request_id": table.ids(),
        "client": table.client,
        "tenant": tenants(record),
        "slo_class": slo_classes(record),
        "model": table.model,
        "instance": record.instance,
        "outcome": Labels(record.outcome.astype(np.int32), _OUTCOMES),
        "arrival_s": Times(table.arrival_ns, 9),
        "finish_s": Times(record.finish_ns, 9),
        "prompt_tokens": table.prompt_tokens,
        "output_tokens": record.emitted_tokens,
        "cached_tokens": record.cached_tokens,
        "preemptions": record.preemptions,
        **{each.column_key: _decimals(each, times.column(each.name)) for each in METRICS.values()},
        **{f"{name}_ms": Times(whole_ns(ns), 6) for name, ns in client_latencies_ns(record, times).items()},
        **_admission_columns(record),
        **_session_columns(record),
        **_closed_loop_columns(record),
        **_columns_of_kind(record),
    }


def _decimals(metric: Metric, values: Floats) -> Column:
    """The values with six decimals of the unit, which of a time is to the nanosecond."""
    return Times(whole_ns(values * (1e6 / metric.unit.scale)), 6)


def _admission_columns(record: RunRecord) -> dict[str, Column]:
    """Reasons of rejections and evictions, if there are any, and the time of each request at the gateway."""
    reasons = {} if record.rejection is None else {"rejected_because": record.rejection}
    if record.gateway_ns is None:
        return {**reasons}
    return {**reasons, "gateway_queue_ms": Times(record.gateway_ns, 6)}


def _session_columns(record: RunRecord) -> dict[str, Column]:
    """The session of each request, and its position there."""
    table = record.table
    if table.session is None:
        return {}
    rounds = {} if table.round_index is None else {"round_index": table.round_index}
    return {"session_id": table.session_ids(), **rounds}


def _closed_loop_columns(record: RunRecord) -> dict[str, Column]:
    """Time each request waited at its client for others to end; undefined for open loops."""
    due_ns = record.table.due_ns
    if due_ns is None:
        return {}
    return {"client_wait_ms": Times(np.where(due_ns < 0, -1, record.table.arrival_ns - due_ns), 6)}


def _columns_of_kind(record: RunRecord) -> dict[str, Column]:
    """Columns that the kind of requests adds."""
    kind = kind_of(record)
    return {} if kind is None else kind.columns(record)


def requests_frame(record: RunRecord) -> pd.DataFrame:
    """One row per request, in order of arrival.

    Times are absolute seconds (`_s`), latencies ms (`_ms`, to the nanosecond), NaN if not reached; `instance`
    is <NA> if the request was never dispatched; labels are categories.
    """
    frame = data_frame({name: _pandas(column) for name, column in request_columns(record).items()})
    frame["instance"] = frame["instance"].astype("Int32").mask(frame["instance"] < 0)
    return frame


def visit_columns(record: RunRecord) -> dict[str, Any]:
    """The columns of the visits table: all visits to an instance, request by request, in order."""
    visits = record.visits
    order, _ = visits.of(np.arange(len(record.table)))
    order = order[visits.instance[order] >= 0]
    ids = record.table.ids()
    times = ("enqueue", "scheduled", "first_token", "last_token", "finish")
    return {
        "request_id": [ids[row] for row in visits.request[order].tolist()],
        "instance": visits.instance[order],
        "role": Labels(visits.role[order].astype(np.int32), _ROLES),
        "outcome": Labels(_visit_ends(visits.outcome[order]), (*_OUTCOMES, *_ONWARD)),
        **{f"{name}_s": Times(_at_instance(visits, f"{name}_ns")[order], 9) for name in times},
        "output_tokens": visits.emitted_tokens[order],
        "cached_tokens": visits.cached_tokens[order],
        "preemptions": visits.preemptions[order],
    }


def _at_instance(visits: Visits, name: str) -> Ints:
    """Times of visits at their instance: the client may see the tokens of one that goes on later."""
    times_ns: Ints = getattr(visits, name)
    onward = (visits.outcome >= Onward.HANDED_OVER) & (times_ns >= 0)
    return np.where(onward, np.minimum(times_ns, visits.finish_ns), times_ns)


def _visit_ends(outcome: NDArray[np.int8]) -> NDArray[np.int32]:
    """Codes among the outcomes of requests, followed by those of visits whose request continues elsewhere."""
    goes_on = outcome >= Onward.HANDED_OVER
    return np.where(goes_on, outcome - Onward.HANDED_OVER + len(_OUTCOMES), outcome).astype(np.int32)


def visits_frame(record: RunRecord) -> pd.DataFrame:
    """One row per visit of a request to an instance; times are absolute seconds, NaN where not reached."""
    return data_frame({name: _pandas(column) for name, column in visit_columns(record).items()})


def write_requests_csv(record: RunRecord, path: str | Path) -> None:
    """`requests_frame` as CSV (gzip if the path ends in .gz); empty fields where undefined."""
    _write_csv(request_columns(record), len(record.table), Path(path))


def write_visits_csv(record: RunRecord, path: str | Path) -> None:
    """`visits_frame` as CSV (gzip if the path ends in .gz); empty fields where undefined."""
    columns = visit_columns(record)
    _write_csv(columns, len(columns["instance"]), Path(path))


def step_columns(record: RunRecord) -> dict[str, NDArray[Any]]:
    """The compact steps table of all instances, `instance` first, in time order within each.

    Raises:
        InputError: the run did not record its steps.
    """
    parts = list(_step_parts(record))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _step_parts(record: RunRecord) -> Iterator[dict[str, NDArray[Any]]]:
    """The same in parts of some thousand rows."""
    recorded = [(index, run.runs) for index, run in enumerate(record.instances) if run.runs is not None]
    if not recorded:
        raise InputError(
            "this run did not record its steps", key="record_steps", fix="run it with record_steps=True"
        )
    for index, runs in recorded:
        for part in runs.parts():
            yield {"instance": np.full(len(part["start_ns"]), index), **part}


def steps_frame(record: RunRecord) -> pd.DataFrame:
    """One row per run of identical steps (`InstanceRecord.runs`), with its instance."""
    return data_frame(step_columns(record))


def write_steps_csv(record: RunRecord, path: str | Path) -> None:
    """`steps_frame` as CSV (gzip if the path ends in .gz)."""
    with _binary_file(Path(path)) as file:
        for number, part in enumerate(_step_parts(record)):
            if not number:
                file.write(csv_bytes.header(part))
            _write_rows(file, part, len(part["instance"]))


def _pandas(column: Column) -> Any:
    with extra("frames", "a data frame"):
        import pandas as pd

    if isinstance(column, Labels):
        return pd.Categorical.from_codes(column.codes, categories=pd.Index(column.names))
    return column.to_floats() if isinstance(column, Times) else column


def _write_csv(columns: Mapping[str, Column], rows: int, path: Path) -> None:
    with _binary_file(path) as file:
        file.write(csv_bytes.header(columns))
        _write_rows(file, columns, rows)


def _write_rows(file: BinaryFile, columns: Mapping[str, Column], rows: int) -> None:
    for start in range(0, rows, _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        file.write(csv_bytes.lines([_characters(column, part) for column in columns.values()]))


def _characters(column: Column, part: slice) -> csv_bytes.Characters:
    if isinstance(column, Times):
        return csv_bytes.fixed_point(column.ns[part], column.decimals)
    if isinstance(column, Labels):
        return csv_bytes.labels(Labels(column.codes[part], tuple(all_harmless(column.names))))
    if isinstance(column, np.ndarray):
        return csv_bytes.numbers(column[part])
    return csv_bytes.texts(all_harmless(column[part]))


@contextmanager
def _binary_file(path: Path) -> Iterator[BinaryFile]:
    """A file to write to, moved into place when it is complete.

    The gzip header contains no timestamp, so that equal contents give equal bytes.
    """
    from blis_py.outputs.staging import replacing

    with replacing(path) as file, file.open("wb") as raw:
        if path.suffix != ".gz":
            yield raw
            return
        with gzip.GzipFile("", "wb", fileobj=raw, mtime=0, compresslevel=6) as packed:
            yield packed
