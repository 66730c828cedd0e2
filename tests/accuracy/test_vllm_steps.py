"""Real vLLM decode steps on H100s, predicted from operator tables measured on an H100."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks" / "accuracy"))


@pytest.mark.slow
@pytest.mark.parametrize(("run", "mape"), [("llama-2-70b-tp4", 0.08), ("codellama-34b-tp2", 0.04)])
def test_operators_add_up_to_the_steps_of_a_large_model(shared_data: Path, run: str, mape: float) -> None:
    from vllm_steps import models, relative_errors

    error = relative_errors(shared_data, run, models(shared_data, run)["kernel-tables"])
    assert len(error) > 200
    assert np.abs(error).mean() < mape
