"""A step says how many of the rows that emit a token a grammar constrains."""

from __future__ import annotations

import random
from dataclasses import asdict

import pytest

from blis_py.core.config import SchedulerConfig
from blis_py.core.request import Request
from blis_py.core.scheduler import Scheduler

TIGHT = SchedulerConfig(num_kv_blocks=30, max_model_len=100, block_size=4, max_num_batched_tokens=24)


def request(rng: random.Random, number: int) -> Request:
    prompt, output = rng.randrange(1, 50), rng.randrange(1, 30)
    return Request(f"{number}", 0, prompt, output, output, row=number, constrained=rng.random() < 0.5)


@pytest.mark.parametrize("overlapped", [False, True])
@pytest.mark.parametrize("former", ["running-first", "prefill-first"])
def test_they_are_the_constrained_decodes_and_the_constrained_prompts_that_end(
    overlapped: bool, former: str
) -> None:
    rng = random.Random(former)
    config = SchedulerConfig(
        **asdict(TIGHT)
        | {
            "async_scheduling": overlapped,
            "batch_former": former,
        }
    )
    scheduler, flights, seen = Scheduler(config), [], set()
    for number in range(60):
        scheduler.add(request(rng, number))
        for _ in range(rng.randrange(12)):
            step = scheduler.schedule(0)
            if step is not None:
                whole = [r for r, new in step.prefills if r.computed + new == r.num_tokens]
                assert step.features.constrained_rows == sum(
                    r.constrained for r in (*scheduler.decoding, *whole)
                )
                seen.add(step.features.constrained_rows)
                scheduler.advance(step)
                flights.append(step)
            if flights and (len(flights) > overlapped or step is None):
                scheduler.resolve(flights.pop(0))
    assert scheduler.counters.preemptions > 5
    assert len(seen) > 3


def test_alike_steps_have_alike_rows() -> None:
    scheduler = Scheduler(SchedulerConfig(num_kv_blocks=1000, max_model_len=1000))
    for number in range(4):
        scheduler.add(Request(f"{number}", 0, 10, 50, 50, constrained=number < 3))
    for _ in range(2):
        step = scheduler.schedule(0)
        assert step is not None
        scheduler.finish(step)
        assert step.features.constrained_rows == 3
    assert step.features.after(7).constrained_rows == 3
