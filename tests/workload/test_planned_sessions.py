"""Closed-loop sessions with BLIS semantics do not depend on a first guess of how many are needed."""

from __future__ import annotations

from pathlib import Path

import pytest

import blis_py as blis

SPEC = """
version: "2"
seed: 42
aggregate_rate: 100
num_requests: 1000
clients:
  - id: c
    rate_fraction: 1.0
    arrival: {process: constant}
    input_distribution: {type: constant, params: {value: 100}}
    output_distribution: {type: constant, params: {value: 20}}
    reasoning:
      reason_ratio_distribution: {type: constant, params: {value: 0}}
      multi_turn: {max_rounds: 5, think_time_us: THINK, context_growth: accumulate}
"""


@pytest.mark.parametrize(("think_us", "sessions"), [(0, 200), (60_000_000, 400)])
def test_sessions_that_begin_before_the_last_planned_turn_are_all_there(
    tmp_path: Path, think_us: int, sessions: int
) -> None:
    """Twice the turns are planned and sorted; every session with a turn among the first 1,000 runs."""
    (tmp_path / "spec.yaml").write_text(SPEC.replace("THINK", str(think_us)))
    table = blis.build(model="llama-3.1-8b", workload_spec=str(tmp_path / "spec.yaml"), engine="blis").table
    assert table.session is not None
    assert len(set(table.session.tolist())) == sessions
