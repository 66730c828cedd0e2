"""Client measurements of any server: benchmark results, and tables with a row per request.

    vLLM        `vllm bench serve --save-result --save-detailed` (JSON)
    GuideLLM    `benchmarks.json`, its first benchmark
    a table     CSV with when each request was sent, its lengths, TTFT and E2E latency: columns `arrival_s`,
                `input_tokens`, `output_tokens`, `ttft_ms`, `e2e_ms` in any usual spelling and unit (our own
                `requests.csv` is one); `prompt_slot` or `prompt_id`, where rows of the same number sent the
                same prompt; `instance`, the instance that served the request

Requests are identified by their position in order of sending.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from blis_py.calibrate.token_times import Seconds, TokenTimes
from blis_py.errors import InputError
from blis_py.files.csv_files import header_of, table_rows
from blis_py.files.json_files import load_object
from blis_py.requests.table import Ints, Labels
from blis_py.traces.itl import Ragged

_SENT = ("client_arrival", "arrival", "arrived_at", "send_time", "sent", "start_time", "timestamp")
_TTFT, _E2E, _TPOT = ("ttft", "time_to_first_token"), ("e2e", "e2el", "latency", "request_latency"), ("tpot",)
_PROMPT = ("prompt_tokens", "input_tokens", "prompt_len", "input_len", "num_prefill_tokens")
_OUTPUT = ("output_tokens", "output_len", "generated_tokens", "num_decode_tokens")
_SAME = ("prompt_slot", "prompt_id")
_INSTANCE = ("instance", "instance_id", "handled_by", "replica", "pod", "backend", "server")
_UNITS = {"_s": 1.0, "_ms": 1e-3, "_us": 1e-6, "_ns": 1e-9}
_MAX_S, _MAX_TOKENS = 1e9, 2**31
_FORMATS = (
    "a result of `vllm bench serve --save-detailed`, GuideLLM's benchmarks.json, what --results-path or "
    "--metrics-path of BLIS or blis-py wrote, or a CSV with columns "
)
_FORMATS += "such as arrival_s, input_tokens, output_tokens, ttft_ms, e2e_ms"


def is_client_table(path: Path) -> bool:
    """Whether a file is a CSV with latencies, and not a TraceV2, which has times of tokens."""
    if path.suffix not in (".csv", ".gz"):
        return False
    names = header_of(path)
    return "first_chunk_time_us" not in names and _timed(names, _TTFT) is not None


def read_json(path: Path) -> TokenTimes:
    """Read a result of vLLM's or GuideLLM's benchmark.

    Raises:
        InputError: it is neither, or lacks its requests or their sending times.
    """
    document = load_object(path)
    if "benchmarks" in document:
        return replace(_guidellm(path, document), read_as="GuideLLM benchmarks.json")
    if "ttfts" in document or "input_lens" in document or "mean_ttft_ms" in document:
        return replace(_vllm(path, document), read_as="vLLM bench serve result")
    raise InputError("not a run with client times", file=path, fix=f"give {_FORMATS}")


def read_table(path: Path) -> TokenTimes:
    """Read a CSV with a row per request; rows without latencies are counted as incomplete.

    Raises:
        InputError: a missing column, or no request with latencies.
    """
    names = header_of(path)
    sent, ttft, e2e = (_timed(names, stems) for stems in (_SENT, _TTFT, _E2E))
    tpot = _timed(names, _TPOT)
    spelt = (_PROMPT, _OUTPUT, _SAME, _INSTANCE)
    prompt, output, same, instance = (_named(names, spellings) for spellings in spelt)
    for what, column in (("when it was sent", sent), ("TTFT", ttft), ("output tokens", output)):
        if column is None:
            raise InputError(f"no column has the {what} of a request", file=path, fix=f"give {_FORMATS}")
    last = e2e or tpot
    if last is None:
        raise InputError("no column has the end of a request", file=path, fix="add e2e_ms or tpot_ms")
    assert sent is not None
    assert ttft is not None
    assert output is not None
    needed = [sent[0], ttft[0], last[0], output, *(name for name in (prompt, same) if name)]
    rows, served_by, bad = [], [], 0
    for line, cells in table_rows(path, [*needed, *([instance] if instance else [])]):
        if "" in cells[:3]:
            bad += 1
            continue
        if instance:
            cells, by = cells[:-1], cells[-1]
            served_by.append(by)
        rows.append([_number(cell, f"{path}:{line}", name) for name, cell in zip(needed, cells, strict=True)])
    if not rows:
        raise InputError("no request has latencies", file=path)
    columns = np.array(rows).T
    first_s, last_s, tokens = columns[1] * ttft[1], columns[2] * last[1], columns[3].astype(np.int64)
    extra = iter(columns[4:])
    return _times(
        path,
        columns[0] * sent[1],
        first_s,
        last_s if e2e else first_s + last_s * (tokens - 1),
        tokens,
        prompt_tokens=next(extra).astype(np.int64) if prompt else None,
        same=next(extra).astype(np.int64) if same else None,
        instance=Labels.of(served_by) if instance else None,
        incomplete=bad,
    )


# --- benchmarks --------------------------------------------------------------------------------------


def _vllm(path: Path, document: Mapping[str, Any]) -> TokenTimes:
    keys = ("input_lens", "output_lens", "ttfts", "itls", "start_times")
    lists = {key: document.get(key) for key in keys}
    for key, values in lists.items():
        if not isinstance(values, list) or not values:
            fix = "save it with --save-result --save-detailed"
            if key == "start_times":
                fix += " by a vLLM that writes when requests started (0.11 or later)"
            raise InputError("has no requests, only figures", file=path, key=key, fix=fix)
    lengths = {key: len(values) for key, values in lists.items() if values is not None}
    if len(set(lengths.values())) > 1:
        raise InputError("lists of different lengths", file=path, key="ttfts", value=lengths)
    errors = document.get("errors") or [""] * lengths["ttfts"]
    if not isinstance(errors, list) or len(errors) != lengths["ttfts"]:
        raise InputError("must be a list, one for each request", file=path, key="errors")
    rows, gaps = [], []
    for number, (error, values) in enumerate(zip(errors, _together(lists), strict=True)):
        where = f"{path}: request {number}"
        start, ttft, between, prompt, output = values
        if not isinstance(between, list):
            raise InputError("must be a list of times", file=where, key="itls", value=between)
        stated = {"start_times": start, "ttfts": ttft, "input_lens": prompt, "output_lens": output}
        row = [_number(value, where, key) for key, value in stated.items()]
        if not error and row[-1] > 0:
            rows.append(row)
            gaps.append(np.array([_number(gap, where, "itls") for gap in between]))
    if not rows:
        raise InputError("no request was answered", file=path)
    start, ttft, prompt, output = np.array(rows).T
    e2e = ttft + np.array([gap.sum() for gap in gaps])
    limit = document.get("max_concurrency")
    return _times(
        path,
        start,
        ttft,
        e2e,
        output.astype(np.int64),
        prompt_tokens=prompt.astype(np.int64),
        incomplete=lengths["ttfts"] - len(rows),
        gaps=gaps,
        concurrency=round(_number(limit, str(path), "max_concurrency")) or None if limit else None,
    )


def _together(lists: Mapping[str, list[Any] | None]) -> Iterator[tuple[Any, ...]]:
    order = ("start_times", "ttfts", "itls", "input_lens", "output_lens")
    return zip(*(lists[key] or () for key in order), strict=True)


def _guidellm(path: Path, document: Mapping[str, Any]) -> TokenTimes:
    benchmarks = document["benchmarks"]
    first = benchmarks[0] if isinstance(benchmarks, list) and benchmarks else None
    requests = first.get("requests") if isinstance(first, dict) else None
    answered = requests.get("successful") if isinstance(requests, dict) else None
    if not isinstance(requests, dict) or not isinstance(answered, list) or not answered:
        fix = "save it as JSON with its requests"
        raise InputError("has no requests, only figures", file=path, key="requests.successful", fix=fix)
    rows = []
    for number, request in enumerate(answered):
        where = f"{path}: requests.successful[{number}]"
        start, end = (_first(request, where, places) for places in (_GUIDE_START, _GUIDE_END))
        ttft, prompt, output = (
            _first(request, where, places) for places in (_GUIDE_TTFT, _GUIDE_PROMPT, _GUIDE_OUTPUT)
        )
        rows.append((start, ttft / 1e3, end - start, prompt, output))
    sent, first_s, e2e, prompt, output = np.array(rows).T
    failed = [requests.get(kind) for kind in ("incomplete", "errored")]
    others = sum(len(kind) for kind in failed if isinstance(kind, list))
    tokens = output.astype(np.int64)
    return _times(path, sent, first_s, e2e, tokens, prompt_tokens=prompt.astype(np.int64), incomplete=others)


_GUIDE_START = (("request_start_time",), ("start_time",), ("info", "timings", "request_start"))
_GUIDE_END = (("request_end_time",), ("end_time",), ("info", "timings", "request_end"))
_GUIDE_TTFT = (("time_to_first_token_ms",), ("ttft_ms",))
_GUIDE_PROMPT = (("prompt_tokens",), ("input_metrics", "total_tokens"), ("input_metrics", "text_tokens"))
_GUIDE_OUTPUT = (("output_tokens",), ("output_metrics", "total_tokens"), ("output_metrics", "text_tokens"))


def _first(request: Any, where: str, places: Sequence[Sequence[str]]) -> float:
    for place in places:
        value = request
        for key in place:
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None:
            return _number(value, where, place[-1])
    raise InputError("missing", file=where, key=places[0][-1], fix="save it with all of its figures")


# --- parts -------------------------------------------------------------------------------------------


def _times(
    path: Path,
    sent: Seconds,
    ttft: Seconds,
    e2e: Seconds,
    output_tokens: Ints,
    *,
    prompt_tokens: Ints | None = None,
    same: Ints | None = None,
    instance: Labels | None = None,
    incomplete: int = 0,
    gaps: Sequence[Seconds] | None = None,
    concurrency: int | None = None,
) -> TokenTimes:
    """Times in order of sending, relative to the first."""
    if (e2e < ttft).any():
        row = int(np.argmax(e2e < ttft))
        value = f"TTFT {ttft[row]:g} s, E2E {e2e[row]:g} s"
        raise InputError(
            "a request ended before its first token", file=path, key=f"request {row}", value=value
        )
    order = np.argsort(sent, kind="stable")

    def sorted_(column: Ints | None) -> Ints | None:
        return None if column is None else column[order]

    counts = None if gaps is None else np.array([len(gaps[row]) for row in order])
    ragged = None
    if gaps is not None and counts is not None:
        ragged = Ragged(np.concatenate([gaps[row] for row in order]), counts)
    return TokenTimes(
        source=str(path),
        request_id=np.arange(len(sent)),
        slo_class=Labels.constant("", len(sent)),
        output_tokens=output_tokens[order],
        sent_s=(sent - sent.min())[order],
        ttft_s=ttft[order],
        e2e_s=e2e[order],
        incomplete=incomplete,
        gaps=ragged,
        prompt_tokens=sorted_(prompt_tokens),
        same_prompt=sorted_(same),
        instance=None if instance is None else instance.take(order),
        concurrency=concurrency,
    )


def _timed(names: Sequence[str], stems: Sequence[str]) -> tuple[str, float] | None:
    """A column of times and its unit in s."""
    for stem in stems:
        for ending, unit in _UNITS.items():
            if stem + ending in names:
                return stem + ending, unit
    return None


def _named(names: Sequence[str], spellings: Sequence[str]) -> str | None:
    return next((name for name in spellings if name in names), None)


def _number(value: Any, where: str, key: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number <= max(_MAX_S * 1e9, _MAX_TOKENS):
        raise InputError("must be a number of at least 0", file=where, key=key, value=value)
    return number
