"""The scheduler against a deliberately naive one, step by step."""

from __future__ import annotations

from blis_py.core.config import SchedulerConfig
from hypothesis import example, given, settings
from side_by_side import Arrival, SideBySide, cases


@settings(max_examples=300)
@given(cases())
def test_every_step_is_the_one_a_naive_scheduler_plans(case: tuple[SchedulerConfig, list[Arrival]]) -> None:
    config, workload = case
    SideBySide(config).run(workload)
