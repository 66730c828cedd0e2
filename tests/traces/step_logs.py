"""Step logs of few columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blis_py.traces.steplog import StepLog
from blis_py.traces.steplog_columns import REQUEST_KINDS, STEP_KINDS

BLANK = {"text": "eager", "ints": (), "int": 0, "float": 0.0}


def log_of(
    steps: list[tuple[int, int]], requests: Sequence[tuple[int, int]] = ((0, 10**6),), **columns: Any
) -> StepLog:
    """Steps by start and end, requests by arrival and finish."""
    table: dict[str, list[Any]] = {name: [BLANK[kind]] * len(steps) for name, kind in STEP_KINDS.items()}
    table["step"] = list(range(len(steps)))
    table["start_ns"], table["end_ns"] = [a for a, _ in steps], [b for _, b in steps]
    rows: dict[str, list[Any]] = {name: [BLANK[kind]] * len(requests) for name, kind in REQUEST_KINDS.items()}
    rows["number"], rows["id"] = list(range(len(requests))), [f"r{n}" for n in range(len(requests))]
    rows["arrival_ns"], rows["finish_ns"] = [a for a, _ in requests], [b for _, b in requests]
    rows["prompt_tokens"] = [1] * len(requests)
    return StepLog({"schema": 1, "device": "cuda:0"}, table | columns, rows)
