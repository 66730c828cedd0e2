"""inference-perf's `per_request_lifecycle_metrics.json`: a list of the requests sent.

Each has `start_time` (s) and `info` with its tokens, in one of two spellings; `error` where it failed.
Source: github.com/kubernetes-sigs/inference-perf, Apache-2.0.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from blis_py.requests.table import RequestTable
from blis_py.traces._gathered import Gathered, seconds
from blis_py.traces._json_rows import any_of, first_of, within
from blis_py.traces.reading import Reading

_INPUTS = (("input_tokens",), ("request_metrics", "text", "input_tokens"))
_OUTPUTS = (("output_tokens",), ("response_metrics", "output_tokens"))
_CONVERSATIONS = (("session_id",), ("info", "session_id"), ("info", "conversation_id"))
_TURNS = (("turn",), ("info", "turn"), ("info", "turn_index"))


def read(path: Path, reading: Reading, document: list[Any]) -> RequestTable:
    """The answered requests."""
    gathered = Gathered(path, reading)
    failed = 0
    for number, request in enumerate(document):
        if within(request, "error") is not None:
            failed += 1
            continue
        info = within(request, "info")
        start = seconds(first_of(request, (("start_time",),)))
        prompt, output = (first_of(info, places) for places in (_INPUTS, _OUTPUTS))
        gathered.add(
            f"{path}: request {number}",
            number,
            start,
            prompt,
            output,
            conversation=any_of(request, _CONVERSATIONS),
            turn=any_of(request, _TURNS),
            answered_ns=seconds(within(request, "end_time")),
        )
    reading.left_out(failed, "not answered")
    return gathered.table()
