"""What a router reads of instances that leave the fleet, and of the prefixes that caches hold."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from blis_py.cluster.routing.prefixes import PrefixReports
from blis_py.cluster.routing.router import RoundRobin, RouterSetup
from blis_py.cluster.routing.signals import Signals
from blis_py.core.request import Request

BLOCK = 4


class Instance:
    """One that reports whatever is set."""

    expects = False

    def __init__(self) -> None:
        self.in_flight, self.batch_size, self.queued, self.filled = 3, 2, 1, 0.5
        self.settled: list[int] = []
        self.log: list[tuple[bool, list[str]]] = []

    def queue_depth(self, now_ns: int) -> int:
        return self.queued

    def kv_utilization(self, now_ns: int) -> float:
        return self.filled

    def watch(self, noted: Any, index: int) -> None:
        noted.add(index)

    def log_cache(self) -> list[tuple[bool, list[str]]]:
        return self.log

    def settle_cache(self, now_ns: int) -> None:
        self.settled.append(now_ns)


def fleet(count: int, weights: tuple[float, ...] = (1.0,)) -> Any:
    """Instances of pools in turn, and the followers of their changes."""
    pools = [SimpleNamespace(weight=weight) for weight in weights]
    followers: list[Any] = []

    def follow(follower: Any) -> None:
        followers.append(follower)
        for index in range(count):
            follower(index, "added")

    return SimpleNamespace(
        ready=list(range(count)),
        cluster=SimpleNamespace(block_size=BLOCK),
        pools=pools,
        instances=[Instance() for _ in range(count)],
        covers=lambda index: True,
        pool_of=lambda index: pools[index % len(pools)],
        follow=follow,
        change=lambda index, state: [follower(index, state) for follower in followers],
    )


def signals(of: Any) -> Signals:
    nothing: Any = SimpleNamespace(narrow=lambda now_ns: None, pass_until=lambda now_ns: None)
    found = Signals(of, 0, 0, nothing, nothing)
    found.watch()
    found.watch_kv()
    found.look(1)
    return found


def shown(of: Signals, index: int) -> list[float]:
    lists = (of.in_flight, of.queue_depth, of.batch_size, of.load, of.kv_utilization)
    return [each[index] for each in lists]


@pytest.mark.parametrize(("state", "counts"), [("ready", True), ("draining", True), ("gone", False)])
def test_an_instance_counts_until_it_is_gone(state: str, counts: bool) -> None:
    """One that is draining still has its requests."""
    members = fleet(2)
    found = signals(members)
    reports = found.reports
    members.change(1, state)
    assert found.reports == reports + 1
    assert shown(found, 0) == [3, 1, 2, 6, 0.5]
    assert shown(found, 1) == ([3, 1, 2, 6, 0.5] if counts else [0] * 5)
    assert found.total_in_flight == (6 if counts else 3)


def test_capacities_are_shares_of_the_largest_and_left_out_where_all_are_alike() -> None:
    assert signals(fleet(4, (1.0, 4.0))).weights == [0.25, 1.0, 0.25, 1.0]
    assert signals(fleet(4, (2.0, 2.0))).weights is None


def request(tokens: int, keys: str, extra: str | None = None) -> Request:
    return Request("r", 0, tokens, 5, 5, block_keys=list(keys), extra_key=extra)


def reports(*held: str) -> tuple[PrefixReports, Any]:
    members = fleet(len(held))
    found = PrefixReports(members, 0)
    for index, keys in enumerate(held):
        members.instances[index].log.append((True, list(keys)))
        found.note(index)
    found.look(1)
    return found, members


@pytest.mark.parametrize(
    ("tokens", "keys", "levels"),
    [
        (40, "abcd", [(0b111, 1), (0b011, 2), (0b001, 4)]),
        (40, "abxy", [(0b111, 1), (0b011, 2)]),
        (40, "xbcd", []),
        (8, "abcd", [(0b111, 1), (0b011, 2)]),  # the answer goes on from the third block
        (11, "abcd", [(0b111, 1), (0b011, 2)]),  # the third block is not full
        (12, "abcd", [(0b111, 1), (0b011, 2), (0b001, 3)]),
        (3, "abcd", []),
    ],
)
def test_instances_stand_by_the_full_blocks_of_the_prompt_that_they_hold(
    tokens: int, keys: str, levels: list[tuple[int, int]]
) -> None:
    found, _ = reports("abcd", "ab", "a")
    assert found.held(request(tokens, keys)) == levels
    assert found.held(request(tokens, keys, "adapter")) == []


def test_evicted_blocks_and_instances_that_are_gone_are_no_longer_held() -> None:
    found, members = reports("abcd", "ab", "abc")
    members.instances[0].log.append((False, ["c", "d"]))
    found.note(0)
    found.look(2)
    assert found.held(request(40, "abcd")) == [(0b111, 2), (0b100, 3)]
    members.change(2, "gone")
    assert found.held(request(40, "abcd")) == [(0b011, 2)]


def test_caches_that_change_without_events_are_read_again_and_others_are_not() -> None:
    found, members = reports("a", "a")
    members.instances[1].batch_size = 0
    for now_ns in (2, 3):
        found.look(now_ns)
    assert members.instances[0].settled == [1, 2, 3]
    assert members.instances[1].settled == [1, 2]  # it ran a batch until its report at 2


@pytest.mark.parametrize(("delay_ns", "seen_at"), [(0, 1), (5, 5)])
def test_a_report_is_as_old_as_its_delay_and_no_older(delay_ns: int, seen_at: int) -> None:
    members = fleet(1)
    found = PrefixReports(members, delay_ns)
    members.instances[0].log.append((True, ["a"]))
    found.note(0)
    for now_ns in range(1, 8):
        found.look(now_ns)
        assert bool(found.held(request(4, "a"))) == (now_ns >= seen_at)


@pytest.mark.parametrize(
    ("served", "index", "state"),
    [
        (3, 3, "draining"),  # behind the latest
        (3, 0, "draining"),
        (3, 1, "draining"),
        (3, 2, "draining"),  # the latest itself
        (2, 0, "ready"),
        (2, 4, "ready"),
        (3, 4, "gone"),  # draining before
        (3, 0, "added"),  # not ready yet
    ],
)
def test_turns_go_on_with_the_next_instance_when_others_come_and_go(
    served: int, index: int, state: str
) -> None:
    """`served` is the number of requests sent before the change."""
    ready = [number for number in range(4) if (number, state) != (index, "ready")]
    followers: list[Any] = []
    members: Any = SimpleNamespace(ready=ready, follow=followers.append)
    nothing: Any = None
    router = RoundRobin(RouterSetup(members, rng=nothing))
    latest = [router(request(4, ""), 0) for _ in range(served)][-1]
    if state == "draining":
        ready.remove(index)
    elif state == "ready":
        ready[:] = sorted([*ready, index])
    followers[0](index, state)
    assert router(request(4, ""), 0) == next((one for one in ready if one > latest), ready[0])
