"""The result of a closed-loop benchmark is repeated as the closed loop that it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import blis_py as blis
from blis_py.cli import main
from blis_py.errors import InputError

MODEL = "llama-3.1-8b"
COUNT = 24


def vllm(**more: Any) -> dict[str, Any]:
    starts = [round(0.01 * i, 3) for i in range(COUNT)]
    lists = {"input_lens": [300] * COUNT, "output_lens": [40] * COUNT, "start_times": starts}
    return {"request_throughput": 3.0, "total_input_tokens": 300 * COUNT, **lists, **more}


def most_in_flight(result: blis.Result) -> int:
    frame = result.requests
    starts = [(at, 1) for at in frame["arrival_s"]] + [
        (at + e2e / 1e3, -1) for at, e2e in zip(frame["arrival_s"], frame["e2e_ms"], strict=True)
    ]
    now = most = 0
    for _, change in sorted((round(at, 9), change) for at, change in starts):
        now += change
        most = max(most, now)
    return most


def replayed(path: Path, content: Any, **settings: Any) -> blis.Result:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return blis.replay(path, model=MODEL, **settings)


def test_a_result_of_vllm_is_repeated_with_its_concurrency(tmp_path: Path) -> None:
    run = replayed(tmp_path / "result.json", vllm(max_concurrency=4, request_rate="inf"))
    assert most_in_flight(run) == 4
    assert any("recorded with 4 requests in flight" in note for note in run.notes)


def test_at_the_recorded_times_on_request(tmp_path: Path) -> None:
    run = replayed(tmp_path / "result.json", vllm(max_concurrency=4, request_rate="inf"), as_recorded=True)
    assert run.requests["arrival_s"].tolist() == [round(0.01 * i, 3) for i in range(COUNT)]
    assert not any("in flight" in note for note in run.notes)


def test_converting_it_keeps_the_recorded_times(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(json.dumps(vllm(max_concurrency=4, request_rate="inf")))
    assert (
        main(["convert", str(tmp_path / "result.json"), str(tmp_path / "trace.csv"), "--to", "tracev2"]) == 0
    )
    arrivals = pd.read_csv(tmp_path / "trace.csv")["arrival_time_us"]
    assert arrivals.tolist() == [10_000 * i for i in range(COUNT)]


def test_a_rate_or_a_concurrency_of_ones_own_goes_before_it(tmp_path: Path) -> None:
    content = vllm(max_concurrency=4, request_rate="inf")
    assert most_in_flight(replayed(tmp_path / "a.json", content, concurrency=2)) == 2
    paced = replayed(tmp_path / "b.json", content, rate=2.0)
    assert paced.requests["arrival_s"].max() > 10


def test_without_a_limit_the_recorded_times_are_kept(tmp_path: Path) -> None:
    run = replayed(tmp_path / "result.json", vllm(max_concurrency=None))
    assert run.requests["arrival_s"].max() == pytest.approx(0.23)


def test_appended_results_of_vllm_are_runs_of_a_file(tmp_path: Path) -> None:
    lines = "\n".join(json.dumps(vllm(max_concurrency=limit)) for limit in (2, 6))
    (tmp_path / "runs.jsonl").write_text(lines + "\n")
    run = blis.replay(f"{tmp_path / 'runs.jsonl'}#1", model=MODEL)
    assert most_in_flight(run) == 6


@pytest.mark.parametrize(
    ("strategy", "limit"),
    [({"type_": "synchronous"}, 1), ({"type_": "concurrent", "streams": 3}, 3)],
)
def test_strategies_of_guidellm(tmp_path: Path, strategy: dict[str, Any], limit: int) -> None:
    requests = [{"start_time": 5.0 + i, "prompt_tokens": 200, "output_tokens": 20} for i in range(8)]
    document = {"benchmarks": [{"args": {"strategy": strategy}, "requests": {"successful": requests}}]}
    assert most_in_flight(replayed(tmp_path / "benchmarks.json", document)) == limit


def test_the_concurrency_of_aiperf_stands_beside_its_requests(tmp_path: Path) -> None:
    (tmp_path / "profile_export_aiperf.json").write_text(
        json.dumps({"input_config": {"loadgen": {"concurrency": 2}}})
    )
    rows = [
        {
            "metadata": {"request_start_ns": 10**9 + i},
            "metrics": {"input_sequence_length": {"value": 99}, "output_sequence_length": {"value": 9}},
        }
        for i in range(6)
    ]
    lines = "\n".join(map(json.dumps, rows)) + "\n"
    assert most_in_flight(replayed(tmp_path / "profile_export.jsonl", lines)) == 2


def test_a_data_frame_is_a_trace() -> None:
    frame = pd.DataFrame({"arrival_s": [0.0, 0.5, 2.0], "input_tokens": [100, 200, 300], "output_tokens": 5})
    run = blis.run(trace=frame, model=MODEL)
    assert run.requests["arrival_s"].tolist() == [0.0, 0.5, 2.0]
    assert run.requests["prompt_tokens"].tolist() == [100, 200, 300]


def test_a_data_frame_that_is_no_trace_is_named_in_the_error() -> None:
    with pytest.raises(InputError, match=r"DataFrame.csv: not a known trace format"):
        blis.run(trace=pd.DataFrame({"a": [1]}), model=MODEL)
