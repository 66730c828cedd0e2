"""When each request of a run was sent, got its first token and its last: measured or simulated."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from blis_py.errors import InputError
from blis_py.files import paths
from blis_py.outputs.complete import check_complete
from blis_py.requests.table import Ints, Labels
from blis_py.traces.columns import read_columns
from blis_py.traces.itl import NAME as ITL_NAME
from blis_py.traces.itl import Ragged, read_gaps
from blis_py.traces.kinds import integers, labels, repeated

if TYPE_CHECKING:
    from blis_py.metrics.record import RunRecord

Seconds = NDArray[np.float64]

_TIMES = ("request_id", "send_time_us", "arrival_time_us", "first_chunk_time_us", "last_chunk_time_us")
_PROMPT = ("input_tokens", "prefix_length")
_LAST_US = 2**53
TRACE_NAMES = ("trace.csv", "trace.csv.gz")
"""The trace in the folder of a run."""


@dataclass(frozen=True)
class TokenTimes:
    """One row per request that completed, sorted by id."""

    source: str
    request_id: Ints
    slo_class: Labels
    output_tokens: Ints
    sent_s: Seconds
    ttft_s: Seconds
    e2e_s: Seconds
    incomplete: int
    """Requests that ended otherwise, or without a recorded token."""
    gaps: Ragged | None = None
    """Times between the tokens of each request, in s; `None` = only first and last are known."""
    prompt_tokens: Ints | None = None
    """`None` = not known."""
    same_prompt: Ints | None = None
    """Requests of the same number sent the same prompt; `None` = not known."""
    concurrency: int | None = None
    """Of a closed loop: requests in flight at once, at most; `None` = none is told."""

    @property
    def tpot_s(self) -> Seconds:
        """Mean time per token after the first; NaN for a single token."""
        gaps = np.where(self.output_tokens > 1, self.output_tokens - 1, np.nan)
        means: Seconds = (self.e2e_s - self.ttft_s) / gaps
        return means

    def take(self, rows: NDArray[np.intp]) -> TokenTimes:
        return replace(
            self,
            request_id=self.request_id[rows],
            slo_class=self.slo_class.take(rows),
            output_tokens=self.output_tokens[rows],
            sent_s=self.sent_s[rows],
            ttft_s=self.ttft_s[rows],
            e2e_s=self.e2e_s[rows],
            gaps=self.gaps.take(rows) if self.gaps is not None else None,
            prompt_tokens=self.prompt_tokens[rows] if self.prompt_tokens is not None else None,
            same_prompt=self.same_prompt[rows] if self.same_prompt is not None else None,
        )


def token_times(record: RunRecord, source: str) -> TokenTimes:
    """Of a run that has just ended, without rounding and with all gaps. Requests are known by their rows."""
    from blis_py.metrics.itl import TokenGaps
    from blis_py.metrics.latencies import completed_mask

    table = record.table
    rows = np.flatnonzero(completed_mask(record))
    gap_ns, counts = TokenGaps(record).of_each(rows)
    sent_ns = table.arrival_ns[rows]
    return TokenTimes(
        source=source,
        request_id=rows.astype(np.int64),
        slo_class=table.slo_class.take(rows),
        output_tokens=record.emitted_tokens[rows],
        sent_s=sent_ns / 1e9,
        ttft_s=(record.first_token_ns[rows] - sent_ns) / 1e9,
        e2e_s=(record.last_token_ns[rows] - sent_ns) / 1e9,
        incomplete=len(table) - len(rows),
        gaps=Ragged(gap_ns / 1e9, counts),
        prompt_tokens=table.prompt_tokens[rows],
    )


def read_token_times(path: str | Path, itl: str | Path | None = None) -> TokenTimes:
    """From a TraceV2 CSV with measured times, the folder of a run, which holds one, or what a client measured
    of any server (`client_runs`).

    Args:
        itl: the file with the times of all tokens; `None` = the folder's `itl.csv`, where there is one.

    Raises:
        InputError: no such file, not a TraceV2, or a trace in which no request has token times.
    """
    from blis_py.calibrate import client_runs

    check_complete(path)
    file = _trace_at(path)
    if file.suffix == ".json":
        return client_runs.read_json(file)
    if client_runs.is_client_table(file):
        return client_runs.read_table(file)
    times = _read_trace(file, str(path))
    if itl is None:
        itl = file.with_name(ITL_NAME)
        if file.name not in TRACE_NAMES or not paths.exists(itl):
            return times
    check_complete(itl)
    return replace(times, gaps=read_gaps(Path(itl), times.request_id))


def is_client_run(path: str | Path) -> bool:
    """Whether a file holds the latencies of requests, and no steps."""
    from blis_py.calibrate import client_runs
    from blis_py.files.csv_files import header_of

    file = Path(path)
    if not paths.is_file(file):
        return False
    if file.suffix == ".json" or client_runs.is_client_table(file):
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
