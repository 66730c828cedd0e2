"""Clients that give up while their requests run on to the next output."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from cluster_runs import Row, Run, differences

from blis_py.core.config import SchedulerConfig
from blis_py.metrics.invariants import check
from blis_py.metrics.record import Outcome

US = 1000


def config(**values: Any) -> SchedulerConfig:
    settings: dict[str, Any] = {
        "num_kv_blocks": 60,
        "max_model_len": 400,
        "block_size": 4,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 16,
        "batch_former": "prefill-only",
        "admission_rule": "new-token-ratio",
        "preemption_policy": "fewest-tokens",
        "prefix_cache": "radix",
        "radix_eviction": "leaves-to-fit",
        "aborts_at": "output-or-chunk",
    }
    return SchedulerConfig(**{**settings, **values})


def test_a_place_is_free_one_step_after_the_boundary_and_the_client_sees_no_more() -> None:
    rows = [Row(0, 1, 50, 50, patience_us=33), Row(1, 1, 1, 1)]
    record = Run(rows, config(max_num_seqs=1)).record()
    check(record)
    assert record.outcome.tolist() == [Outcome.TIMED_OUT, Outcome.COMPLETED]
    assert record.finish_ns.tolist() == [33 * US, 60 * US]
    assert record.emitted_tokens.tolist() == [3, 1]
    assert record.scheduled_ns.tolist() == [0, 50 * US]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_steps_at_once_are_single_steps_with_timeouts(asynchronous: bool) -> None:
    rng = Random(7)
    withdrawn = 0
    for _ in range(40):
        rows = [
            Row(
                arrival_us=rng.randint(0, 400),
                prompt=rng.randint(1, 40),
                output=(output := rng.randint(1, 60)),
                limit=output,
                patience_us=rng.choice([-1, 0, 15, 130, 300]),
            )
            for _ in range(rng.randint(1, 10))
        ]
        late = asynchronous and rng.random() < 0.5
        rule = rng.choice(["output", "output-or-chunk"])
        run = Run(
            rows,
            config(async_scheduling=asynchronous, late_length_stops=late, aborts_at=rule),
            latency=rng.choice(["constant", "linear"]),
            options={"num_instances": rng.choice([1, 2])},
            eos_share=rng.choice([0.0, 0.5]),
        )
        skipping, single = run.record(), run.record(single_step=True)
        check(skipping)
        assert differences(skipping, single) == []
        withdrawn += int((skipping.outcome == Outcome.TIMED_OUT).sum())
    assert withdrawn > 30
