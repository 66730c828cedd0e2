"""The scheduler against a deliberately naive one, step by step."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from side_by_side import Arrival, SideBySide, cases, radix_cases

from blis_py.core.config import SchedulerConfig


@pytest.mark.slow
@settings(max_examples=150)
@given(cases())
def test_every_step_is_the_one_a_naive_scheduler_plans(case: tuple[SchedulerConfig, list[Arrival]]) -> None:
    config, workload = case
    SideBySide(config).run(workload)


@pytest.mark.slow
@settings(max_examples=80)
@given(cases())
def test_steps_passed_in_one_go_are_those_the_naive_scheduler_plans_one_by_one(
    case: tuple[SchedulerConfig, list[Arrival]],
) -> None:
    config, workload = case
    SideBySide(config, jump=True).run(workload)


@pytest.mark.slow
@settings(max_examples=100)
@given(radix_cases(), st.booleans())
def test_with_a_radix_cache_every_step_is_the_one_a_naive_scheduler_plans(
    case: tuple[SchedulerConfig, list[Arrival]], jump: bool
) -> None:
    config, workload = case
    SideBySide(config, jump).run(workload)


def test_a_prefix_computed_twice_is_planned_as_the_naive_scheduler_does() -> None:
    shared = (("system prompt", 6),)
    workload = [
        Arrival(arrival_ns=0, prompt_tokens=2, output_tokens=1, runs=(("system prompt", 2),)),
        Arrival(arrival_ns=0, prompt_tokens=2, output_tokens=1, runs=(("system prompt", 2),)),
        Arrival(arrival_ns=0, prompt_tokens=8, output_tokens=2),
        Arrival(arrival_ns=1, prompt_tokens=6, output_tokens=1, runs=shared),
    ]
    SideBySide(SchedulerConfig(num_kv_blocks=6, max_model_len=1000, block_size=2)).run(workload)


def test_chunks_of_one_prompt_computed_by_two_requests_are_planned_as_the_naive_scheduler_does() -> None:
    workload = [
        Arrival(arrival_ns=0, prompt_tokens=4, output_tokens=3),
        Arrival(arrival_ns=0, prompt_tokens=13, output_tokens=1, runs=(("document", 13),)),
        Arrival(arrival_ns=0, prompt_tokens=5, output_tokens=1, runs=(("document", 5),)),
    ]
    config = SchedulerConfig(
        num_kv_blocks=13, max_model_len=1000, block_size=1, long_prefill_token_threshold=3
    )
    SideBySide(config).run(workload)


def test_prefill_first_under_pressure_is_planned_as_the_naive_scheduler_does() -> None:
    config = SchedulerConfig(
        num_kv_blocks=7, max_model_len=1000, block_size=2, batch_former="prefill-first",
        preemption_policy="priority", max_num_batched_tokens=5,
    )  # fmt: skip
    workload = [
        Arrival(arrival_ns=10 * i, prompt_tokens=3 + i % 5, output_tokens=6, priority=(5, 0, 1)[i % 3])
        for i in range(8)
    ]
    SideBySide(config).run(workload)


def prefill_first(blocks: int, **settings: Any) -> SchedulerConfig:
    return SchedulerConfig(num_kv_blocks=blocks, max_model_len=1000, batch_former="prefill-first", **settings)


def arriving(*requests: tuple[int, int], urgency: tuple[int, ...] = ()) -> list[Arrival]:
    """(prompt, output) of requests that come together."""
    return [
        Arrival(0, prompt, output, priority=urgency[i] if urgency else 1)
        for i, (prompt, output) in enumerate(requests)
    ]


@pytest.mark.parametrize(
    ("config", "workload"),
    [
        pytest.param(
            prefill_first(
                5, block_size=2, max_num_batched_tokens=5, long_prefill_token_threshold=3, max_num_seqs=3
            ),
            arriving((1, 1), (1, 1), (7, 1), (1, 2), (2, 1)),
            id="a decode behind a prompt that goes on in chunks",
        ),
        pytest.param(
            prefill_first(
                4, block_size=1, max_num_seqs=3, max_num_batched_tokens=3, preemption_policy="priority"
            ),
            arriving((1, 1), (1, 1), (1, 1), (1, 1), (1, 2), (1, 2), (1, 1), urgency=(0, 0, 0, 0, 1, 0, 0)),
            id="a decode gives way, and those admitted after it stay",
        ),
        pytest.param(
            prefill_first(7, block_size=1, preemption_policy="priority"),
            [Arrival(0, 1, 5), Arrival(10, 2, 1, priority=5), Arrival(10, 2, 1), Arrival(10, 2, 1)],
            id="a prompt gives way with those admitted after it, who keep their order",
        ),
    ],
)
def test_corners_of_prefill_first_are_planned_as_the_naive_scheduler_does(
    config: SchedulerConfig, workload: list[Arrival]
) -> None:
    SideBySide(config).run(workload)
