"""BLIS TraceV2: a YAML header and a CSV with one row per request, read and written.

Reading follows the peer's fixed replay: every row is replayed, whatever its `status`; the arrival is
`send_time_us` where that is positive, else `arrival_time_us`; `input_tokens` counts the tokens after the
shared prefix, and `server_input_tokens`, where known, replaces it for rows without a prefix group; the
prefix of a group is as long as the `prefix_length` of its first row says; the client's budget is
`output_tokens`. Columns that describe the original run (`first_chunk_time_us`, `status`, ...) do not change a
fixed replay; `session_id` matters to a router that keeps sessions together. A replay of sessions as closed
loops (`sessions`) goes by `session_id`, `round_index` and `think_time_us`, and by the header's
`session_context_growth`.

Writing adds columns of ours at the end, only where the standard ones cannot hold a value: `max_tokens` (a
budget other than the output length), `content` (shared prompt runs other than a prefix group, as JSON),
`constrained` (whether a grammar constrains the answer), `extra_key` (what else must be equal for KV to be
shared, such as an adapter), `network_rtt_ns` and `network_token_ns` (how far
away its client is), and `arrival_time_ns`, `deadline_ns`,
`slo_target_ns` (times that are no whole microseconds). Then reading what was written gives the same table.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from blis_py.core.bounds import LAST_NS, MAX_TOKENS
from blis_py.errors import InputError
from blis_py.files import paths
from blis_py.files.json_files import parse_json
from blis_py.files.opening import reading as opened
from blis_py.files.parquet_files import is_parquet
from blis_py.requests.table import MODALITIES, Content, Ints, Labels, RequestTable
from blis_py.traces._sessions import CLOSED
from blis_py.traces.bad_rows import BadRows
from blis_py.traces.columns import Columns, read_columns
from blis_py.traces.kinds import BadCells, Mask, TraceKind, fractions, integers, integers_or, labels, repeated
from blis_py.traces.reading import Reading
from blis_py.traces.tracev2_header import ACCUMULATE, read_header
from blis_py.traces.tracev2_write import write

__all__ = ["data_beside", "header_beside", "read", "read_header", "write"]

LAST_US = LAST_NS // 1000
CALENDAR_US = 366 * 86_400 * 10**6
"""Times from here on are since 1970."""
_LONGEST_HEADER = 1 << 16
TEXT = ("client_id", "tenant_id", "slo_class", "prefix_group", "model", "session_id")
NUMBERS = {
    "request_id": integers(),
    "round_index": integers_or(0),
    **{f"{name}_tokens": integers_or(0) for name in MODALITIES},
    "prefix_length": integers(high=MAX_TOKENS),
    "input_tokens": integers(high=MAX_TOKENS),
    "output_tokens": integers(high=MAX_TOKENS),
    "server_input_tokens": integers(high=MAX_TOKENS),
    "max_tokens": integers(high=MAX_TOKENS),
    "deadline_us": integers(high=LAST_US),
    "slo_target_us": integers(high=LAST_US),
    "arrival_time_us": integers(-LAST_US, LAST_US),
    "send_time_us": integers(-LAST_US, LAST_US),
    "arrival_time_ns": integers(high=LAST_NS),
    "deadline_ns": integers(-1, LAST_NS),
    "slo_target_ns": integers(high=LAST_NS),
}
NETWORK = ("network_rtt_ns", "network_token_ns")
OF_SESSIONS = {
    "last_chunk_time_us": integers(-LAST_US, LAST_US),
    "think_time_us": integers(high=LAST_US),
}
"""Further columns that a closed-loop replay of sessions needs."""
WITHOUT_EFFECT = (
    *("vllm_priority", "x_request_id", "reason_ratio"),
    *("first_chunk_time_us", "num_chunks", "status", "error_message", "finish_reason"),
)
REQUIRED = ("request_id", "input_tokens", "output_tokens", "arrival_time_us")
SPELLINGS = {"true": True, "false": False, "1": True, "0": False, "t": True, "f": False, "": False}


def _to_bool(cells: NDArray[np.object_]) -> NDArray[np.bool_]:
    meaning = {cell: SPELLINGS.get(cell.lower()) for cell in set(cells.tolist())}
    if None in meaning.values():
        raise BadCells("not true or false", np.array([meaning[cell] is None for cell in cells]))
    return np.fromiter(map(meaning.__getitem__, cells.tolist()), dtype=np.bool_, count=len(cells))


def _empty(cells: NDArray[np.object_]) -> Mask:
    if np.any(cells != ""):
        raise BadCells("LoRA adapters are not supported yet", cells != "", "empty the column")
    return np.zeros(len(cells), dtype=np.bool_)


BOOLEAN = TraceKind("O", str, "not text", _to_bool)
NO_ADAPTER = TraceKind("O", str, "not text", _empty)


def is_data(path: Path) -> bool:
    """Whether a file is the CSV of a TraceV2, by its first line."""
    if is_parquet(path):
        return False
    with opened(path) as text:
        first_line = text.readline(_LONGEST_HEADER)
    return {"request_id", "arrival_time_us"} <= {name.strip() for name in first_line.split(",")}


def data_beside(header: Path) -> Path:
    """The CSV that belongs to a header `x.yaml`: `x.csv` or `x.csv.gz` in the same folder.

    Raises:
        InputError: no such file.
    """
    candidates = [header.with_suffix(".csv"), header.with_suffix(".csv.gz")]
    for path in candidates:
        if paths.exists(path):
            return path
    raise InputError(
        "no CSV beside this trace header", file=header, fix=f"put {candidates[0].name} there or name the CSV"
    )


def header_beside(data: Path) -> Path:
    """The header that belongs to `x.csv` or `x.csv.gz`: `x.yaml` or `x.yml` in the same folder.

    Raises:
        InputError: no such file.
    """
    stem = data.name.removesuffix(".gz").removesuffix(".csv")
    for suffix in (".yaml", ".yml"):
        if paths.exists(path := data.with_name(stem + suffix)):
            return path
    raise InputError(
        "a TraceV2 needs its header", file=data, fix=f"put {stem}.yaml beside it or give --trace-header"
    )


def read(path: Path, reading: Reading) -> RequestTable:
    """The requests of a TraceV2, in the order of the file, named `request_<request_id>`.

    An output length of 0 (a request that failed when it was recorded) is replayed as one token without
    a budget.

    Raises:
        InputError: with file, line, column and value; also for features that are not supported yet
            (`adapter`).
    """
    header = read_header(reading.header if reading.header is not None else header_beside(path))
    reading.accumulates = header.get("session_context_growth") == ACCUMULATE
    reading.requests_models = True
    closed = reading.session_mode == CLOSED
    columns = _columns(path, closed, reading.bad)
    groups, output = columns.labels("prefix_group"), columns.ints("output_tokens")
    prefix = _prefix_tokens(columns)
    content, contents = _contents(columns, groups, prefix)
    if reading.accumulates and closed and "content" in columns:
        problem, fix = "says what prompts share, and so does the header", "remove session_context_growth"
        raise InputError(problem, file=path, key="content", fix=fix)
    sessions = _sessions(columns)
    reading.answered_ns = columns.ints("last_chunk_time_us") * 1000 if closed else None
    return RequestTable.build(
        _arrival_ns(columns),
        _prompt_tokens(columns, whole=not (reading.accumulates and closed)),
        np.maximum(output, 1),
        max_tokens=columns.ints("max_tokens") if "max_tokens" in columns else output,
        deadline_ns=_deadline_ns(columns),
        slo_class=columns.labels("slo_class"),
        tenant=columns.labels("tenant_id"),
        client=columns.labels("client_id"),
        model=columns.labels("model"),
        prefix_group=groups,
        prefix_tokens=prefix,
        content=content,
        contents=contents,
        streaming=columns.get("streaming"),
        slo_target_ns=_in_ns(columns, "slo_target"),
        request_id=_names(columns["request_id"]),
        session=sessions,
        session_names=None if sessions is None else columns.labels("session_id").names,
        round_index=None if sessions is None else np.maximum(columns.ints("round_index"), 0),
        modality_tokens=_modalities(columns),
        network_ns=_network_ns(columns),
        think_ns=columns.ints("think_time_us") * 1000 if closed else None,
        constrained=columns.get("constrained"),
        extra_key=columns.labels("extra_key") if "extra_key" in columns else None,
    )


def _columns(path: Path, closed: bool, bad_rows: BadRows) -> Columns:
    """The columns with an effect on a replay; `closed` = in which sessions wait for their answers."""
    kinds = {name: labels() for name in (*TEXT, "content", "extra_key")}
    kinds |= {name: fractions() for name in NETWORK}
    kinds |= {**NUMBERS, "streaming": BOOLEAN, "constrained": BOOLEAN, "adapter": NO_ADAPTER}
    kinds |= OF_SESSIONS if closed else {}
    optional = tuple(name for name in kinds if name not in REQUIRED)
    ignored = (*WITHOUT_EFFECT, *(() if closed else OF_SESSIONS))
    columns = read_columns(path, kinds, optional=optional, ignored=ignored, bad_rows=bad_rows)
    _refuse_bad_rows(columns)
    return columns


def _sessions(columns: Columns) -> Ints | None:
    """Session number of each request, if there are any."""
    names = columns.labels("session_id")
    number = np.array([index if name else -1 for index, name in enumerate(names.names)], dtype=np.int64)
    return number[names.codes] if number.max(initial=-1) >= 0 and len(names) else None


def _modalities(columns: Columns) -> Ints | None:
    """Prompt modalities, if any row has them."""
    names = [f"{name}_tokens" for name in MODALITIES]
    if not any(columns.ints(name).any() for name in names):
        return None
    return np.column_stack([np.maximum(columns.ints(name), 0) for name in names])


def _network_ns(columns: Columns) -> NDArray[np.float64] | None:
    """Client networks in ns, if the trace has them."""
    if not all(name in columns for name in NETWORK):
        return None
    return np.column_stack([np.clip(np.nan_to_num(columns[name]), 0.0, 3.6e12) for name in NETWORK])


def _refuse_bad_rows(columns: Columns) -> None:
    """Report rows whose errors show only across columns or rows."""
    columns.refuse(repeated(columns["request_id"]), "the same id as a row before", "request_id")
    if "content" in columns:
        cells = columns["content"]
        unclear = np.array([runs_of(cell) is None for cell in cells.names], dtype=np.bool_)
        columns.refuse(unclear[cells.codes], "not a list of [segment, tokens] pairs", "content", cells)
    arrival_ns = _arrival_ns(columns)
    columns.refuse(arrival_ns < 0, "must not be negative", "arrival_time_us", arrival_ns // 1000)
    refused = True
    while refused:  # without its group's first row, a row may get another prefix
        prompt = _prompt_tokens(columns)
        refused = columns.refuse(prompt < 1, "an empty prompt", "input_tokens", prompt)
        prompt = _prompt_tokens(columns)
        refused |= columns.refuse(prompt > MAX_TOKENS, "a prompt far too long", "input_tokens", prompt)


def _in_ns(columns: Columns, name: str) -> Ints:
    return columns.ints(f"{name}_ns") if f"{name}_ns" in columns else columns.ints(f"{name}_us") * 1000


def _arrival_ns(columns: Columns) -> Ints:
    if "arrival_time_ns" in columns:
        return columns.ints("arrival_time_ns")
    sent_us, arrival_us = columns.ints("send_time_us"), columns.ints("arrival_time_us")
    return np.where(sent_us > 0, sent_us, arrival_us + _clocks_apart_us(columns)) * 1000


def _clocks_apart_us(columns: Columns) -> int:
    """Lead of times of sending since 1970 over relative arrivals and deadlines; 0 on one clock."""
    sent_us, arrival_us = columns.ints("send_time_us"), columns.ints("arrival_time_us")
    sent = sent_us > 0
    if not sent.any() or sent_us[sent].min() < CALENDAR_US or arrival_us.max() >= CALENDAR_US:
        return 0
    return int((sent_us - arrival_us)[sent].min())


def _deadline_ns(columns: Columns) -> Ints:
    if "deadline_ns" in columns:
        return columns.ints("deadline_ns")
    deadline_us, apart_us = columns.ints("deadline_us"), _clocks_apart_us(columns)
    relative = (deadline_us < CALENDAR_US) & (apart_us > 0)
    patience_us = np.maximum(deadline_us - columns.ints("arrival_time_us"), 0)
    own_clock_us = np.where(relative, patience_us + _arrival_ns(columns) // 1000, deadline_us)
    return np.where(deadline_us > 0, own_clock_us * 1000, -1)


def _prefix_tokens(columns: Columns) -> Ints:
    """Length of each row's shared prefix, given by the first row of its group."""
    groups = columns.labels("prefix_group")
    per_group = np.zeros(len(groups.names), dtype=np.int64)
    per_group[groups.codes[::-1]] = columns.ints("prefix_length")[::-1]  # so the first row is assigned last
    if "" in groups.names:
        per_group[groups.names.index("")] = 0
    tokens: Ints = per_group[groups.codes]
    return tokens


