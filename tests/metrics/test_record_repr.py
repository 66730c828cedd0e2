"""What a notebook shows of a run."""

from __future__ import annotations

from blis_py.api import run


def test_a_run_and_its_parts_are_shown_in_a_line() -> None:
    result = run(model="qwen3-14b", num_requests=2000, rate=100, num_instances=2, output_tokens=30)
    assert repr(result.record).startswith("RunRecord(2,000 completed; ")
    assert repr(result.record).endswith("instances: 2)")
    for part in (result.record, *result.record.instances, result.simulation, result.simulation.table):
        assert len(repr(part)) < 300
        assert "array" not in repr(part)
        assert "\n" not in repr(part)
