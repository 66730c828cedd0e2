"""Measured steps: composition and times of each; the data to which step-time models are fitted.

`samples.csv.gz` has one row per step; the metadata is JSON in a first line that begins with `#`.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from blis_py.core.features import FEATURE_NAMES, SELDOM, further_names, is_whole
from blis_py.core.kinds import KIND_FEATURES
from blis_py.errors import InputError
from blis_py.files.cells import all_harmless, meant
from blis_py.files.csv_files import check_header, csv_rows, stripped
from blis_py.files.json_files import parse_json
from blis_py.files.opening import reading
from blis_py.traces.files import writing
from blis_py.traces.steplog import StepLog
from blis_py.traces.steplog_columns import SEGMENTS

SCHEMA = 1
"""Incremented when a column changes its meaning or is removed, but not for new columns."""
_MARK = "# blis-py samples "

KIND_NAMES = tuple(KIND_FEATURES)
"""Features that only steps of some kinds of requests have; 0 for others."""
TIMES = ("gpu_ns", "host_ns", "total_ns", *SEGMENTS)
TEXTS = ("source", "regime")
_LARGEST = 2**62
COLUMNS = (
    "source",  # which part of a profile: decode, prefill, served, queued, sentinel, …; or the name of a run
    "shape",  # the same number: repetitions of one composition; in a run every step has its own
    "repetition",  # which one, from 0
    "regime",  # graph or eager
    "bucket",  # padded batch of a graph, else 0
    "active_experts",  # summed over sparse layers; -1 = not known
    *FEATURE_NAMES,
    *KIND_NAMES,
    *TIMES,
    "launch_bound",  # 1: the GPU waited for the host, so gpu_ns is what launching took
    "launching_ns",  # host time from first to last launch, beside the GPU's work; 0 = not known
    "sm_mhz",  # clock of the GPU's multiprocessors behind the step, 0 = not known
    "power_w",  # what the GPU draws then
    "mask_ns",  # host time for masks of constrained rows; in no other time
    *SELDOM,
)
"""Columns of all samples, followed by the further features."""
_LATER = ("launch_bound", "launching_ns", "sm_mhz", "power_w", "mask_ns", "begins_batch", *SELDOM)
"""Columns that samples of earlier engines may lack; 0 there, as with further features."""

Column = NDArray[Any]


def column_names() -> tuple[str, ...]:
    """`COLUMNS` and further features, in file order."""
    return (*COLUMNS, *further_names())


@dataclass(frozen=True, slots=True)
class StepSamples:
    """Measured steps, one per row.

    `table` has every name of `column_names()`: arrays of equal length, int64 but for `source` and `regime`
    (text) and features that are no whole numbers (float64). Of the times, `total_ns` is what a synchronous
    loop pays for the step, up to the beginning of the next one; `gpu_ns` is the forward and sampling,
    `host_ns` the rest. Where `launching_ns` is known, `total_ns` is the longer of it and `gpu_ns`, and the
    host's work before and behind; of steps that overlap it is made up of these. What masks of constrained
    rows added to a step is taken out of its times: `mask_ns` has all of it.
    What the host does behind the last round of a batch of rounds counts in the first.
    `meta` says where it was measured, as far as that is known.

    Raises:
        ValueError: a column is missing, or shorter than another.
    """

    meta: dict[str, Any]
    table: dict[str, Column]

    def __post_init__(self) -> None:
        missing = [name for name in column_names() if name not in self.table]
        if missing:
            raise ValueError(f"samples without the column {missing[0]}")
        if len({len(column) for column in self.table.values()}) != 1:
            raise ValueError("columns of samples must be of equal length")

    def __len__(self) -> int:
        return len(self.table["shape"])

    def __getitem__(self, name: str) -> Column:
        return self.table[name]

    def where(self, rows: Column) -> StepSamples:
        """A selection of rows, by a mask or indices."""
        return StepSamples(self.meta, {name: column[rows] for name, column in self.table.items()})


def samples_from(meta: dict[str, Any], columns: dict[str, Sequence[Any] | Column], rows: int) -> StepSamples:
    """Samples from some of the columns; missing ones are 0 (`active_experts`: -1, not known).

    `host_ns` follows from the other times.
    """
    table: dict[str, Column] = {}
    for name in column_names():
        default = "" if name in TEXTS else -1 if name == "active_experts" else 0
        given = columns.get(name)
        table[name] = np.array([default] * rows if given is None else given, dtype=_dtype(name))
    table["host_ns"] = table["total_ns"] - table["gpu_ns"]
    return StepSamples(meta, table)


def joined(parts: Iterable[StepSamples], meta: dict[str, Any] | None = None) -> StepSamples:
    """The rows of all parts, in order; with the meta of the first unless another is given."""
    parts = list(parts)
    if not parts:
        return samples_from(meta or {}, {}, 0)
    table = {name: np.concatenate([part.table[name] for part in parts]) for name in column_names()}
    return StepSamples(parts[0].meta if meta is None else meta, table)


# -- from a step log -----------------------------------------------------------------------------------


def samples_of(log: StepLog, source: str) -> StepSamples:
    """The steps of a recorded run as samples; those whose forward failed are left out.

    Args:
        source: a name for the run.
    """
    if not len(log):
        return samples_from(_meta_of(log), {}, 0)
    columns: dict[str, Sequence[Any] | Column] = {name: log.column(name) for name in FEATURE_NAMES}
    further = [name for name in (*KIND_NAMES, *_LATER, *further_names()) if name in log.steps]
    for name in ("bucket", "active_experts", "gpu_ns", *SEGMENTS, *further):
        columns[name] = log.column(name)
    exposed = log.column("mask_exposed_ns") if "mask_exposed_ns" in log.steps else 0
    columns["gpu_ns"] = log.column("gpu_ns") - exposed  # while the device waited, or the host computed
    if "launching_ns" in log.steps and "constrained_rows" in log.steps:
        launching = np.where(log.column("constrained_rows") > 0, 0, log.column("launching_ns"))
        columns["launching_ns"] = launching  # not known where masks came in between
    columns["shape"], columns["regime"] = np.arange(len(log)), log.steps["regime"]
    columns["source"] = [source] * len(log)
    if "seen_ns" in log.steps:
        columns["total_ns"] = _one_after_another(log, columns)
    else:
        columns["total_ns"] = total_ns(log) - exposed
    if "batch" in log.steps:
        begins = np.array([log.begins_batch(index) for index in range(len(log))])
        columns["begins_batch"] = begins
        columns["total_ns"] = _in_first_rounds(log, total_ns(log), begins)
    return samples_from(_meta_of(log), columns, len(log)).where(log.column("failed") == 0)


def _one_after_another(log: StepLog, columns: Mapping[str, Any]) -> Column:
    """Times of overlapping steps as a synchronous loop would have them, in ns.

    The host's work of each, launching apart, and the longer of launching and of what the device needs. The
    host works on nothing else in between, and its waits for the device are not counted.
    """
    start, end, launch = (log.column(name) for name in ("start_ns", "end_ns", "launch_ns"))
    launching = np.minimum(columns.get("launching_ns", np.zeros_like(launch)), launch)
    work = (
        sum(log.column(name) for name in ("schedule_ns", "prepare_ns", "launch_ns", "finish_ns")) - launching
    )
    together = np.flatnonzero(start[1:] == start[:-1]) + 1  # the pipeline is filled: planned one by one
    before = (log.column(name)[together - 1] for name in ("schedule_ns", "prepare_ns", "launch_ns"))
    work[together] -= sum(before)
    work[2:] += np.where(_busy(log, end[:-2], start[2:]), np.maximum(start[2:] - end[:-2], 0), 0)
    total: Column = np.maximum(work, 0) + np.maximum(columns["gpu_ns"], launching)
    return total


def _in_first_rounds(log: StepLog, total: Column, begins: Column) -> Column:
    """Times of rounds, with what the host did behind the last of a batch counted in the first.

    It occurs once per batch, like planning and preparing, and no feature marks the last round: counted in the
    first, all of it has one price, whatever the number of rounds.
    """
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(log)) - 1
    several = (first != last) & (log.column("failed")[last] == 0)
    first, last = first[several], last[several]
    behind = total[last] - sum(log.column(name)[last] for name in SEGMENTS if name != "finish_ns")
    moved = total.copy()
    moved[first] += behind
    moved[last] -= behind
    return moved


def total_ns(log: StepLog) -> NDArray[np.int64]:
    """Time of each step of a log until the next could begin, in ns.

    That is the time to the start of the next step if requests were present without a gap: one that arrived
    before the step ended and did not leave before the next began. Otherwise the engine may have idled, and
    the step's own end counts.
    """
    start, end = log.column("start_ns"), log.column("end_ns")
    own: NDArray[np.int64] = end - start
    if len(log) < 2:
        return own
    own[:-1] = np.where(_busy(log, end[:-1], start[1:]), start[1:] - start[:-1], own[:-1])
    return own


def _busy(log: StepLog, ends: Column, starts: Column) -> NDArray[np.bool_]:
    """For gaps between an end and a later start, both ascending: whether a request was present throughout."""
    arrival = np.array(log.requests["arrival_ns"], dtype=np.int64)
    finish = np.array(log.requests["finish_ns"], dtype=np.int64)
    finish[finish < 0] = np.iinfo(np.int64).max
    first = np.searchsorted(ends, arrival, side="left")  # of the gaps during its life
    last = np.searchsorted(starts, finish, side="right") - 1
    there = np.zeros(len(starts) + 1, dtype=np.int64)
    np.add.at(there, first[last >= first], 1)
    np.add.at(there, last[last >= first] + 1, -1)
    busy: NDArray[np.bool_] = np.cumsum(there)[: len(starts)] > 0
    return busy


def _meta_of(log: StepLog) -> dict[str, Any]:
    stated = ("device", "model", "dtype", "clock", "yardstick_us", "torch")
    meta: dict[str, Any] = {name: log.meta[name] for name in stated if name in log.meta}
    if "device" in meta:
        meta["device_kind"] = "cpu" if meta["device"] == "cpu" else "cuda"
    scheduler = log.meta.get("scheduler", {})
    for name in ("block_size", "num_kv_blocks", "max_model_len"):
        if name in scheduler:
            meta[name] = scheduler[name]
    return {"schema": SCHEMA, **meta}


# -- one row per composition ---------------------------------------------------------------------------


def medians(samples: StepSamples) -> StepSamples:
    """One row per shape: the median of every number, and in `repetition` the number of its repetitions.

    Medians of whole numbers are rounded; `host_ns` is the difference of the other two medians, so that the
    parts still sum to the whole. Shapes of another source or regime are separate. Rows are in order of first
    occurrence.
    """
    keys = list(zip(*(samples[name].tolist() for name in ("source", "shape", "regime")), strict=True))
    rows_of: dict[tuple[Any, ...], list[int]] = {}
    for row, key in enumerate(keys):
        rows_of.setdefault(key, []).append(row)
    columns: dict[str, Sequence[Any] | Column] = {}
    for name in column_names():
        column = samples[name]
        if name in TEXTS:
            columns[name] = [column[rows[0]] for rows in rows_of.values()]
            continue
        middle = np.array([np.median(column[rows]) for rows in rows_of.values()], dtype=np.float64)
        columns[name] = np.rint(middle) if is_whole(name) else middle
    columns["repetition"] = [len(rows) for rows in rows_of.values()]
    return samples_from(samples.meta, columns, len(rows_of))


# -- files ---------------------------------------------------------------------------------------------


def write_samples(samples: StepSamples, path: str | Path) -> None:
    """Write CSV, compressed if the name ends in `.gz`. The same samples give the same bytes."""
    with writing(Path(path)) as text:
        write_header(samples.meta, text)
        write_rows(samples, text)


def write_header(meta: dict[str, Any], text: IO[str]) -> None:
    """Write the lines before the rows."""
    text.write(_MARK + json.dumps({**meta, "schema": SCHEMA}) + "\n")
    csv.writer(text, lineterminator="\n").writerow(column_names())


def write_rows(samples: StepSamples, text: IO[str]) -> None:
    """Write the rows alone."""
    names = column_names()
    columns = [samples[name].tolist() for name in names]
    columns = [all_harmless(c) if name in TEXTS else c for name, c in zip(names, columns, strict=True)]
    csv.writer(text, lineterminator="\n").writerows(zip(*columns, strict=True))


def read_samples(path: str | Path) -> StepSamples:
    """
    Raises:
        InputError: not a file of samples, another schema, or damaged.
    """
    path = Path(path)
    with reading(path) as text:
        return parse_samples(path, text)


def parse_samples(path: Path, lines: Iterable[str]) -> StepSamples:
    """Samples from the lines of a file; `path` is used in errors.

    Raises:
        InputError: not a file of samples, another schema, or damaged.
    """
    lines = iter(lines)
    meta = _read_meta(path, next(lines, ""))
    rows = csv_rows(lines, path, lines_before=1)
    header = next((stripped(names) for _, names in rows), [])
    needed = [name for name in COLUMNS if name not in _LATER]
    check_header(header, path, needed=needed, others=True, line=2)
    cells = list(rows)
    for line, row in cells:
        if len(row) != len(header):
            problem = f"a row of {len(row)} cells under {len(header)} columns"
            raise InputError(problem, file=f"{path}:{line}", fix="measure again")
    names = column_names()
    columns = {name: _read_column(path, name, header.index(name), cells) for name in names if name in header}
    zeros = np.zeros(len(cells), dtype=np.int64)
    return StepSamples(meta, {name: columns.get(name, zeros) for name in names})


def _read_meta(path: Path, line: str) -> dict[str, Any]:
    try:
        meta = parse_json(line.removeprefix(_MARK)) if line.startswith(_MARK) else None
    except InputError:
        meta = None
    if not isinstance(meta, dict):
        fix = "give the samples.csv.gz that `blis engine profile` wrote"
        raise InputError("not a file of samples", file=path, fix=fix)
    if meta.get("schema") != SCHEMA:
        problem = f"samples of another schema than {SCHEMA}"
        raise InputError(problem, file=path, value=meta.get("schema"), fix="measure again")
    return meta


def _read_column(path: Path, name: str, place: int, cells: list[tuple[int, list[str]]]) -> Column:
    values = [row[place] for _, row in cells]
    if name in TEXTS:
        return np.array([meant(value) for value in values], dtype=np.str_)
    try:
        column = np.array(values, dtype=_dtype(name))
        good = (column > -_LARGEST) & (column < _LARGEST)
    except (ValueError, OverflowError):
        good = np.array([_is(int if is_whole(name) else float, value) for value in values])
    if not good.all():
        line, value = cells[int(np.argmin(good))][0], values[int(np.argmin(good))]
        raise InputError("not a number", file=f"{path}:{line}", key=name, value=value)
    return column


def _is(kind: type[int] | type[float], value: str) -> bool:
    try:
        return abs(kind(value)) < _LARGEST
    except ValueError:
        return False


def _dtype(name: str) -> Any:
    return np.str_ if name in TEXTS else np.int64 if is_whole(name) else np.float64
