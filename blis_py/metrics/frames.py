"""One row per request, one row per run of alike steps: as data frames and as CSV files."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np
from numpy.typing import NDArray

from blis_py.errors import InputError
from blis_py.metrics.groups import slo_classes, tenants
from blis_py.metrics.latencies import PER_REQUEST, latencies
from blis_py.metrics.record import Outcome, RunRecord
from blis_py.workload.table import Ints, Labels

if TYPE_CHECKING:
    import pandas as pd

_OUTCOMES = tuple(outcome.name.lower() for outcome in Outcome)
_ROWS_AT_ONCE = 50_000


@dataclass(frozen=True, slots=True)
class Times:
    """A column of times in ns, -1 where undefined, shown in a decimal unit without losing a nanosecond."""

    ns: Ints
    decimals: int
    """9 for seconds, 6 for ms."""

    def to_floats(self) -> NDArray[np.float64]:
        return np.where(self.ns >= 0, self.ns / 10**self.decimals, np.nan)

    def to_texts(self) -> list[str]:
        """Plain decimals, empty where undefined. Several times faster than printing floats."""
        whole, rest = np.divmod(self.ns, 10**self.decimals)
        width = self.decimals
        texts = [f"{a}.{b:0{width}d}" for a, b in zip(whole.tolist(), rest.tolist(), strict=True)]
        for row in np.flatnonzero(self.ns < 0).tolist():
            texts[row] = ""
        return texts


Column = Times | Labels | NDArray[Any] | Sequence[str]


def request_columns(record: RunRecord) -> dict[str, Column]:
    """The columns of the requests table, in order; `instance` is -1 for requests never dispatched."""
    table, times = record.table, latencies(record)
    return {
        "request_id": table.request_id or [table.id_of(row) for row in range(len(table))],
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
        **{f"{name}_ms": Times(_whole_ns(times.column(name)), 6) for name in PER_REQUEST},
    }


def requests_frame(record: RunRecord) -> pd.DataFrame:
    """One row per request, in order of arrival.

    Times are absolute seconds (`_s`), latencies ms (`_ms`, to the nanosecond), NaN where a request never
    got that far; `instance` is <NA> where it was never dispatched; labels are categories.
    """
    import pandas as pd

    frame = pd.DataFrame({name: _pandas(column) for name, column in request_columns(record).items()})
    frame["instance"] = frame["instance"].astype("Int32").mask(frame["instance"] < 0)
    return frame


def write_requests_csv(record: RunRecord, path: str | Path) -> None:
    """`requests_frame` as CSV (gzip if the path ends in .gz); empty fields where undefined."""
    columns = request_columns(record)
    with _text_file(Path(path)) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for start in range(0, len(record.table), _ROWS_AT_ONCE):
            part = slice(start, start + _ROWS_AT_ONCE)
            writer.writerows(zip(*(_fields(name, c, part) for name, c in columns.items()), strict=True))


def step_columns(record: RunRecord) -> dict[str, NDArray[Any]]:
    """The compact steps table of all instances, `instance` first, in time order within each.

    Raises:
        InputError: the run did not record its steps.
    """
    recorded = [(index, run.runs) for index, run in enumerate(record.instances) if run.runs is not None]
    if not recorded:
        raise InputError(
            "this run did not record its steps", key="record_steps", fix="run it with record_steps=True"
        )
    names = list(recorded[0][1])
    rows = [len(runs[names[0]]) for _, runs in recorded]
    return {
        "instance": np.repeat([index for index, _ in recorded], rows),
        **{name: np.concatenate([runs[name] for _, runs in recorded]) for name in names},
    }


def steps_frame(record: RunRecord) -> pd.DataFrame:
    """One row per run of alike steps (`InstanceRecord.runs`), with the instance it ran on."""
    import pandas as pd

    return pd.DataFrame(step_columns(record))


def write_steps_csv(record: RunRecord, path: str | Path) -> None:
    """`steps_frame` as CSV (gzip if the path ends in .gz)."""
    columns = step_columns(record)
    with _text_file(Path(path)) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for start in range(0, len(columns["instance"]), _ROWS_AT_ONCE):
            part = slice(start, start + _ROWS_AT_ONCE)
            writer.writerows(zip(*(c[part].tolist() for c in columns.values()), strict=True))


def _whole_ns(column: NDArray[np.float64]) -> Ints:
    return np.where(np.isnan(column), -1, np.rint(column)).astype(np.int64)


def _pandas(column: Column) -> Any:
    import pandas as pd

    if isinstance(column, Labels):
        return pd.Categorical.from_codes(column.codes, categories=pd.Index(column.names))
    return column.to_floats() if isinstance(column, Times) else column


def _fields(name: str, column: Column, part: slice) -> Sequence[Any]:
    """A piece of a column as CSV fields."""
    if isinstance(column, Times):
        return Times(column.ns[part], column.decimals).to_texts()
    if isinstance(column, Labels):
        return column.take(part).to_list()
    if not isinstance(column, np.ndarray):
        return column[part]
    values: list[Any] = column[part].tolist()
    return values if name != "instance" else ["" if value < 0 else value for value in values]


@contextmanager
def _text_file(path: Path) -> Iterator[TextIO]:
    """A file to write text to, the same bytes every time (a gzip header normally carries the hour)."""
    if path.suffix != ".gz":
        with path.open("w", encoding="utf-8", newline="") as file:
            yield file
        return
    with (
        path.open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=0, compresslevel=6) as packed,
        io.TextIOWrapper(packed, encoding="utf-8", newline="") as file,
    ):
        yield file
