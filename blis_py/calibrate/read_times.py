"""Token times from any supported source: the folder of a run, a TraceV2, or a client's measurements."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from blis_py.calibrate._blis_results import (
    METRICS,
    RESULTS,
    is_metrics,
    is_results,
    read_metrics,
    read_results,
)
from blis_py.calibrate._client_runs import is_client_table, read_json, read_table
from blis_py.calibrate.token_times import TokenTimes
from blis_py.errors import InputError
from blis_py.files import paths
from blis_py.files.csv_files import header_of
from blis_py.files.json_files import parse_json
from blis_py.files.opening import read_text
from blis_py.outputs.complete import check_complete
from blis_py.traces.columns import read_columns
from blis_py.traces.itl import NAME as ITL_NAME
from blis_py.traces.itl import read_gaps
from blis_py.traces.kinds import integers, labels, repeated

_TIMES = ("request_id", "send_time_us", "arrival_time_us", "first_chunk_time_us", "last_chunk_time_us")
_PROMPT = ("input_tokens", "prefix_length")
_LAST_US = 2**53
TRACE_NAMES = ("trace.csv", "trace.csv.gz")
"""Names of the trace in the folder of a run."""


def read_token_times(path: str | Path, itl: str | Path | None = None) -> TokenTimes:
    """Read a TraceV2 CSV with measured times, the folder of a run, which contains one, or a client's
    measurements of any server (`_client_runs`).

    Args:
        itl: the file with the times of all tokens; `None` = the folder's `itl.csv`, if there is one.

    Raises:
        InputError: no such file, not a TraceV2, or a trace in which no request has token times.
    """
    check_complete(path)
    file = _trace_at(path)
    if _is_json(file) or is_client_table(file):
        if itl is not None:
            fix = "drop it, or give a TraceV2"
            raise InputError("goes with a TraceV2", key="--itl-data", value=str(itl), fix=fix)
        return (
            _read_json(file) if _is_json(file) else replace(read_table(file), read_as="a table of latencies")
        )
    times = replace(_read_trace(file, str(path)), read_as="TraceV2")
    if itl is None:
        itl = file.with_name(ITL_NAME)
        if file.name not in TRACE_NAMES or not paths.exists(itl):
            return times
    check_complete(itl)
    return replace(times, gaps=read_gaps(Path(itl), times.request_id))


def _is_json(file: Path) -> bool:
    return file.name.endswith((".json", ".json.gz"))


def _read_json(file: Path) -> TokenTimes:
    document = parse_json(read_text(file), file, fix="is it the right file?")
    if is_results(document):
        return replace(read_results(file, document), read_as=RESULTS)
    if is_metrics(document):
        return replace(read_metrics(file, document), read_as=METRICS)
    return read_json(file)


def is_client_run(path: str | Path) -> bool:
    """Whether a file contains latencies of requests, and no steps."""
    file = Path(path)
    if not paths.is_file(file):
        return False
    if _is_json(file) or is_client_table(file):
        return True
    return file.suffix in (".csv", ".gz") and "first_chunk_time_us" in header_of(file)


def _trace_at(path: str | Path) -> Path:
    file = Path(path)
    if paths.is_folder(file):
        file = next((p for name in TRACE_NAMES if paths.exists(p := file / name)), file)
    if not paths.is_file(file):
        fix = "name a TraceV2 CSV, the --out folder of a run, or what a client measured"
        raise InputError("no such trace", file=path, fix=fix)
    return file


def _read_trace(file: Path, source: str) -> TokenTimes:
    whole = integers(-_LAST_US, _LAST_US)
    columns = read_columns(
        file,
        {
            **dict.fromkeys((*_TIMES, "output_tokens", "num_chunks", *_PROMPT), whole),
            "slo_class": labels(),
            "status": labels(),
        },
        optional=("send_time_us", "num_chunks", "slo_class", "status", *_PROMPT),
    )
    columns.refuse(repeated(columns["request_id"]), "the same id as a row before", "request_id")
    rows, number, classes = len(columns), columns.ints, columns.labels("slo_class")
    status = columns.labels("status").to_list() if "status" in columns else ["ok"] * rows
    first, last, sent = number("first_chunk_time_us"), number("last_chunk_time_us"), number("send_time_us")
    sent = np.where(sent > 0, sent, number("arrival_time_us"))
    timed = np.array([word == "ok" for word in status]) & (first > 0) & (last >= first)
    if not timed.any():
        fix = "calibration needs a trace recorded from an engine, or the trace.csv of a run's --out"
        raise InputError("no request has token times", file=file, fix=fix)
    done = np.flatnonzero(timed)
    done = done[np.argsort(number("request_id")[done], kind="stable")]
    ids = number("request_id")[done]
    return TokenTimes(
        source=source,
        request_id=ids,
        slo_class=classes.take(done),
        output_tokens=number("output_tokens")[done],
        sent_s=sent[done] / 1e6,
        ttft_s=(first - sent)[done] / 1e6,
        e2e_s=(last - sent)[done] / 1e6,
        incomplete=rows - len(done),
        prompt_tokens=(number("input_tokens") + number("prefix_length"))[done]
        if "input_tokens" in columns
        else None,
    )
