"""Real runs of an engine that schedules asynchronously, predicted with nothing of the runs themselves."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks" / "accuracy"))


@pytest.mark.parametrize("name", ["llama-2-7b-tp1-roleplay", "codellama-34b-tp2-general"])
def test_planning_a_step_ahead_halves_the_error_of_the_first_token_and_leaves_the_rest(
    shared_data: Path, name: str
) -> None:
    from h100_runs import errors, predict, read

    run = read(shared_data / "vllm_h100_runs", name)
    ahead, in_turn = (errors(run, predict(run, async_scheduling=on)) for on in (True, False))
    assert abs(ahead["TTFT mean"]) < 0.55 * abs(in_turn["TTFT mean"])
    assert abs(ahead["E2E mean"] - in_turn["E2E mean"]) < 0.01
    assert max(abs(ahead["E2E mean"]), abs(ahead["TPOT mean"])) < 0.04
