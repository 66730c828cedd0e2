"""Orders of the queue that are made when a pass begins, as SGLang's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from blis_py.core.config import SchedulerConfig
from blis_py.core.lpm import LongestPrefixMatch
from blis_py.core.pass_order import LongestMatchFirst
from blis_py.core.policies import SCHEDULERS
from blis_py.core.request import Request
from blis_py.core.scheduler import Scheduler

SHARED = list(range(40))


def core_of(policy: str, **values: Any) -> Scheduler:
    settings: dict[str, Any] = {
        "num_kv_blocks": 400,
        "max_model_len": 400,
        "block_size": 1,
        "max_num_batched_tokens": 400,
        "batch_former": "prefill-only",
        "admission_rule": "new-token-ratio",
        "prefix_cache": "radix",
        "radix_eviction": "leaves-to-fit",
        "scheduler": policy,
        "max_num_seqs": 2,
    }
    return Scheduler(SchedulerConfig(**{**settings, **values}))


def served(core: Scheduler, name: str, keys: Sequence[Any]) -> None:
    """Leave the prompt of a request in the cache."""
    assert core.add(Request(name, 0, len(keys), 1, 1, block_keys=keys)) is None
    planned = core.schedule(0)
    assert planned is not None
    core.finish(planned)


def passes(core: Scheduler, *prompts: tuple[str, Sequence[Any]]) -> list[str]:
    """Names in the order in which requests with one output token each are admitted, two in a pass."""
    for arrival, (name, keys) in enumerate(prompts):
        assert core.add(Request(name, arrival, len(keys), 1, 1, block_keys=keys)) is None
    order: list[str] = []
    while core.waiting:
        planned = core.schedule(0)
        assert planned is not None
        order += [request.id for request, _ in planned.prefills]
        core.finish(planned)
        core.check()
    return order


def own(name: str, count: int) -> list[Any]:
    return [(name, index) for index in range(count)]


def test_the_longest_match_goes_first_and_equal_ones_stay_in_order() -> None:
    core = core_of("lpm")
    served(core, "S", [*SHARED, *own("S", 5)])
    names = passes(
        core,
        ("none", own("none", 9)),
        ("short", [*SHARED[:33], *own("short", 9)]),
        ("long", [*SHARED, *own("long", 9)]),
        ("other", own("other", 9)),
    )
    assert names == ["long", "short", "none", "other"]


def test_one_of_those_that_share_uncached_tokens_goes_first_and_the_others_last() -> None:
    core = core_of("lpm")
    shared = own("shared", 32)
    names = passes(
        core,
        ("A", [*shared, *own("A", 9)]),
        ("B", [*shared, *own("B", 9)]),
        ("C", own("C", 9)),
        ("D", [*shared[:31], *own("D", 9)]),
    )
    assert names == ["A", "C", "B", "D"], "in the second pass all but D find what A has left"


def test_a_long_queue_stays_as_it_is() -> None:
    core = core_of("lpm", lpm_max_queue=2)
    served(core, "S", SHARED)
    long = ("long", [*SHARED, *own("long", 9)])
    assert passes(core, ("A", own("A", 9)), ("B", own("B", 9)), long) == ["A", "B", "long"]


def test_the_heaviest_branch_goes_first_depth_first() -> None:
    core = core_of("dfs-weight")
    for name in "XY":
        served(core, name, own(name, 40))
    names = passes(
        core,
        ("none", own("none", 9)),
        ("x", [*own("X", 20), *own("x", 5)]),
        ("y1", [*own("Y", 20), *own("y1", 5)]),
        ("y2", [*own("Y", 30), *own("y2", 5)]),
    )
    assert names == ["y2", "y1", "x", "none"]


@pytest.mark.parametrize(
    ("values", "is_sglangs"),
    [({}, True), ({"radix_eviction": "blocks"}, False), ({"fairness_ms": 1.0}, False)],
)
def test_it_belongs_to_sglangs_tree_and_knows_no_bound(values: dict[str, Any], is_sglangs: bool) -> None:
    queue = SCHEDULERS["lpm"](core_of("lpm", **values).config)
    assert isinstance(queue, LongestMatchFirst if is_sglangs else LongestPrefixMatch)


def test_the_most_urgent_go_first_and_equal_ones_as_they_entered() -> None:
    core = core_of("priority-fcfs")
    for name, priority in (("A", 2), ("B", 1), ("C", 2), ("D", 1), ("E", 0)):
        core.add(Request(name, 0, 5, 1, 1, priority))
    order: list[str] = []
    while core.waiting:
        planned = core.schedule(0)
        assert planned is not None
        order += [request.id for request, _ in planned.prefills]
        core.finish(planned)
    assert order == ["E", "B", "D", "A", "C"]


def test_with_priorities_a_refusal_does_not_shut_admission() -> None:
    """B does not fit beside A, and D is more urgent and does."""
    for policy, admitted in (("fcfs", []), ("priority-fcfs", ["D"])):
        core = core_of(policy, max_num_seqs=8)
        core.add(Request("A", 0, 10, 300, 300, ends_by_eos=True))
        served_step = core.schedule(0)
        assert served_step is not None
        core.finish(served_step)
        core.add(Request("B", 1, 10, 300, 300, priority=1, ends_by_eos=True))
        for _ in range(2):
            planned = core.schedule(0)
            assert planned is not None
            assert planned.prefills == []
            core.finish(planned)
            core.check()
        core.add(Request("D", 2, 5, 1, 1, priority=0))
        planned = core.schedule(0)
        assert planned is not None
        assert [request.id for request, _ in planned.prefills] == admitted
