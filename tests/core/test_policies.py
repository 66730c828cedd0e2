"""Orders of admission, SLO classes, and what policies may know."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import blis_py.core
from blis_py.core.config import SchedulerConfig
from blis_py.core.policies import SCHEDULERS
from blis_py.core.request import Request
from blis_py.core.scheduler import Scheduler
from blis_py.core.slo import instance_priorities
from blis_py.errors import InputError


def config(scheduler: str, sjf_aging_ms: float | None = None, max_num_seqs: int = 1) -> SchedulerConfig:
    return SchedulerConfig(
        prefix_cache="radix" if scheduler == "dfs-weight" else "hash",
        num_kv_blocks=1000,
        max_model_len=10_000,
        scheduler=scheduler,
        sjf_aging_ms=sjf_aging_ms,
        max_num_seqs=max_num_seqs,
    )


def admissions(settings: SchedulerConfig, requests: list[Request], now_ns: int = 0) -> list[str]:
    """Names in the order in which they are admitted, one at a time."""
    scheduler = Scheduler(settings)
    for request in requests:
        assert scheduler.add(request) is None
    order = []
    while (step := scheduler.schedule(now_ns)) is not None:
        order += [request.id for request in step.admitted]
        scheduler.finish(step)
    return order


def four() -> list[Request]:
    """As they come in: neither by priority, nor by length, nor, among equals, by id."""
    return [
        Request("d", 10, 40, 2, 2, priority=5),
        Request("c", 20, 10, 2, 2, priority=1),
        Request("b", 30, 10, 2, 2, priority=0),
        Request("a", 20, 10, 2, 2, priority=1),
    ]


@pytest.mark.parametrize(
    ("scheduler", "order"),
    [("fcfs", "dcba"), ("priority-fcfs", "bacd"), ("sjf", "acbd"), ("reverse-priority", "dacb")],
)
def test_each_policy_has_its_order_with_ties_by_arrival_then_id(scheduler: str, order: str) -> None:
    assert admissions(config(scheduler), four()) == list(order)


def test_aged_requests_go_before_shorter_ones_by_arrival() -> None:
    aging_ms = 25e-6  # 25 ns: at 45 ns, arrivals until 20 have waited long enough
    assert admissions(config("sjf", aging_ms), four(), now_ns=45) == list("dacb")
    assert admissions(config("sjf", aging_ms), four(), now_ns=30) == list("acbd")


@settings(max_examples=30)
@given(st.sampled_from(sorted(SCHEDULERS)), st.data())
def test_permuting_the_output_lengths_of_waiting_requests_changes_no_admission(
    scheduler: str, data: st.DataObject
) -> None:
    outputs = data.draw(st.lists(st.integers(1, 9), min_size=2, max_size=8))
    shapes = [
        (data.draw(st.integers(0, 3)), data.draw(st.integers(1, 5)), data.draw(st.sampled_from([0, 1, 5])))
        for _ in outputs
    ]

    def order(lengths: list[int]) -> list[str]:
        waiting = [
            Request(f"r{i}", arrival, prompt, length, 9, priority)
            for i, (length, (arrival, prompt, priority)) in enumerate(zip(lengths, shapes, strict=True))
        ]
        return admissions(config(scheduler), waiting)

    assert order(outputs) == order(data.draw(st.permutations(outputs)))


@pytest.mark.parametrize(
    "file", ["policies.py", "queues.py", "_cache_aware.py", "lpm.py", "_hrrn.py", "_dfs_weight.py"]
)
def test_policies_and_queues_never_mention_the_output_length(file: str) -> None:
    source = (Path(blis_py.core.__file__).parent / file).read_text()
    names = {node.attr for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)}
    names |= {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}
    strings = {str(n.value) for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Constant)}
    assert names.isdisjoint({"output_tokens", "target", "finish_tick", "getattr", "vars"})
    assert not strings & {"output_tokens", "target", "finish_tick"}


def test_slo_classes_are_inverted_so_that_smaller_is_more_urgent() -> None:
    assert instance_priorities() == {
        "critical": 0, "standard": 1, "batch": 5, "sheddable": 6, "background": 7, "": 1,
    }  # fmt: skip


def test_overridden_classes_are_inverted_against_the_new_largest() -> None:
    priorities = instance_priorities({"batch": 10, "gold": 7})
    assert priorities == {
        "critical": 6, "standard": 7, "batch": 0, "sheddable": 12, "background": 13, "gold": 3, "": 7,
    }  # fmt: skip


def test_a_priority_out_of_range_is_refused() -> None:
    with pytest.raises(InputError, match=r"slo_priorities\.batch"):
        instance_priorities({"batch": 101})


def test_every_admission_past_a_more_urgent_request_counts_as_an_inversion() -> None:
    scheduler = Scheduler(config("fcfs"))
    for name, priority in (("a", 5), ("b", 1), ("c", 0)):
        scheduler.add(Request(name, 0, 1, 1, 1, priority))
    while (step := scheduler.schedule(0)) is not None:
        scheduler.finish(step)
    assert scheduler.counters.priority_inversions == 2  # a before b and c, b before c


def test_priority_order_has_no_inversions() -> None:
    scheduler = Scheduler(config("priority-fcfs"))
    for name, priority in (("a", 5), ("b", 1), ("c", 0)):
        scheduler.add(Request(name, 0, 1, 1, 1, priority))
    while (step := scheduler.schedule(0)) is not None:
        scheduler.finish(step)
    assert scheduler.counters.priority_inversions == 0


def test_a_head_that_waits_for_blocks_before_others_counts_once() -> None:
    scheduler = Scheduler(SchedulerConfig(num_kv_blocks=4, max_model_len=100, block_size=4))
    scheduler.add(Request("holds three blocks", 0, 11, 2, 2))
    scheduler.add(Request("needs two", 0, 5, 1, 1))
    scheduler.add(Request("would fit", 0, 1, 1, 1))
    waits = []
    while (step := scheduler.schedule(0)) is not None:
        waits.append(len(scheduler.waiting))
        scheduler.finish(step)
    assert waits == [2, 2, 0]  # none skips ahead
    assert scheduler.counters.head_of_line_events == 1
