"""What a horizon in the middle of a step leaves: tokens of steps that have ended, and of no other."""

from __future__ import annotations

import numpy as np
import pytest
from cluster_runs import Row, linear, table_of
from one_pool import simulate

from blis_py.core.config import SchedulerConfig
from blis_py.metrics.invariants import check

US = 1_000


@pytest.mark.parametrize("overlapped", [False, True])
@pytest.mark.parametrize("single_step", [False, True])
@pytest.mark.parametrize(
    ("horizon_us", "prefill", "decode"),
    [(5, 0, 0), (10, 50, 0), (15, 50, 0), (20, 50, 2), (35, 50, 4), (85, 50, 14), (200, 50, 18)],
)
def test_a_step_in_progress_at_the_horizon_has_computed_nothing(
    overlapped: bool, single_step: bool, horizon_us: int, prefill: int, decode: int
) -> None:
    """Steps of 10 us: two prompts in the first, a token of each in the others."""
    config = SchedulerConfig(num_kv_blocks=400, max_model_len=4096, async_scheduling=overlapped)
    record = simulate(
        table_of([Row(0, 20, 10), Row(0, 30, 10)]),
        scheduler=config,
        latency=linear(10 * US),
        horizon_ns=horizon_us * US,
        single_step=single_step,
    )
    check(record)
    (instance,) = record.instances
    assert (instance.prefill_tokens, instance.decode_tokens) == (prefill, decode)
    assert instance.step_ends.at(np.arange(instance.step_ends.steps)).tolist() == [
        end_us * US for end_us in range(10, min(horizon_us, 100) + 1, 10)
    ]
