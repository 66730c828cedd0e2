"""A measurement is printed as clients of benchmarks print theirs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_observe import WORK, observe, served

from blis_py.observe.bench import bench_figures, bench_lines
from blis_py.observe.driver import MeasuredRequest

MS = 1_000_000


def answered(row: int, ttft_ms: int, tpot_ms: int, tokens: int) -> MeasuredRequest:
    sent = row * 100 * MS
    ends = [sent + (ttft_ms + tpot_ms * number) * MS for number in range(tokens)]
    return MeasuredRequest(row, sent, sent, ends, ends[-1], ("ok", "", ""), 10, tokens)


def failed(row: int) -> MeasuredRequest:
    return MeasuredRequest(row, row, row * 100 * MS, [], row * 100 * MS + MS, ("error", "HTTP 500", ""))


def test_figures_are_those_of_the_answered_requests() -> None:
    figures = bench_figures([answered(0, 20, 5, 11), answered(1, 40, 15, 11), failed(2)])
    assert (figures["completed"], figures["failed"]) == (2, 1)
    assert figures["ttft_ms"] == {"mean": 30.0, "median": 30.0, "p99": pytest.approx(39.8)}
    assert figures["tpot_ms"]["mean"] == 10.0
    assert figures["e2e_ms"]["mean"] == 130.0
    assert figures["duration_s"] == pytest.approx(0.29)
    assert figures["output_throughput"] == pytest.approx(22 / 0.29)
    assert figures["errors"] == {"error: HTTP 500": 1}


def test_the_block_reads_like_that_of_a_bench_client() -> None:
    lines = list(bench_lines(bench_figures([answered(0, 20, 5, 11), failed(1)])))
    assert lines[0] == "============ Serving Benchmark Result ============"
    assert "Successful requests:                    1" in lines
    assert "Mean TTFT (ms):                         20.00" in lines
    assert "Mean TPOT (ms):                         5.00" in lines
    assert "1 x error: HTTP 500" in lines


def test_what_was_not_measured_is_missing_instead_of_zero_or_infinite() -> None:
    nothing = bench_figures([failed(0)])
    assert not {"ttft_ms", "tpot_ms", "itl_ms", "e2e_ms"} & nothing.keys()
    assert "Request throughput (req/s):             0.00" in list(bench_lines(nothing))
    assert bench_figures([])["request_throughput"] is None
    single = bench_figures([answered(0, 20, 5, 1)])
    assert "tpot_ms" not in single
    whole = MeasuredRequest(0, 0, 0, [90 * MS], 90 * MS, ("ok", "", ""), 10, 30)
    assert "tpot_ms" not in bench_figures([whole])
    assert bench_figures([whole], streams=False).keys() >= {"e2e_ms"}
    assert "ttft_ms" not in bench_figures([whole], streams=False)


def test_a_pipe_gets_the_figures_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with served() as (service, _):
        assert observe(service.url, tmp_path / "out", *WORK) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["completed"] == 30
    assert figures["failed"] == 0
    assert figures["total_output_tokens"] > 30
    assert figures["ttft_ms"]["mean"] > 0
