"""GPUs by AMD: which points teach and which judge, and what a run on them says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import blis_py as blis

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks" / "accuracy"))

import amd
from outcomes import Outcome
from points import Point


@pytest.fixture(scope="module")
def points(shared_data: Path) -> list[Point]:
    return amd.amd_points(shared_data)


def judging(points: list[Point]) -> list[Point]:
    taught = amd.teaching(points)
    return [point for point in points if point.precision == "fp8" and point not in taught]


def test_each_gpu_and_length_stands_on_both_sides(points: list[Point]) -> None:
    taught, judged = amd.teaching(points), judging(points)
    assert (len(taught), len(judged)) == (40, 35)
    for side in (taught, judged):
        assert {point.gpu for point in side} == {"mi300x", "mi325x", "mi355x"}
        assert {point.prompt_tokens for point in side} == {1024, 8192}
        assert {point.output_tokens for point in side} == {1024, 8192}


@pytest.mark.parametrize("gpu", ["mi300x", "mi325x", "mi355x"])
def test_points_that_judge_have_their_time_a_token_within_a_fifth(points: list[Point], gpu: str) -> None:
    small = [point for point in judging(points) if point.gpu == gpu and point.concurrency <= 16]
    assert len(small) >= 3
    for point in small[:2]:
        assert point.predict()["tpot.mean"] == pytest.approx(point.measured["tpot.mean"], rel=0.2)


def test_the_page_has_a_table_of_those_that_judge(points: list[Point]) -> None:
    lines = amd.section([Outcome(point, {"ttft.mean": 0.1, "tpot.mean": -0.1}) for point in points])
    starts = [line.partition(" | ")[0] for line in lines]
    assert {"| all, judged", "| mi300x, judged", "| mi355x, judged", "| all, taught"} <= set(starts)


@pytest.mark.parametrize(
    ("engine", "model", "tp", "validated"),
    [
        ("sglang", "deepseek-r1", 8, True),
        ("vllm", "llama-3.1-70b", 4, False),
        ("vllm", "deepseek-r1", 8, False),
        ("sglang", "qwen3-32b", 1, False),
    ],
)
def test_a_run_says_where_no_server_on_such_gpus_was_learned_on(
    engine: str, model: str, tp: int, validated: bool
) -> None:
    run = blis.build(engine=engine, model=model, gpu="mi300x", tp=tp, num_requests=4, rate=1)
    assert ("not validated for servers on the MI300X" in run.latency.beyond(0)) == (not validated)