def _prompt_tokens(columns: Columns, whole: bool = True) -> Ints:
    """Tokens of each prompt.

    Args:
        whole: whether later turns count in full rather than by their additions to the conversation; the
        server's count is always in full.
    """
    groups, served = columns.labels("prefix_group"), columns.ints("server_input_tokens")
    if not whole:
        served = np.where(columns.ints("round_index") > 0, 0, served)
    grouped = np.array([name != "" for name in groups.names], dtype=np.bool_)[groups.codes]
    suffix = np.where((served > 0) & ~grouped, served, columns.ints("input_tokens"))
    prompt_tokens: Ints = _prefix_tokens(columns) + suffix
    return prompt_tokens


def _names(ids: Ints) -> list[str] | None:
    if np.array_equal(ids, np.arange(len(ids))):
        return None
    return [f"request_{number}" for number in ids.tolist()]


def _contents(columns: Columns, groups: Labels, prefix: Ints) -> tuple[Ints, tuple[Content, ...]]:
    """Shared content of each prompt: its `content` cell if present, else the prefix of its group."""
    known: dict[Content, int] = {}
    per_group = np.full(len(groups.names), -1, dtype=np.int64)
    shared = np.flatnonzero(prefix > 0)
    codes, firsts = np.unique(groups.codes[shared], return_index=True)
    for code, first in zip(codes.tolist(), firsts.tolist(), strict=True):
        tokens = int(prefix[shared[first]])
        per_group[code] = known.setdefault(((groups.names[code], tokens),), len(known))
    content = per_group[groups.codes]
    if "content" not in columns:
        return content, tuple(known)
    own = columns.labels("content")
    per_cell = np.empty(len(own.names), dtype=np.int64)
    for code, cell in enumerate(own.names):
        runs = runs_of(cell)
        per_cell[code] = known.setdefault(runs, len(known)) if runs else -1
    stated = np.array([cell != "" for cell in own.names], dtype=np.bool_)[own.codes]
    return np.where(stated, per_cell[own.codes], content), tuple(known)


def runs_of(cell: str) -> Content | None:
    """Runs in a `content` cell; None if invalid."""
    if not cell:
        return ()
    try:
        runs = tuple((segment, tokens) for segment, tokens in parse_json(cell))
    except (ValueError, TypeError):
        return None
    for segment, tokens in runs:
        if type(segment) not in (str, int) or type(tokens) is not int or not 0 < tokens <= MAX_TOKENS:
            return None
    return runs
