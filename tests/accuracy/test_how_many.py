"""How many instances: the answer that started it, which used to be off by a factor and to sound certain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import blis_py as blis
from blis_py.sensitivity.disagreement import disagreements


@pytest.fixture
def azure_at_four_times_its_rate(shared_data: Path) -> dict[str, Any]:
    trace = shared_data / "azure_2023" / "azure2023_conv.csv"
    return {"trace": trace, "time_scale": 0.25, "model": "llama-3.1-70b", "tp": 4, "slo": ("ttft.p99=500ms",)}


@pytest.mark.slow
def test_the_default_engine_needs_between_five_and_eight_instances(
    azure_at_four_times_its_rate: dict[str, Any],
) -> None:
    met = {
        count: blis.run(**azure_at_four_times_its_rate, num_instances=count).summary["slo"][0]["met"]
        for count in (4, 8)
    }
    assert met == {4: False, 8: True}


@pytest.mark.slow
def test_where_the_latency_models_differ_in_the_answer_the_run_reports_it(
    azure_at_four_times_its_rate: dict[str, Any],
) -> None:
    simulation = blis.build(**azure_at_four_times_its_rate, num_instances=7)
    result = simulation.run(record_steps=False)
    assert result.summary["slo"][0]["met"]
    (said,) = disagreements(simulation, result)
    assert "roofline says otherwise" in said
    assert "ttft.p99=500ms would be missed" in said
