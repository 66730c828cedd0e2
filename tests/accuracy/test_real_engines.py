"""Closed loops of real servers, and the committed table of all truths."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks" / "accuracy"))


@pytest.mark.slow
def test_fp8_and_16_bit_servers_are_predicted_on_three_gpus(shared_data: Path) -> None:
    from real_engines import closed_loops, mean_error
    from silicon import points

    wanted = {
        ("llama-3.1-70b", "FP8", "h100", 4): 12,
        ("llama-3.1-70b", "FP8", "h200", 1): 12,
        ("llama-3.1-70b", "FP8", "b200", 1): 12,
        ("qwen3-32b", "16-bit", "h100", 4): 12,
    }
    found = points(shared_data)
    some = [next(p for p in found if p.group == group and p.concurrency == 16) for group in wanted]
    figures = [f for f in closed_loops(shared_data, False, some) if f.metric == "TPOT"]
    assert len(figures) == 12
    for prices in ("trained", "trained, new model", "trained, new GPU"):
        errors = [f for f in figures if f.prices == prices]
        assert mean_error(errors) < 0.08, prices


def test_every_dense_point_of_vllm_can_be_expressed(shared_data: Path) -> None:
    from silicon import points

    found = points(shared_data)
    assert len(found) == 120
    assert {p.gpu for p in found} == {"h100", "h200", "b200"}


def test_points_that_ask_for_more_than_all_of_the_time_contradict_the_price_of_a_prompt(
    shared_data: Path,
) -> None:
    from silicon import points, simulation

    found = {p.id: p for p in points(shared_data)}
    impossible = next(p for p in found.values() if (p.prompt_tokens, p.output_tokens, p.tp) == (2000, 100, 1))
    usual = next(p for p in found.values() if p.group == ("llama-3.1-70b", "FP8", "h100", 4))
    assert impossible.prompts_busy(simulation(impossible).latency) > 1.5
    assert usual.prompts_busy(simulation(usual).latency) < 0.7


@pytest.fixture(scope="module")
def committed() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(
        (ROOT / "benchmarks" / "results" / "real_engines.json").read_text()
    )
    return found


@pytest.mark.parametrize(
    ("truth", "prices", "metric", "most"),
    [
        ("five H100 runs", "trained, run left out", "TTFT", 0.05),
        ("five H100 runs", "trained, run left out", "E2E", 0.025),
        ("two RTX runs", "kernel-tables", "E2E", 0.01),
        ("closed loops", "trained", "TPOT", 0.07),
        ("closed loops", "trained, new model", "TPOT", 0.07),
        ("closed loops", "trained, new GPU", "TPOT", 0.07),
        ("closed loops", "trained", "TTFT", 0.27),
    ],
)
def test_the_committed_errors_are_as_small_as_they_were(
    committed: list[dict[str, Any]], truth: str, prices: str, metric: str, most: float
) -> None:
    errors = [
        abs(row["predicted"] / row["measured"] - 1)
        for row in committed
        if (row["truth"], row["prices"], row["metric"], row["statistic"]) == (truth, prices, metric, "mean")
        and row["consistent"]
    ]
    assert 0 < np.mean(errors) < most
