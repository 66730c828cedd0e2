"""What clients measured, read from whatever they wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from blis_py.api import run
from blis_py.calibrate.read_times import is_client_run, read_token_times
from blis_py.errors import InputError


def bench(path: Path, **changes: Any) -> Path:
    """A result of `vllm bench serve --save-detailed`: three requests, one of which failed."""
    document = {
        "max_concurrency": 2,
        "mean_ttft_ms": 150.0,
        "input_lens": [100, 200, 300],
        "output_lens": [3, 2, 0],
        "ttfts": [0.1, 0.2, 0.0],
        "itls": [[0.01, 0.02], [0.03], []],
        "start_times": [1001.0, 1000.0, 1002.0],
        "errors": ["", "", "refused"],
        **changes,
    }
    path.write_text(json.dumps(document))
    return path


def test_a_benchmark_of_vllm_states_every_token_and_the_concurrency(tmp_path: Path) -> None:
    times = read_token_times(bench(tmp_path / "result.json"))
    assert times.sent_s.tolist() == [0.0, 1.0]
    assert times.prompt_tokens is not None
    assert times.prompt_tokens.tolist() == [200, 100]
    assert times.ttft_s.tolist() == [0.2, 0.1]
    assert times.e2e_s.tolist() == pytest.approx([0.23, 0.13])
    assert times.gaps is not None
    assert times.gaps.values.tolist() == [0.03, 0.01, 0.02]
    assert (times.concurrency, times.incomplete) == (2, 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ttfts": None}, "save it with --save-result --save-detailed"),
        ({"start_times": None}, "writes when requests started"),
        ({"ttfts": [0.1]}, "lists of different lengths"),
        ({"ttfts": [0.1, "soon", 0.0]}, "must be a number"),
        ({"ttfts": [0.1, -1, 0.0]}, "must be a number of at least 0"),
        ({"errors": ["x", "y", "z"]}, "no request was answered"),
        ({"errors": ["x"]}, "one for each request"),
        ({"itls": [[0.01], 7, []]}, "request 1: itls: must be a list of times"),
        ({"output_lens": ["two", 2, 0]}, "request 0: output_lens: must be a number"),
        ({"max_concurrency": "many"}, "max_concurrency: must be a number"),
    ],
)
def test_a_result_without_what_is_needed_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        read_token_times(bench(tmp_path / "result.json", **changes))


def test_guidellm_states_starts_ends_and_first_tokens(tmp_path: Path) -> None:
    request = {
        "request_start_time": 50.0,
        "request_end_time": 51.5,
        "time_to_first_token_ms": 300.0,
        "prompt_tokens": 100,
        "output_tokens": 7,
    }
    later = {**request, "request_start_time": 49.0, "request_end_time": 49.9}
    document = {"benchmarks": [{"requests": {"successful": [request, later], "errored": [{}]}}]}
    (tmp_path / "benchmarks.json").write_text(json.dumps(document))
    times = read_token_times(tmp_path / "benchmarks.json")
    assert times.sent_s.tolist() == [0.0, 1.0]
    assert times.e2e_s.tolist() == pytest.approx([0.9, 1.5])
    assert times.ttft_s.tolist() == pytest.approx([0.3, 0.3])
    assert times.incomplete == 1


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("arrival_s,input_tokens,output_tokens,ttft_ms,e2e_ms", "2,100,5,250,650"),
        ("arrival_us,prompt_tokens,output_tokens,ttft_s,e2e_s", "2000000,100,5,0.25,0.65"),
        ("request_id,start_time_s,input_len,output_len,ttft_ms,tpot_ms", "7,2,100,5,250,100"),
    ],
)
def test_a_table_is_understood_by_its_columns_and_their_units(tmp_path: Path, header: str, row: str) -> None:
    path = tmp_path / "table.csv"
    path.write_text(f"{header}\n{row}\n")
    assert is_client_run(path)
    times = read_token_times(path)
    assert times.prompt_tokens is not None
    assert (times.prompt_tokens[0], times.output_tokens[0]) == (100, 5)
    assert (times.ttft_s[0], times.e2e_s[0]) == pytest.approx((0.25, 0.65))


def test_prompts_of_the_same_number_are_the_same_and_rows_without_latencies_are_counted(
    tmp_path: Path,
) -> None:
    path = tmp_path / "table.csv"
    path.write_text(
        "arrival_s,input_tokens,prompt_slot,output_tokens,ttft_ms,e2e_ms\n0,9,4,5,1,2\n1,9,4,5,1,2\n2,9,1,5,,\n"
    )
    times = read_token_times(path)
    assert times.same_prompt is not None
    assert times.same_prompt.tolist() == [4, 4]
    assert times.incomplete == 1


def test_our_own_requests_csv_gives_the_latencies_of_the_trace_beside_it(tmp_path: Path) -> None:
    run(model="llama-3.1-8b", num_requests=20, rate=5.0).save(tmp_path / "out", plots=False)
    table, trace = (read_token_times(tmp_path / "out" / name) for name in ("requests.csv", "trace.csv"))
    assert table.ttft_s == pytest.approx(trace.ttft_s, abs=2e-6)
    assert table.e2e_s == pytest.approx(trace.e2e_s, abs=2e-6)
    assert table.output_tokens.tolist() == trace.output_tokens.tolist()


@pytest.mark.parametrize(
    ("header", "row", "message"),
    [
        ("arrival_s,output_tokens,ttft_ms", "0,5,1", "the end of a request"),
        ("output_tokens,ttft_ms,e2e_ms", "5,1,2", "when it was sent"),
        ("arrival_s,output_tokens,ttft_ms,e2e_ms", "0,5,9,2", "ended before its first token"),
        ("arrival_s,output_tokens,ttft_ms,e2e_ms", "0,5,fast,2", "table.csv:2: ttft_ms: must be a number"),
    ],
)
def test_a_table_that_makes_no_sense_is_refused(tmp_path: Path, header: str, row: str, message: str) -> None:
    path = tmp_path / "table.csv"
    path.write_text(f"{header}\n{row}\n")
    with pytest.raises(InputError, match=message):
        read_token_times(path)
