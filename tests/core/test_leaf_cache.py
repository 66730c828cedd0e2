"""The radix cache that is evicted in whole leaves, by their last lookup, with the answers in it."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from machine import Machine

from benchmarks.engines.ours import request_of
from benchmarks.engines.scenario import Scenario
from benchmarks.engines.sglang import config, scenario
from blis_py.core.leaf_kv import LeafKV
from blis_py.core.scheduler import Scheduler

KINDS = ("leaves", "leaves-to-fit")
both = pytest.mark.parametrize("kind", KINDS)


def machine(blocks: int, kind: str, **settings: Any) -> Machine:
    return Machine(blocks, radix_eviction=kind, batch_former="prefill-only", **settings)


@both
def test_a_leaf_is_evicted_whole(kind: str) -> None:
    m = machine(9, kind)
    m.serve("first", [("a", 16)])
    m.serve("second", [("b", 16)])
    m.serve("third", [("c", 4)])  # room for it and, for blocks of several tokens, one more
    again = m.serve("again", [("a", 16), ("d", 1)])
    assert again.cached_tokens == 0, "its first block went with the last"


@both
def test_a_private_answer_is_evicted_in_its_turn(kind: str) -> None:
    m = machine(12, kind)
    m.serve("asked", [("a", 16)])
    m.serve("answered", [("b", 4)], output=25)  # 6 blocks of answer, younger than the first prompt
    m.serve("third", [("c", 4)])
    assert m.serve("again", [("a", 16), ("d", 1)]).cached_tokens == 0
    blocks = Machine(12, radix_eviction="blocks", batch_former="prefill-only")
    blocks.serve("asked", [("a", 16)])
    blocks.serve("answered", [("b", 4)], output=25)
    blocks.serve("third", [("c", 4)])
    assert blocks.serve("again", [("a", 16), ("d", 1)]).cached_tokens == 16


@both
def test_a_lookup_is_a_use_although_the_request_is_not_admitted(kind: str) -> None:
    m = machine(12, kind, admission_rule="new-token-ratio")
    m.serve("old", [("a", 16)])
    m.serve("young", [("b", 8)])
    m.add("running", [("c", 8)], output=9)
    m.step()
    m.add("waiting", [("a", 16), ("d", 1)], output=30)
    m.step()
    assert len(m.scheduler.waiting) == 1, "it has no room"
    kv = m.scheduler.kv
    assert isinstance(kv, LeafKV)
    kv.tree.evict(1)
    assert [node.keys[0] for node in kv.tree.nodes() if not node.locks] == m.keys.keys([("a", 16)])[:1]


def test_room_is_made_for_the_whole_demand_or_for_what_is_missing() -> None:
    left = {}
    for kind in KINDS:
        m = machine(12, kind, block_size=1)
        for name in "abcd":
            m.serve(name, [(name, 2)])
        kv = m.scheduler.kv
        assert isinstance(kv, LeafKV)
        kv.check_decodes(6)
        left[kind] = kv.tree.evictable_size()
    assert left == {"leaves": 2, "leaves-to-fit": 6}


def test_an_answer_is_found_where_the_release_keeps_it() -> None:
    found = {}
    for keeps in (True, False):
        m = machine(20, "leaves", answers_cached=keeps)
        m.serve("asked", [("a", 16), ("b", 8)], prompt=16, output=9)
        found[keeps] = m.serve("again", [("a", 16), ("b", 8), ("c", 1)]).cached_tokens
    assert found == {True: 24, False: 16}


def test_a_retracted_request_adds_nothing_to_the_tree() -> None:
    m = machine(8, "leaves-to-fit", preemption_policy="fewest-tokens")
    requests = [m.add(name, [(name, 8)], output=16) for name in "ab"]
    while not requests[1].preemptions and not requests[0].preemptions:
        m.step()
    retracted = requests[0] if requests[0].preemptions else requests[1]
    kept = [node for node in m.scheduler.kv.tree.nodes() if not node.locks]  # type: ignore[attr-defined]
    assert sum(len(node.blocks) for node in kept) <= retracted.prompt_tokens // 4
    m.drain()


def _run(case: Scenario, version: str, ahead: bool) -> list[tuple[str, int, int, int]]:
    """Requests of a scenario, all of which arrive at once, as they end: tokens found in the cache, the last
    step, retractions."""
    scheduler = Scheduler(config(case, version))
    for spec in case["requests"]:
        assert scheduler.add(request_of(case, spec)) is None
    ends = []
    while (step := scheduler.schedule(0)) is not None:
        ended = scheduler.finish(step, scheduler.identical_decode_steps(step) if ahead else 1)
        ends += [(each.id, each.cached_tokens, each.last_tick, each.preemptions) for each in ended]
        scheduler.check()
    return ends


@pytest.mark.parametrize("version", ["0.5.14", "0.5.23"])
@pytest.mark.parametrize("number", range(20))
def test_steps_at_once_evict_as_steps_one_by_one(version: str, number: int) -> None:
    case = scenario(Random(f"at once/{number}"), (0, 5), asynchronous=False, caching=True, sharing=True)
    assert _run(case, version, ahead=True) == _run(case, version, ahead=False)
