"""Real vLLM runs, predicted from the kernels of the same GPU and nothing of the run itself."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks" / "accuracy"))


@pytest.fixture(scope="module")
def runs(shared_data: Path) -> Path:
    return shared_data / "vllm_runs"


@pytest.mark.parametrize("gpu", ["RTX4090", "RTXPRO6000"])
def test_an_overloaded_run_is_predicted_within_two_percent_in_the_mean_and_three_in_the_tail(
    runs: Path, gpu: str
) -> None:
    from vllm_runs import errors

    for name, error in errors(runs, gpu).items():
        assert abs(error.mean) < 0.02, name
        assert abs(error.p99) < 0.03, name
