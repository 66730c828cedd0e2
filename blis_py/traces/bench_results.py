"""Results of the serving benchmarks of vLLM and SGLang, for sending their requests again.

vLLM's `bench serve --save-result --save-detailed` writes one JSON document per run (a line each with
`--append-result`), SGLang's `bench_serving
--output-details` one line per run; both list `input_lens` and `output_lens`. Newer vLLM adds `start_times`;
without them arrival times are unknown, and only a rate or a limit on requests in flight is. An answer of no
tokens is that of a completed request if the run had no failures or states the TTFT of this one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeGuard

from blis_py.errors import InputError
from blis_py.requests.table import RequestTable
from blis_py.traces._gathered import Gathered, seconds
from blis_py.traces._json_rows import items, json_rows, within
from blis_py.traces.reading import Reading

LENGTHS = ("input_lens", "output_lens")
_LOWEST_RATE, _HIGHEST_RATE = 1e-6, 1e9
"""Requests/s; others are no rate of a benchmark, but all at once."""


def read_vllm(path: Path, reading: Reading, document: dict[str, Any]) -> RequestTable:
    """The requests of a result of `vllm bench serve`.

    Raises:
        InputError: saved without its requests, or lists of inconsistent lengths.
    """
    return _requests(path, reading, document, str(path), "save it with --save-result --save-detailed")


def read_vllm_lines(path: Path, reading: Reading) -> RequestTable:
    """The requests of one run of a file made with `--append-result`; `FILE#1` is the second."""
    return _chosen(path, reading, "save it with --save-result --save-detailed")


def read_vllm_sweep(path: Path, reading: Reading, document: list[Any]) -> RequestTable:
    """The requests of one run of the summary of `vllm bench sweep`; `FILE#1` is the second.

    Raises:
        InputError: the run is not an object, or was saved without its requests.
    """
    fix = "give its bench command --save-detailed"
    _check_requests(path, document, fix)
    run = reading.chosen(document, path, "runs")
    if not isinstance(run, dict):
        raise InputError("not a JSON object", file=path, key=f"[{reading.part or 0}]")
    return _requests(path, reading, run, str(path), fix)


def read_sglang(path: Path, reading: Reading) -> RequestTable:
    """The requests of a result of SGLang's `bench_serving`; `FILE#1` is the second run in a file."""
    return _chosen(path, reading, "run it with --output-details")


def _chosen(path: Path, reading: Reading, fix: str) -> RequestTable:
    runs = [row for _, _, row in json_rows(path, reading)]
    _check_requests(path, runs, fix)
    run = reading.chosen(runs, path, "runs")
    return _requests(path, reading, run, f"{path}:{(reading.part or 0) + 1}", fix)


def _check_requests(path: Path, runs: list[Any], fix: str) -> None:
    """Refuse a file none of whose runs has requests, before one is chosen."""
    if runs and not any(isinstance(within(run, LENGTHS[0]), list) for run in runs):
        raise InputError("has no requests, only figures", file=path, key=LENGTHS[0], fix=fix)


def _requests(path: Path, reading: Reading, run: dict[str, Any], where: str, fix: str) -> RequestTable:
    for key in LENGTHS:
        if not isinstance(run.get(key), list):
            raise InputError("has no requests, only figures", file=where, key=key, fix=fix)
    prompts, outputs = (run[key] for key in LENGTHS)
    starts = items(run.get("start_times")) or [None] * len(prompts)
    if not len(prompts) == len(outputs) == len(starts):
        lengths = [len(prompts), len(outputs), len(starts)]
        raise InputError(
            "lists of different lengths", file=where, key="input_lens, output_lens", value=lengths
        )
    reading.has_times = starts[:1] != [None]
    reading.rate = _rate(run.get("request_rate"))
    reading.kept_in_flight(run.get("max_concurrency"), paced=reading.rate is not None)
    model, empty = run.get("model_id", ""), _empty_answers(run, outputs)
    if empty:
        reading.note(f"{len(empty):,} answers without tokens count as one token: their requests completed")
    gathered = Gathered(path, reading)
    for number, (start, prompt, output) in enumerate(zip(starts, prompts, outputs, strict=True)):
        tokens = 1 if number in empty else output
        gathered.add(f"{where}: request {number}", number, seconds(start), prompt, tokens, model=model)
    return gathered.table()


def _empty_answers(run: dict[str, Any], outputs: list[Any]) -> set[int]:
    """Completed requests without output tokens: the prompt was processed, and its first token ended it."""
    empty = {number for number, tokens in enumerate(outputs) if tokens == 0}
    if run.get("completed") == len(outputs):
        return empty
    ttfts, errors = (items(run.get(key)) for key in ("ttfts", "errors"))
    if len(ttfts) != len(outputs):
        return set()
    failed = {number for number, error in enumerate(errors) if error}
    return {number for number in empty - failed if _is_number(ttfts[number]) and ttfts[number] > 0}


def _rate(value: Any) -> float | None:
    """A rate in requests/s; both programs write `inf` as text."""
    return float(value) if _is_number(value) and _LOWEST_RATE <= value <= _HIGHEST_RATE else None


def _is_number(rate: Any) -> TypeGuard[float]:
    """Whether a value is a number."""
    return type(rate) in (int, float)
