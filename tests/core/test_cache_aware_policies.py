"""Policies that look at the cache: their orders, what they hold back, and what bounds them."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machine import Machine, Runs

from blis_py.core.policies import CACHE_AWARE
from blis_py.core.request import NEVER_NS, Request

both = pytest.mark.parametrize("cache", ["hash", "radix"])


def one_by_one(scheduler: str, cache: str = "radix", **settings: object) -> Machine:
    return Machine(1000, cache, scheduler=scheduler, max_num_seqs=1, **settings)


@both
def test_lpm_admits_the_longest_cached_prefix_first_and_equals_by_arrival(cache: str) -> None:
    machine = one_by_one("lpm", cache)
    machine.serve("warms p", [("p", 40)])
    machine.add("none, late", [("x", 8)], arrival_ns=9)
    machine.add("none, early", [("y", 8)], arrival_ns=3)
    machine.add("some", [("p", 8), ("q", 8)], arrival_ns=20)
    machine.add("most", [("p", 32), ("q", 4)], arrival_ns=30)
    machine.drain(now_ns=30)
    assert machine.order[1:] == ["most", "some", "none, early", "none, late"]


@both
def test_lpm_matches_again_after_each_admission(cache: str) -> None:
    machine = one_by_one("lpm", cache)
    for name, text in (("x1", "x"), ("y1", "y"), ("x2", "x"), ("y2", "y")):
        machine.add(name, [(text, 9)])
    machine.drain()
    assert machine.order == ["x1", "x2", "y1", "y2"]


def test_hrrn_weighs_the_wait_against_the_work() -> None:
    machine = one_by_one("hrrn")
    machine.add("runs first", [], prompt=50)
    machine.step()
    machine.add("long", [], prompt=100)
    machine.add("b: 60 tokens of work", [], prompt=60)
    machine.add("a: 60 tokens of work", [], prompt=60)
    machine.drain()
    # Nothing was computed since they came, so it is by arrival (and name); then 60 / 100 against 60 / 60.
    assert machine.order[1:] == ["a: 60 tokens of work", "b: 60 tokens of work", "long"]
    machine.serve("warms p", [("p", 96)])
    machine.add("A", [("p", 96), ("q", 20)], arrival_ns=2)
    machine.add("B", [("x", 30)], arrival_ns=1)
    machine.step()  # B, by arrival; 30 tokens
    machine.add("C", [("y", 10)], arrival_ns=3)
    machine.drain()
    assert machine.order[-3:] == ["B", "A", "C"]


def test_dfs_weight_serves_the_heaviest_subtree_first() -> None:
    machine = one_by_one("dfs-weight")
    machine.serve("warms p", [("p", 40)])
    machine.serve("warms q", [("q", 8)])
    machine.add("one long match", [("p", 40), ("x", 4)])
    machine.add("unknown", [("z", 9)])
    for i in range(3):
        machine.add(f"heavy {i}", [("q", 8), (f"q{i}", 4)])
    machine.drain()
    assert machine.order[2:] == ["heavy 0", "heavy 1", "heavy 2", "one long match", "unknown"]


def test_dfs_weight_goes_on_downwards_by_weight() -> None:
    machine = one_by_one("dfs-weight")
    machine.serve("warms 1", [("p", 8), ("a", 8)])
    machine.serve("warms 2", [("p", 8), ("b", 8)])
    for name, runs in (
        ("p", [("p", 8), ("x", 4)]),
        ("pa", [("p", 8), ("a", 8), ("x", 4)]),
        ("pb 1", [("p", 8), ("b", 8), ("x", 4)]),
        ("pb 2", [("p", 8), ("b", 8), ("y", 4)]),
    ):
        machine.add(name, runs)  # type: ignore[arg-type]
    machine.drain()
    # With one of them served, both branches weigh the same.
    assert machine.order[2:] == ["pb 1", "pa", "pb 2", "p"]


@pytest.mark.parametrize("scheduler", CACHE_AWARE)
def test_without_keys_the_order_is_that_of_arrival(scheduler: str) -> None:
    machine = one_by_one(scheduler)
    for i in range(5):
        machine.add(f"r{i}", [], prompt=9, arrival_ns=10 - i)
    machine.drain(now_ns=10)
    assert machine.order == ["r4", "r3", "r2", "r1", "r0"]


# -- bounds ----------------------------------------------------------------------------------------


def hot_and_cold(machine: Machine) -> None:
    machine.serve("warms p", [("p", 40)])
    machine.add("cold", [("x", 40)], arrival_ns=100)
    for i in range(5):
        machine.add(f"hot {i}", [("p", 40), (f"{i}", 8)], arrival_ns=200 + i)


def test_a_request_that_has_waited_long_enough_goes_first() -> None:
    for now_ns, place in ((1099, 5), (1100, 0)):
        machine = one_by_one("lpm", fairness_ms=1e-3)
        hot_and_cold(machine)
        assert machine.scheduler.next_change_ns(now_ns) == (1100 if now_ns < 1100 else NEVER_NS)
        machine.drain(now_ns)
        assert machine.order[1:].index("cold") == place


def test_the_token_clock_counts_what_was_computed_since_a_request_arrived() -> None:
    machine = one_by_one("lpm", fairness_tokens=20)
    hot_and_cold(machine)
    machine.drain(now_ns=10**9)
    # Each hot one computes 8 tokens; after three of them it is 24.
    assert machine.order[1:] == ["hot 0", "hot 1", "hot 2", "cold", "hot 3", "hot 4"]


def workload(seed: int) -> list[tuple[str, Runs, int, int]]:
    """Arrivals in the order of their names, with branches, under pressure."""
    rng = random.Random(seed)
    rows = []
    for i in range(30):
        runs = [(rng.choice("pq"), rng.choice([8, 24])), (rng.choice("abc"), rng.randint(1, 30))]
        rows.append((f"r{i:02}", runs, rng.randint(1, 12), i))
    return rows


def served(machine: Machine, rows: list[tuple[str, Runs, int, int]]) -> Machine:
    """All of them, three per step as long as there are more."""
    for i, (name, runs, output, arrival_ns) in enumerate(rows):
        machine.add(name, runs, output=output, arrival_ns=arrival_ns)
        if i % 3 == 2:
            machine.step(now_ns=arrival_ns)
    machine.drain(now_ns=100)
    return machine


PRESSED = {"max_num_seqs": 4, "max_num_batched_tokens": 32}


@pytest.mark.slow
@both
@pytest.mark.parametrize("scheduler", ["lpm", "hrrn"])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "bound", [{"fairness_ms": 0.0}, {"fairness_tokens": 0}, {"lpm_max_queue": 1}], ids=str
)
def test_with_a_bound_of_nothing_they_are_fcfs(cache: str, scheduler: str, seed: int, bound: dict) -> None:
    """A queue of one has only one order."""
    rows = workload(seed)
    plain = served(Machine(24, cache, **PRESSED), rows)
    bounded = served(Machine(24, cache, scheduler=scheduler, **bound, **PRESSED), rows)
    assert plain.order == bounded.order
    assert [step.features for step in plain.steps] == [
        replace(step.features, scanned_requests=0) for step in bounded.steps
    ]
    assert plain.scheduler.counters == bounded.scheduler.counters


@pytest.mark.parametrize("seed", range(4))
def test_without_a_bound_they_are_not(seed: int) -> None:
    rows = workload(seed)
    plain = served(Machine(24, **PRESSED), rows)
    assert served(Machine(24, scheduler="lpm", **PRESSED), rows).order != plain.order


def test_a_queue_longer_than_the_limit_is_served_by_arrival_until_it_is_not() -> None:
    machine = one_by_one("lpm", lpm_max_queue=4)
    hot_and_cold(machine)  # six wait
    machine.drain(now_ns=300)
    assert machine.order[1:3] == ["cold", "hot 0"]


@settings(max_examples=25)
@given(st.data(), st.sampled_from(CACHE_AWARE))
def test_the_order_in_which_requests_are_queued_does_not_matter(data: st.DataObject, scheduler: str) -> None:
    rows = workload(data.draw(st.integers(0, 5)))[:12]
    simultaneous = [(name, runs, output, 5) for name, runs, output, _ in rows]

    def admitted(rows: list[tuple[str, Runs, int, int]]) -> list[str]:
        machine = Machine(24, scheduler=scheduler, **PRESSED)  # type: ignore[arg-type]
        machine.serve("warms", [("p", 24), ("a", 9)])
        for name, runs, output, arrival_ns in rows:
            machine.add(name, runs, output=output, arrival_ns=arrival_ns)
        machine.drain(now_ns=5)
        return machine.order

    assert admitted(simultaneous) == admitted(data.draw(st.permutations(simultaneous)))


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", CACHE_AWARE)
@pytest.mark.parametrize("seed", range(5))
def test_no_request_is_overtaken_by_more_than_the_bound_and_one_step(scheduler: str, seed: int) -> None:
    """An endless stream of hits, and now and then a request without a hit."""
    rng = random.Random(seed)
    bound, budget = rng.choice([40, 100, 250]), rng.choice([16, 32, 64])
    machine = Machine(
        60, scheduler=scheduler, fairness_tokens=bound, max_num_batched_tokens=budget,
        max_num_seqs=rng.choice([2, 8]), in_batch_sharing_tokens=rng.choice([None, 8]),
    )  # fmt: skip
    machine.serve("warms", [("hot", 80)])
    waiting: dict[Request, int] = {}
    overtaken: dict[Request, int] = {}
    now_ns = 0
    for step in range(400):
        now_ns += 10
        if step % 20 == 0:
            cold = machine.add(f"cold {step}", [(f"cold {step}", rng.randint(30, 120))], arrival_ns=now_ns)
            waiting[cold] = overtaken[cold] = 0
        while len(machine.scheduler.waiting) < 12:
            runs = [("hot", 80), (f"{rng.random()}", rng.randint(1, 30))]
            waiting[machine.add(f"hot {len(waiting)}", runs, output=rng.randint(1, 6), arrival_ns=now_ns)] = 0
        planned = machine.step(now_ns)
        for request in planned.admitted:
            uncached = request.prompt_tokens - request.cached_tokens
            waiting.pop(request, None)
            for other in waiting:
                if other in overtaken and other.arrival_ns < request.arrival_ns:
                    overtaken[other] += uncached
    assert len([request for request in overtaken if request not in waiting]) >= 10
    assert (
        max(overtaken.values()) <= bound + budget + 30
    )  # the last one that overtakes may be cut by the step


def test_without_a_bound_a_stream_of_hits_starves_the_cold() -> None:
    machine = Machine(60, scheduler="lpm", max_num_seqs=2)
    machine.serve("warms", [("hot", 80)])
    cold = machine.add("cold", [("cold", 80)])
    for i in range(200):
        while len(machine.scheduler.waiting) < 6:
            machine.add(
                f"hot {i} {len(machine.scheduler.waiting)}", [("hot", 80), (f"{i}", 8)], arrival_ns=i + 1
            )
        machine.step(now_ns=i + 1)
    assert cold.scheduled_ns < 0


# -- in-batch sharing ------------------------------------------------------------------------------


def test_one_computes_a_shared_prefix_and_the_others_wait_for_it() -> None:
    machine = Machine(1000, scheduler="lpm", in_batch_sharing_tokens=32)
    for i in range(5):
        machine.add(f"r{i}", [("p", 400), (f"{i}", 8)])
    machine.add("alone", [("x", 40)])
    machine.drain()
    assert [[r.id for r in step.admitted] for step in machine.steps[:2]] == [
        ["alone", "r0"],
        ["r1", "r2", "r3", "r4"],
    ]
    assert machine.hits == 4 * 400


def test_they_wait_for_all_chunks_of_it() -> None:
    machine = Machine(1000, scheduler="lpm", max_num_batched_tokens=100, in_batch_sharing_tokens=32)
    for i in range(3):
        machine.add(f"r{i}", [("p", 400), (f"{i}", 8)])
    machine.drain()
    assert [len(step.admitted) for step in machine.steps] == [1, 0, 0, 0, 2]
    assert machine.hits == 2 * 400


@pytest.mark.parametrize(("sharing", "hits"), [(None, 0), (500, 0), (400, 4 * 400)])
def test_waiting_for_another_can_be_switched_off_or_made_rarer(sharing: int | None, hits: int) -> None:
    machine = Machine(1000, scheduler="lpm", max_num_batched_tokens=4096, in_batch_sharing_tokens=sharing)
    for i in range(5):
        machine.add(f"r{i}", [("p", 400), (f"{i}", 8)])
    machine.drain()
    assert machine.hits == hits


@pytest.mark.parametrize(("own", "hits"), [(1, 4 * 400), (0, 0)])
def test_a_request_waits_only_for_what_it_can_take_from_the_cache(own: int, hits: int) -> None:
    """Its last token is always computed: of a prompt of 400 tokens one block less than all can be found."""
    machine = Machine(1000, scheduler="lpm", max_num_batched_tokens=4096, in_batch_sharing_tokens=400)
    for i in range(5):
        machine.add(f"r{i}", [("p", 400), (f"{i}", own)])
    machine.drain()
    assert machine.hits == hits


def test_a_request_that_has_waited_too_long_waits_for_no_other() -> None:
    machine = Machine(1000, scheduler="lpm", fairness_ms=0.0)
    for i in range(2):
        machine.add(f"r{i}", [("p", 400), (f"{i}", 8)])
    assert [r.id for r in machine.step().admitted] == ["r0", "r1"]


# -- the lesson's cases ----------------------------------------------------------------------------


def thirty_two(machine: Machine) -> Machine:
    """At once: 24 that share 2,000 tokens, 8 unrelated ones among them."""
    for i in range(32):
        shared = i % 4 != 3
        runs = [("system", 2000), (f"user {i}", 40)] if shared else [(f"alone {i}", 2040)]
        machine.add(f"r{i:02}", runs, output=20)
    machine.drain()
    return machine


REACHABLE = 23 * 2000
"""All but the first of those who share find all of it."""


@both
def test_lpm_reaches_the_hit_rate_that_the_workload_has_and_fcfs_and_sjf_do_not(cache: str) -> None:
    """KV for one prompt at a time: every unrelated prompt drives the shared one out."""
    rates = {
        scheduler: thirty_two(Machine(134, cache, scheduler=scheduler, block_size=16)).hits / REACHABLE
        for scheduler in ("lpm", "fcfs", "sjf")
    }
    assert rates["lpm"] > 0.95
    assert rates["fcfs"] < 0.8
    assert rates["sjf"] < 0.8


def alternating(machine: Machine) -> Machine:
    """A, B, A, B, A, B with system prompts of 2,000 and 1,500 tokens."""
    for i in range(3):
        machine.add(f"A{i}", [("A", 2000), (f"A{i}", 30)], output=4, arrival_ns=2 * i)
        machine.add(f"B{i}", [("B", 1504), (f"B{i}", 30)], output=4, arrival_ns=2 * i + 1)
    machine.drain(now_ns=10)
    return machine


ALTERNATING_HITS = 2 * 2000 + 2 * 1504


@both
def test_with_room_for_four_lpm_keeps_the_hits_of_both_clusters(cache: str) -> None:
    machine = Machine(500, cache, scheduler="lpm", max_num_seqs=4, block_size=16, max_num_batched_tokens=8192)
    assert alternating(machine).hits == ALTERNATING_HITS


def test_with_room_for_four_fcfs_computes_what_it_admits_together_twice() -> None:
    machine = Machine(500, "radix", max_num_seqs=4, block_size=16, max_num_batched_tokens=8192)
    assert alternating(machine).hits == ALTERNATING_HITS - 2000 - 1504


@both
def test_with_room_for_one_fcfs_loses_most_hits_and_lpm_none(cache: str) -> None:
    lpm = alternating(Machine(132, cache, scheduler="lpm", block_size=16))
    fcfs = alternating(Machine(132, cache, block_size=16))
    assert lpm.hits == ALTERNATING_HITS
    assert fcfs.hits < ALTERNATING_HITS / 5
