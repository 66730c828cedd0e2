"""Recordings: requests with whole answers alone are replayed, in order of time whatever that of the lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from blis_py.requests.table import RequestTable
from blis_py.traces import read_trace
from blis_py.traces.reading import Reading


def read(path: Path) -> tuple[RequestTable, list[str]]:
    reading = Reading()
    return read_trace(path, reading=reading), reading.stated()


def guidellm(start_s: float, prompt: int, output: int) -> dict[str, Any]:
    return {"request_start_time": start_s, "prompt_tokens": prompt, "output_tokens": output}


@pytest.mark.parametrize("kind", ["incomplete", "errored"])
def test_requests_that_guidellm_broke_off_or_lost_are_not_replayed(kind: str, tmp_path: Path) -> None:
    """They have times and lengths as the others: an incomplete one as many tokens as had come."""
    requests = {"successful": [guidellm(5, 10, 3), guidellm(7, 20, 4)], kind: [guidellm(6, 30, 2)]}
    path = tmp_path / "benchmarks.json"
    path.write_text(json.dumps({"metadata": {"version": 2}, "benchmarks": [{"requests": requests}]}))
    table, report = read(path)
    assert table.prompt_tokens.tolist() == [10, 20]
    assert "1 request was left out: not answered" in report


def aiperf(start_ns: int, prompt: int, output: int, **more: Any) -> dict[str, Any]:
    lengths = {"input_sequence_length": prompt, "output_sequence_length": output}
    metadata = {"request_start_ns": start_ns, "benchmark_phase": "profiling", **more}
    metrics = {name: {"value": tokens, "unit": "tokens"} for name, tokens in lengths.items()}
    return {"metadata": metadata, "metrics": metrics, "error": None}


def export(folder: Path, *rows: dict[str, Any]) -> Path:
    path = folder / "profile_export.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_requests_that_aiperf_cancelled_are_not_replayed(tmp_path: Path) -> None:
    cancelled = aiperf(4, 30, 2, was_cancelled=True)
    rows = [aiperf(3, 10, 3), cancelled, aiperf(5, 20, 4, was_cancelled=False)]
    table, report = read(export(tmp_path, *rows))
    assert table.prompt_tokens.tolist() == [10, 20]
    assert "1 request was left out: not answered" in report


def test_requests_recorded_as_they_ended_are_replayed_as_they_were_sent(tmp_path: Path) -> None:
    rows = [aiperf(9_000, 30, 1), aiperf(2_000, 10, 3), aiperf(5_000, 20, 4)]
    table, _ = read(export(tmp_path, *rows))
    assert table.arrival_ns.tolist() == [0, 3_000, 7_000]
    assert table.prompt_tokens.tolist() == [10, 20, 30]
    assert table.output_tokens.tolist() == [3, 4, 1]
