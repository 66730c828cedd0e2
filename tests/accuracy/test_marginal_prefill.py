"""What further tokens of a prompt take, of the measured operating points that differ in nothing else."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks" / "accuracy"))

import marginal_prefill
from points import Point


def priced(
    prompt: int, concurrency: int, ttft_ms: float, predicted_ms: float, output: int = 1024
) -> tuple[Point, float]:
    point = Point(
        *("id", "silicon", "vllm", "0.19.0", "qwen3-32b", "bf16", "h100", 1, 1, 1),
        *(prompt, output, concurrency, {"ttft.mean": ttft_ms, "tpot.mean": 10.0}),
    )
    return point, predicted_ms / ttft_ms - 1.0


def errors(*points: tuple[Point, float]) -> list[float]:
    return [pair.error for pair in marginal_prefill.pairs(points)]


def test_what_both_lengths_have_in_common_drops_out() -> None:
    assert errors(priced(1024, 4, 100.0, 140.0), priced(8192, 4, 300.0, 360.0)) == pytest.approx([0.1])


def test_the_longest_and_the_shortest_prompts_at_the_lowest_concurrency_count() -> None:
    lowest = priced(1024, 2, 100.0, 100.0), priced(4096, 2, 150.0, 0.0), priced(8192, 2, 200.0, 150.0)
    assert errors(*lowest, priced(1024, 4, 100.0, 0.0), priced(8192, 4, 300.0, 0.0)) == pytest.approx([-0.5])


def test_repeated_runs_count_with_their_mean() -> None:
    short = priced(1024, 4, 90.0, 100.0), priced(1024, 4, 110.0, 100.0)
    assert errors(*short, priced(8192, 4, 200.0, 220.0)) == pytest.approx([0.2])


def test_a_difference_within_what_repeated_runs_differ_by_is_not_sure() -> None:
    repeated = priced(1024, 4, 90.0, 100.0), priced(1024, 4, 110.0, 100.0)
    found = [
        pair.sure
        for long_ms in (110.0, 200.0)
        for pair in marginal_prefill.pairs((*repeated, priced(8192, 4, long_ms, 100.0)))
    ]
    assert found == [False, True]


def test_other_loads_are_no_pair() -> None:
    short = priced(1024, 4, 100.0, 100.0)
    assert not errors(short, priced(8192, 4, 200.0, 200.0, output=8192)), "other answers"
    assert not errors(short, priced(8192, 4, 90.0, 200.0)), "longer prompts that took less"
    assert not errors(priced(1024, 8, 1.0, 1.0), priced(8192, 8, 2.0, 2.0)), "too many in flight"


def test_the_table_has_a_row_for_all_and_for_each_engine() -> None:
    lines = marginal_prefill.table([priced(1024, 4, 100.0, 140.0), priced(8192, 4, 300.0, 360.0)])
    figures = "1 | 10.0 | +10.0 | 100 |"
    names = ["all", "beyond twice the standard error", "vllm"]
    assert lines[2:] == [f"| {name} | {figures}" for name in names]


def test_servers_whose_prompts_wait_by_a_flag_and_cold_ones_are_no_pair_of_others() -> None:
    both = priced(1024, 4, 100.0, 140.0), priced(8192, 4, 300.0, 360.0)
    (short, error), long = ((replace(each, engine="trtllm", version=""), off) for each, off in both)
    waiting = replace(short, flags={"other_flags": "batch_wait_timeout_iters=20"}), error
    assert not errors(waiting, long)
    assert len(errors(waiting, (replace(long[0], flags=waiting[0].flags), long[1]))) == 1
    latent = {"engine": "sglang", "gpu": "b200", "model": "deepseek-ai/DeepSeek-R1", "precision": "fp8"}
    pair = [
        (replace(point, **latent, cold=cold), 0.0) for point in (short, long[0]) for cold in (False, True)
    ]
    assert len(errors(*pair[::2])) == 1
    assert not errors(*pair[1::2])
