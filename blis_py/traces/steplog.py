"""The step log of an engine: one row per step, one row per request, as CSV or Parquet.

`steps.csv` has the steps, `steps.requests.csv` beside it the requests (the same with `.parquet`). Both
carry the same metadata: in CSV as JSON in a first line that begins with `#`, in Parquet in the file's own.
Lists of request numbers are separated by blanks in CSV. A missing `decode_ids` means the same as in the
previous step.

Where answers come in blocks, a step is a round, `decode_ids` are the requests whose blocks take
part, and there are further columns.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blis_py.core.bounds import MAX_TOKENS, check_count
from blis_py.core.features import (
    FEATURE_NAMES,
    SELDOM,
    StepFeatures,
    features_from,
    further_names,
    is_whole,
)
from blis_py.core.kinds import IN_BLOCKS, named_in
from blis_py.errors import InputError
from blis_py.files.cells import harmless, meant
from blis_py.files.csv_files import check_header, csv_rows, stripped
from blis_py.files.json_files import parse_json
from blis_py.files.opening import reading
from blis_py.files.parquet_files import pyarrow
from blis_py.outputs.complete import check_complete
from blis_py.outputs.staging import Outputs
from blis_py.traces.files import writing

SCHEMA = 1
"""Incremented when a column changes its meaning or is removed, but not for new columns."""
_MARK = "# blis-py step log "
_LARGEST = 2**62
"""Bound of all numbers in a log: times in ns, counts, keys of blocks."""

Numbers = tuple[int, ...]
Kind = str
"""Column type: `int`, `float`, `text`, or `ints` (a list)."""

SEGMENTS = ("schedule_ns", "prepare_ns", "launch_ns", "sample_ns", "finish_ns")
"""Host time of a step by activity. `launch_ns` on the CPU is the forward itself; `sample_ns` contains the
wait for the device."""
FEATURE_KINDS: dict[str, Kind] = {name: "int" if is_whole(name) else "float" for name in FEATURE_NAMES}
STEP_KINDS: dict[str, Kind] = {
    "step": "int",  # index in the log
    "start_ns": "int",  # when the scheduler planned it: what had arrived by then was seen
    "end_ns": "int",  # with asynchronous scheduling, other steps are planned and finished in between
    **dict.fromkeys(SEGMENTS, "int"),
    "gpu_ns": "int",  # forward and sampling: CUDA events behind the copies; on the CPU launch_ns + sample_ns
    "regime": "text",  # graph or eager
    "bucket": "int",  # padded batch of a graph, else 0
    "waiting": "int",  # requests left in the queue when the step was planned
    "running": "int",
    "kv_blocks": "int",  # in use during the step
    "active_experts": "int",  # summed over sparse layers; -1 = not counted
    "failed": "int",  # 1: the forward raised an error, and its requests ended
    **FEATURE_KINDS,
    "prefill_ids": "ints",
    "prefill_chunks": "ints",  # tokens of each
    "decode_ids": "ints",
    "admitted_ids": "ints",
    "preempted_ids": "ints",
    "finished_ids": "ints",
}
REQUEST_KINDS: dict[str, Kind] = {
    "number": "int",  # as in the lists of the steps
    "id": "text",
    "arrival_ns": "int",
    "enqueue_ns": "int",  # the step boundary at which the scheduler first saw it
    "prompt_tokens": "int",
    "output_tokens": "int",  # emitted
    "max_tokens": "int",  # its limit; 0 = none
    "priority": "int",
    "deadline_ns": "int",
    "abort_ns": "int",  # the step boundary at which it was aborted; -1 = it was not
    "cached_tokens": "int",
    "preemptions": "int",
    "first_token_ns": "int",
    "finish_ns": "int",
    "finish_reason": "text",
    "prompt_blocks": "int",  # of the block keys, those of the prompt
    "block_keys": "ints",  # equal numbers = equal content up to the end of the block
}

BLOCK_FEATURES = tuple(name for name in IN_BLOCKS.names if name != "begins_batch")
"""The batch says which round begins it."""
BLOCK_STEP_KINDS: dict[str, Kind] = {
    "batch": "int",  # index of the batch it belongs to: rounds between two calls of the scheduler
    **dict.fromkeys(BLOCK_FEATURES, "int"),
    "committed_ids": "ints",  # requests whose block became final with it
}
TIMING_KINDS: dict[str, Kind] = {
    "launch_bound": "int",  # 1: the GPU waited for the host, so gpu_ns is what launching took
    "launching_ns": "int",  # host time from first to last launch, beside the GPU's work; 0 = not known
}
SELDOM_KINDS: dict[str, Kind] = dict.fromkeys(SELDOM, "int")
"""Optional features; a log has the column if any step has a value."""
MASK_KINDS: dict[str, Kind] = {
    "constrained_rows": "int",  # emitted rows that a grammar constrains
    "mask_ns": "int",  # host time for their masks, a part of sample_ns
    "mask_exposed_ns": "int",  # the part of it in which the device had nothing to do
}
"""Present if any row was constrained."""
MASK_REQUEST_KINDS: dict[str, Kind] = {
    "constrained": "int",  # 1: a grammar constrains its output
}
OVERLAP_KINDS: dict[str, Kind] = {
    "forward_start_ns": "int",  # with asynchronous scheduling: when the device began; -1 = never
    "forward_end_ns": "int",  # and was done with it
    "seen_ns": "int",  # when the next step was planned that could know its outcome
}
BLOCK_REQUEST_KINDS: dict[str, Kind] = {
    "block_rounds": "ints",  # forwards that each of its committed blocks took
}
_FURTHER = (
    TIMING_KINDS
    | SELDOM_KINDS
    | MASK_KINDS
    | MASK_REQUEST_KINDS
    | OVERLAP_KINDS
    | BLOCK_STEP_KINDS
    | BLOCK_REQUEST_KINDS
)
"""Optional columns."""


@dataclass(frozen=True, slots=True)
class StepLog:
    """A recorded run.

    `steps` and `requests` map the names of `STEP_KINDS` and `REQUEST_KINDS` (and those of its kind of
    requests) to columns: lists, of equal length within each table. `meta` says what ran: `schema`, `clock`,
    `scheduler` (the settings of `SchedulerConfig`), and what else the engine reported.
    """

    meta: dict[str, Any]
    steps: dict[str, list[Any]]
    requests: dict[str, list[Any]]

    def __len__(self) -> int:
        return len(self.steps["step"])

    @property
    def kind(self) -> str | None:
        """The kind of its requests; `None` = autoregressive."""
        return named_in(self.meta)

    def column(self, name: str) -> NDArray[Any]:
        """A numeric column of the steps, `[steps]`."""
        return np.array(self.steps[name], dtype=np.int64 if is_whole(name) else np.float64)

    def features(self, index: int) -> StepFeatures:
        """The features of one step, as its kind of requests has them."""
        names = (*FEATURE_KINDS, *further_names())
        if "batch" not in self.steps:
            values = self._values((*names, *SELDOM), index)
            if "constrained" not in self.requests:  # the requests of these rows are unknown
                values.pop("constrained_rows", None)
            return features_from(StepFeatures, values)
        values = self._values((*names, *BLOCK_FEATURES), index)
        return features_from(IN_BLOCKS.features, {**values, "begins_batch": self.begins_batch(index)})

    def _values(self, names: Iterable[str], index: int) -> dict[str, Any]:
        """Values of one step, for the columns present."""
        return {name: self.steps[name][index] for name in names if name in self.steps}

    def begins_batch(self, index: int) -> int:
        """Whether a round is the first of its batch: 1 or 0."""
        batch = self.steps["batch"]
        return int(index == 0 or batch[index] != batch[index - 1])


def write_step_log(log: StepLog, path: str | Path) -> None:
    """Write both files; the name must end in `.csv`, `.csv.gz` or `.parquet`."""
    path = Path(path)
    write = _format_of(path)[1]
    decode_ids: list[Numbers] = log.steps["decode_ids"]
    changed = [i == 0 or ids != decode_ids[i - 1] for i, ids in enumerate(decode_ids)]
    stated = [ids if new else None for ids, new in zip(decode_ids, changed, strict=True)]
    with Outputs() as outputs:
        steps = {**log.steps, "decode_ids": stated}
        write(outputs.file(path), log.meta, steps, _kinds(STEP_KINDS, log.steps))
        requests = outputs.file(_requests_path(path))
        write(requests, log.meta, log.requests, _kinds(REQUEST_KINDS, log.requests))


def read_step_log(path: str | Path) -> StepLog:
    """
    Raises:
        InputError: not a step log, another schema, or damaged.
    """
    path = Path(path)
    check_complete(path)
    read = _format_of(path)[0]
    meta, steps = read(path, STEP_KINDS)
    steps["decode_ids"] = list(_filled(steps["decode_ids"]))
    requests = read(_requests_path(path), REQUEST_KINDS)[1]
    for file, table in ((path, steps), (_requests_path(path), requests)):
        _check_lists(file, table)
    _check_ids(_requests_path(path), requests)
    _check_lengths(_requests_path(path), requests)
    return StepLog(meta, steps, requests)


def _kinds(always: dict[str, Kind], there: Iterable[str]) -> dict[str, Kind]:
    """Columns of a table: the required ones, and the optional ones present."""
    names = set(there)
    further = {name: "int" if is_whole(name) else "float" for name in further_names()}
    return always | {name: kind for name, kind in (_FURTHER | further).items() if name in names}


def _filled(lists: Iterable[Numbers | None]) -> Iterator[Numbers]:
    latest: Numbers = ()
    for ids in lists:
        latest = latest if ids is None else ids
        yield latest


def _requests_path(path: Path) -> Path:
    stem, dot, rest = path.name.partition(".")
    return path.with_name(f"{stem}.requests{dot}{rest}")


def _check_meta(path: Path, text: str) -> dict[str, Any]:
    try:
        meta = parse_json(text)
    except InputError:
        meta = None
    if not isinstance(meta, dict):
        raise InputError("not a step log", file=path, fix="give the file the engine wrote")
    if meta.get("schema") != SCHEMA:
        raise InputError(
            f"step log of another schema than {SCHEMA}",
            file=path,
            value=meta.get("schema"),
            fix="record it again",
        )
    return meta


def _check_lists(path: Path, table: dict[str, list[Any]]) -> None:
    for name, column in table.items():
        if any(value is None for value in column):
            raise InputError("a list is missing", file=path, key=name, fix="record it again")


def _check_ids(path: Path, requests: dict[str, list[Any]]) -> None:
    """Check that request numbers and names are unique."""
    for name in ("number", "id"):
        ids = set()
        for value in requests[name]:
            if value in ids:
                raise InputError(
                    "two requests have it", file=path, key=name, value=value, fix="record it again"
                )
            ids.add(value)


def _check_lengths(path: Path, requests: dict[str, list[Any]]) -> None:
    # where answers come in blocks, no prompt is needed
    least_prompt_tokens = 0 if "block_rounds" in requests else 1
    for name, least in (("prompt_tokens", least_prompt_tokens), ("output_tokens", 0), ("max_tokens", 0)):
        for value in requests[name]:
            check_count(value, least=least, most=MAX_TOKENS, key=name, file=path, fix="record it again")


# -- CSV -------------------------------------------------------------------------------------------


def _cell(kind: Kind, value: Any) -> Any:
    if kind == "text":
        return harmless(value)
    if kind != "ints":
        return value
    return "=" if value is None else " ".join(map(str, value))


def _value(kind: Kind, cell: str) -> Any:
    if kind == "text":
        return meant(cell)
    if kind == "ints":
        return None if cell == "=" else tuple([_int(number) for number in cell.split()])
    return _float(cell) if kind == "float" else _int(cell)


def _int(cell: str) -> int:
    number = int(cell)
    if not -_LARGEST <= number <= _LARGEST:
        raise ValueError(cell)
    return number


def _float(cell: str) -> float:
    number = float(cell)
    if not isfinite(number):
        raise ValueError(cell)
    return number


def _write_csv(path: Path, meta: dict[str, Any], table: dict[str, list[Any]], kinds: dict[str, Kind]) -> None:
    columns = [[_cell(kind, value) for value in table[name]] for name, kind in kinds.items()]
    with writing(path) as text:
        text.write(_MARK + json.dumps(meta) + "\n")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(kinds)
        writer.writerows(zip(*columns, strict=True))


def _read_csv(path: Path, kinds: dict[str, Kind]) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    with reading(path) as text:
        meta = _check_meta(path, text.readline().removeprefix(_MARK))
        rows = csv_rows(text, path, lines_before=1)
        header = next((stripped(names) for _, names in rows), [])
        _check_columns(path, header, kinds)
        kinds = _kinds(kinds, header)
        places = [(name, kind, header.index(name)) for name, kind in kinds.items()]
        table: dict[str, list[Any]] = {name: [] for name in kinds}
        for line, row in rows:
            if len(row) != len(header):
                problem = f"a row of {len(row)} cells under {len(header)} columns"
                raise InputError(problem, file=f"{path}:{line}", fix="record it again")
            for name, kind, place in places:
                try:
                    table[name].append(_value(kind, row[place]))
                except ValueError:
                    raise InputError(
                        "not what belongs here", file=f"{path}:{line}", key=name, value=row[place]
                    ) from None
    return meta, table


def _check_columns(path: Path, columns: Sequence[str], kinds: dict[str, Kind]) -> None:
    check_header(columns, path, needed=tuple(kinds), others=True, line=2)


# -- Parquet ---------------------------------------------------------------------------------------


def _write_parquet(
    path: Path, meta: dict[str, Any], table: dict[str, list[Any]], kinds: dict[str, Kind]
) -> None:
    pa = pyarrow()
    types = {"int": pa.int64(), "float": pa.float64(), "text": pa.string(), "ints": pa.list_(pa.int64())}
    arrays = [pa.array(table[name], types[kind]) for name, kind in kinds.items()]
    columns = pa.table(arrays, names=list(kinds)).replace_schema_metadata({"blis": json.dumps(meta)})
    pa.parquet.write_table(columns, path, compression="zstd")


def _read_parquet(path: Path, kinds: dict[str, Kind]) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    pa = pyarrow()
    try:
        columns = pa.parquet.read_table(path)
    except FileNotFoundError:
        raise InputError("no such file", file=path, fix="check the path") from None
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"cannot be read: {error}", file=path) from None
    stated = (columns.schema.metadata or {}).get(b"blis") or b""
    meta = _check_meta(path, stated.decode(errors="replace"))
    _check_columns(path, columns.column_names, kinds)
    kinds = _kinds(kinds, columns.column_names)
    table = {name: columns[name].to_pylist() for name in kinds}
    for name, kind in kinds.items():
        table[name] = [_of_parquet(path, name, kind, value) for value in table[name]]
    return meta, table


def _of_parquet(path: Path, name: str, kind: Kind, value: Any) -> Any:
    """A Parquet value, checked against its column type."""
    if kind == "ints" and (value is None or isinstance(value, list)):
        return None if value is None else tuple([_of_parquet(path, name, "int", each) for each in value])
    type_of_kind: Any = {"int": int, "float": float, "text": str}.get(kind)
    too_large = type_of_kind is int and type(value) is int and not -_LARGEST <= value <= _LARGEST
    if type(value) is not type_of_kind or too_large:
        raise InputError("not what belongs here", file=path, key=name, value=value, fix="record it again")
    return value


Read = Callable[[Path, dict[str, Kind]], tuple[dict[str, Any], dict[str, list[Any]]]]
Write = Callable[[Path, dict[str, Any], dict[str, list[Any]], dict[str, Kind]], None]
FORMATS: dict[str, tuple[Read, Write]] = {
    ".csv": (_read_csv, _write_csv),
    ".csv.gz": (_read_csv, _write_csv),
    ".parquet": (_read_parquet, _write_parquet),
}


def _format_of(path: Path) -> tuple[Read, Write]:
    for suffix, functions in FORMATS.items():
        if path.name.endswith(suffix):
            return functions
    raise InputError("unknown kind of file", file=path, fix=f"let the name end in {', '.join(FORMATS)}")
