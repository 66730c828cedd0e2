"""Request results written by BLIS and blis-py.

--results-path   a list: {request_id, ttft_us, e2e_us, input_tokens, output_tokens, ...}, without times of
                 sending (BLIS calls it SimResult)
--metrics-path   an object with `requests`: {requestID, arrived_at, ttft_ms, e2e_ms, num_prefill_tokens, ...}
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from blis_py.calibrate.token_times import TokenTimes
from blis_py.errors import InputError
from blis_py.requests.table import Labels

RESULTS, METRICS = "results of BLIS (--results-path)", "metrics of BLIS (--metrics-path)"
_RESULT = ("request_id", "ttft_us", "e2e_us", "input_tokens", "output_tokens")
_REQUEST = ("arrived_at", "ttft_ms", "e2e_ms", "num_prefill_tokens", "num_decode_tokens")
_NUMBER = re.compile(r"(?:request_)?(\d{1,18})")


def is_results(document: Any) -> bool:
    """Whether a document was written by `--results-path`."""
    return isinstance(document, list) and all(
        isinstance(one, Mapping) and {"request_id", "ttft_us", "e2e_us"} <= one.keys()
        for one in document[:10]
    )


def is_metrics(document: Any) -> bool:
    """Whether a document was written by `--metrics-path`."""
    if not isinstance(document, Mapping) or not isinstance(document.get("requests"), list):
        return False
    return all(isinstance(one, Mapping) and "requestID" in one for one in document["requests"][:10])


def read_results(path: Path, document: Sequence[Any]) -> TokenTimes:
    """Completed requests, by their number in the trace. Sending times are not known: NaN.

    Raises:
        InputError: no completed request, a missing number, or a duplicate request.
    """
    rows = [_numbers(one, _RESULT, f"{path}: [{index}]") for index, one in enumerate(document)]
    _require(rows, path)
    number, ttft_us, e2e_us, prompt, output = np.array(rows).T
    return _times(
        path, number, np.full(len(rows), np.nan), ttft_us / 1e6, e2e_us / 1e6, prompt, output, document
    )


def read_metrics(path: Path, document: Mapping[str, Any]) -> TokenTimes:
    """Completed requests: those with an E2E latency.

    Raises:
        InputError: no completed request, a missing number, or a duplicate request.
    """
    done = [one for one in document["requests"] if isinstance(one, Mapping) and one.get("e2e_ms")]
    rows = [_numbers(one, _REQUEST, f"{path}: {one.get('requestID')}") for one in done]
    _require(rows, path)
    matches = [_NUMBER.fullmatch(str(one.get("requestID"))) for one in done]
    numbers = [index if match is None else int(match[1]) for index, match in enumerate(matches)]
    if None in matches:
        numbers = list(range(len(done)))
    sent, ttft_ms, e2e_ms, prompt, output = np.array(rows).T
    lost = len(document["requests"]) - len(done)
    return _times(path, np.array(numbers), sent, ttft_ms / 1e3, e2e_ms / 1e3, prompt, output, done, lost)


def _times(
    path: Path,
    number: Any,
    sent_s: Any,
    ttft_s: Any,
    e2e_s: Any,
    prompt: Any,
    output: Any,
    rows: Sequence[Mapping[str, Any]],
    incomplete: int = 0,
) -> TokenTimes:
    order = np.argsort(number, kind="stable")
    ids = number[order].astype(np.int64)
    if (ids[1:] == ids[:-1]).any():
        twice = int(ids[1:][ids[1:] == ids[:-1]][0])
        raise InputError("the same request twice", file=path, key="request_id", value=twice)
    if (e2e_s < ttft_s).any():
        row = int(number[np.argmax(e2e_s < ttft_s)])
        raise InputError("a request ended before its first token", file=path, key=f"request {row}")
    return TokenTimes(
        source=str(path),
        request_id=ids,
        slo_class=Labels.of([str(rows[row].get("slo_class") or "") for row in order.tolist()]),
        output_tokens=output[order].astype(np.int64),
        sent_s=sent_s[order],
        ttft_s=ttft_s[order],
        e2e_s=e2e_s[order],
        incomplete=incomplete,
        prompt_tokens=prompt[order].astype(np.int64),
    )


def _require(rows: Sequence[Any], path: Path) -> None:
    if not rows:
        raise InputError("no request completed", file=path, fix="give the results of a run that served some")


def _numbers(row: Any, names: Sequence[str], where: str) -> list[float]:
    numbers = []
    for name in names:
        value = row.get(name) if isinstance(row, Mapping) else None
        number = value if isinstance(value, int | float) and not isinstance(value, bool) else -1
        if not 0 <= number < 2**53:
            raise InputError("must be a number of at least 0", file=where, key=name, value=value)
        numbers.append(float(number))
    return numbers
