"""A step says how many waiting requests were looked up in the prefix cache to plan it."""

from __future__ import annotations

import pytest

from blis_py.core.config import SchedulerConfig
from blis_py.core.request import Request
from blis_py.core.scheduler import Scheduler


def scheduler(waiting: int, **settings: object) -> Scheduler:
    """So many requests wait, each of which fits a block with its answer."""
    limits = {"num_kv_blocks": 100, "max_model_len": 512, "max_num_batched_tokens": 512}
    core = Scheduler(SchedulerConfig(**limits | settings))  # type: ignore[arg-type]
    for number in range(waiting):
        core.add(Request(f"{number}", number, 8, 8, 8))
    return core


def scanned(core: Scheduler, steps: int, now_ns: int = 0) -> list[int]:
    found = []
    for _ in range(steps):
        step = core.schedule(now_ns)
        assert step is not None
        found.append(step.features.scanned_requests)
        core.finish(step)
    return found


@pytest.mark.parametrize("policy", ["lpm", "hrrn"])
def test_all_queued_requests_are_looked_up_for_each_admission(policy: str) -> None:
    """Five are looked up for the first, four for the second, and so on; then none waits."""
    assert scanned(scheduler(5, scheduler=policy), 3) == [5 + 4 + 3 + 2 + 1, 0, 0]


def test_a_request_without_room_is_looked_up_at_every_step() -> None:
    """Two of five run; the third has to wait, and is looked for among three at every step."""
    assert scanned(scheduler(5, scheduler="lpm", num_kv_blocks=2), 5) == [5 + 4 + 3, 3, 3, 3, 3]


def test_without_a_free_place_no_request_is_looked_up() -> None:
    assert scanned(scheduler(5, scheduler="lpm", max_num_seqs=2), 3) == [5 + 4, 0, 0]


@pytest.mark.parametrize(
    "settings",
    [{"scheduler": "fcfs"}, {"scheduler": "sjf"}, {"scheduler": "lpm", "lpm_max_queue": 3}],
    ids=["fcfs", "sjf", "a long queue"],
)
def test_an_order_that_does_not_depend_on_the_cache_looks_no_request_up(settings: dict[str, object]) -> None:
    assert scanned(scheduler(6, num_kv_blocks=2, **settings), 2) == [0, 0]


def test_a_request_that_has_waited_too_long_is_not_looked_up() -> None:
    core = scheduler(3, scheduler="lpm", fairness_ms=1.0)
    assert scanned(core, 1, now_ns=2_000_000) == [0]


def test_alike_steps_ask_alike() -> None:
    core = scheduler(5, scheduler="lpm", num_kv_blocks=2)
    scanned(core, 1)
    step = core.schedule(0)
    assert step is not None
    assert core.identical_decode_steps(step) > 3
    assert step.features.scanned_requests == step.features.after(3).scanned_requests == 3
