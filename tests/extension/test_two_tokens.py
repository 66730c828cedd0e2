"""Two tokens a step for some requests, see `two_tokens`."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from small_runs import US, random_requests, requests, same
from two_tokens import example, run

from blis_py.metrics.itl import TokenGaps
from blis_py.metrics.record import RunRecord


def gaps_us(record: RunRecord, row: int) -> list[int]:
    gaps_ns, _ = TokenGaps(record).of_each(np.array([row]))
    return (gaps_ns // US).tolist()


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_times_are_those_worked_out_by_hand(async_scheduling: bool) -> None:
    record = example(async_scheduling)
    # One step for both prompts: 10 + 20 + 10 us.
    assert (record.first_token_ns // US).tolist() == [40, 40]
    # Two steps of 10 + 2 + 1 us bring 2 and 1 tokens each; then two of 10 + 1 us.
    assert (record.finish_ns // US).tolist() == [66, 88]
    assert gaps_us(record, 0) == [13, 0, 13, 0]
    assert gaps_us(record, 1) == [13, 13, 11, 11]
    (one,) = record.instances
    assert (one.steps, one.prefill_tokens, one.decode_tokens) == (5, 30, 4 + 4)


def test_an_odd_number_of_tokens_is_left_over_for_a_step_of_one() -> None:
    record = run(requests([0], [20], [4]))
    assert (record.finish_ns // US).tolist() == [30 + 12 + 11]
    assert gaps_us(record, 0) == [12, 0, 11]


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("blocks", [32, 1000])
def test_tokens_are_conserved_and_a_jump_is_its_steps(async_scheduling: bool, blocks: int) -> None:
    rng, preemptions = Random(blocks), 0
    for _ in range(8):
        table, settings = (
            random_requests(rng),
            {"async_scheduling": async_scheduling, "num_kv_blocks": blocks},
        )
        jump, single = (run(table, 2, settings, single_step=single) for single in (False, True))
        same(jump, single)
        preemptions += int(jump.preemptions.sum())
    assert (preemptions > 0) == (blocks == 32)


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_a_step_that_the_end_of_the_run_cuts_is_not_counted(async_scheduling: bool) -> None:
    (one,) = example(async_scheduling, horizon_ns=60 * US).instances
    assert (one.steps, one.prefill_tokens, one.decode_tokens) == (2, 30, 2 + 1)
