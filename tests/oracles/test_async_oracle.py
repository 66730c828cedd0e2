"""Simulated instances with asynchronous scheduling beside a naive one: every token at the same nanosecond."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_async import Job, Limits, NaiveAsync
from real_parts import simulated

from blis_py.core.config import SchedulerConfig
from blis_py.latency.linear import Linear, LinearCoefficients, LinearCosts
from blis_py.metrics.record import RunRecord
from blis_py.requests.table import Labels, RequestTable

STEP_NS, TOKEN_NS, DECODE_NS = 10_000, 10, 300
PRICES = LinearCoefficients(gpu=LinearCosts(step=STEP_NS, prefill_tokens=TOKEN_NS, decode_seqs=DECODE_NS))
PRIORITY = {"critical": 0, "standard": 1, "batch": 5}


def price(prefill_tokens: int, decodes: int) -> int:
    return STEP_NS + TOKEN_NS * prefill_tokens + DECODE_NS * decodes


def a_case(seed: int) -> tuple[Limits, list[Job]]:
    """Small pools, so that blocks run out; small budgets, so that requests stall."""
    rng = Random(seed)
    size = rng.choice([1, 2, 4, 16])
    limits = Limits(
        blocks=-(-rng.randint(40, 80) // size),
        block_size=size,
        seqs=rng.choice([1, 2, 4, 50]),
        budget=rng.choice([1, 3, 8, 30, 2048]),
        chunk=rng.choice([0, 0, 3]),
        policy=rng.choice(["fcfs", "priority-fcfs", "sjf"]),
        victims=rng.choice(["fcfs", "priority"]),
    )
    jobs, now_ns = [], 0
    for row in range(rng.randint(1, 14)):
        now_ns += rng.choice([0, 0, rng.randrange(3 * STEP_NS), rng.randrange(30 * STEP_NS)])
        prompt, answer = rng.randint(1, 20), rng.randint(1, 18)
        limit = answer if rng.random() < 0.5 else rng.randint(answer, 20)
        jobs.append(Job(row, now_ns, prompt, answer, limit, rng.choice([0, 1, 5])))
    return limits, jobs


def served(limits: Limits, jobs: list[Job], **options: object) -> RunRecord:
    def column(name: str) -> np.ndarray:
        return np.array([getattr(job, name) for job in jobs], dtype=np.int64)

    classes = {priority: name for name, priority in PRIORITY.items()}
    table = RequestTable.build(
        column("arrival_ns"),
        column("prompt"),
        column("answer"),
        max_tokens=column("limit"),
        slo_class=Labels.of([classes[job.priority] for job in jobs]),
    )
    object.__setattr__(table, "ends_by_eos", column("answer") < column("limit"))
    config = SchedulerConfig(
        num_kv_blocks=limits.blocks,
        max_model_len=10_000,
        block_size=limits.block_size,
        max_num_seqs=limits.seqs,
        max_num_batched_tokens=limits.budget,
        long_prefill_token_threshold=limits.chunk,
        scheduler=limits.policy,
        preemption_policy=limits.victims,
        enable_prefix_caching=False,
        async_scheduling=True,
    )
    return simulated(table, scheduler=config, latency=Linear(PRICES), **options)


def assert_alike(seed: int, **options: object) -> NaiveAsync:
    limits, jobs = a_case(seed)
    record = served(limits, jobs, **options)
    naive = NaiveAsync(limits, price)
    naive.serve(jobs)
    assert record.first_token_ns.tolist() == [job.emitted_ns[0] for job in jobs]
    assert record.finish_ns.tolist() == [job.emitted_ns[-1] for job in jobs]
    assert record.preemptions.tolist() == [job.preemptions for job in jobs]
    assert [len(job.emitted_ns) for job in jobs] == [job.answer for job in jobs]
    assert naive.free == limits.blocks
    return naive


@pytest.mark.slow
@settings(max_examples=300)
@given(st.integers(0, 2**32), st.booleans())
def test_every_request_begins_ends_and_is_preempted_as_in_the_naive_one(seed: int, single: bool) -> None:
    assert_alike(seed, single_step=single)


def test_the_cases_contain_what_makes_it_hard() -> None:
    runs = [(a_case(seed), assert_alike(seed)) for seed in range(60)]
    assert sum(naive.discarded for _, naive in runs) > 30
    preempted = []
    for (limits, jobs), _ in runs:
        again = NaiveAsync(limits, price)
        again.serve(jobs)
        preempted.append(sum(job.preemptions for job in jobs))
    assert sum(count > 0 for count in preempted) > 10


@pytest.mark.parametrize(("answer", "limit", "steps"), [(3, 3, 3), (3, 9, 4)])
def test_only_an_end_that_is_not_known_costs_a_forward(answer: int, limit: int, steps: int) -> None:
    naive = NaiveAsync(Limits(99, 4, 4, 99), price)
    naive.serve([Job(0, 0, 10, answer, limit)])
    assert naive.discarded == steps - answer
