"""Instances come, drain and leave; a view has those of some pools."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from blis_py.cluster.instances.fleet import Fleet, MemberState
from blis_py.cluster.instances.fleet_view import FleetView
from blis_py.errors import InputError
from blis_py.metrics.record import InstanceRecord

ADDED, READY, DRAINING, GONE = (
    MemberState.ADDED,
    MemberState.READY,
    MemberState.DRAINING,
    MemberState.GONE,
)


class Agenda:
    """Time that stands still, and the calls for later."""

    now_ns = 100

    def __init__(self) -> None:
        self.calls: list[tuple[int, Callable[[int], None]]] = []
        self.required: list[str] = []

    def require_used(self, what: str) -> None:
        self.required.append(what)

    def call_at(self, time_ns: int, action: Callable[[int], None]) -> None:
        self.calls.append((time_ns, action))


class Busy:
    """An instance that is idle only when its test says so."""

    def __init__(self, pool: Any) -> None:
        self.is_idle, self.outlet = pool.name == "b", None

    def when_idle(self, leave: Callable[[int], None]) -> None:
        self.leave = leave


def pool(name: str, count: int, seqs: int) -> Any:
    scheduler = SimpleNamespace(max_num_seqs=seqs)
    spec = SimpleNamespace(scheduler=scheduler, gpus=seqs // 2, price_per_hour=seqs / 4)
    return SimpleNamespace(name=name, count=count, spec=spec)


class Pools:
    pools = (pool("a", 2, 4), pool("b", 1, 10))

    def pool(self, name: str) -> Any:
        return next(each for each in self.pools if each.name == name)


@pytest.fixture
def agenda() -> Agenda:
    return Agenda()


@pytest.fixture
def fleet(agenda: Agenda) -> Fleet:
    pools: Any = Pools()
    make: Any = Busy
    events: Any = agenda
    return Fleet(pools, make, events)


Seen = list[tuple[int, MemberState]]


def test_all_instances_of_the_pools_are_ready_at_once(fleet: Fleet, agenda: Agenda) -> None:
    assert fleet.ready == [0, 1, 2]
    assert fleet.slots == 18
    assert not fleet.coming
    assert not agenda.calls
    assert [fleet.pool_of(index).name for index in range(3)] == ["a", "a", "b"]
    assert fleet.pools == Pools.pools
    assert fleet.covers(7)
    assert fleet.now_ns == 100


def test_an_instance_with_a_start_up_is_ready_behind_it_and_in_order(fleet: Fleet, agenda: Agenda) -> None:
    slow, quick = fleet.add("a", 50), fleet.add("b")
    assert (slow, quick) == (3, 4)
    assert agenda.required[-2:] == ["Fleet.add"] * 2
    assert fleet.ready == [0, 1, 2, 4]
    assert fleet.slots == 28
    assert fleet.coming
    ((time_ns, action),) = agenda.calls
    assert time_ns == 150
    action(150)
    assert fleet.ready == [0, 1, 2, 3, 4]
    assert fleet.slots == 32
    assert not fleet.coming


def test_an_instance_that_is_drained_before_it_is_ready_stays_so(fleet: Fleet, agenda: Agenda) -> None:
    index = fleet.add("b", 50)
    fleet.drain(index)
    assert fleet.members[index].state is GONE
    agenda.calls[0][1](150)
    assert fleet.ready == [0, 1, 2]
    assert fleet.slots == 18


def test_an_idle_instance_leaves_at_once_and_a_busy_one_with_its_last_request(fleet: Fleet) -> None:
    fleet.drain(2)
    assert (fleet.members[2].state, fleet.members[2].gone_ns, fleet.ready) == (GONE, 100, [0, 1])
    assert fleet.slots == 8
    fleet.drain(0)
    assert (fleet.members[0].state, fleet.members[0].gone_ns, fleet.ready) == (DRAINING, None, [1])
    assert fleet.slots == 4
    fleet.instances[0].leave(170)  # type: ignore[attr-defined]
    assert (fleet.members[0].state, fleet.members[0].gone_ns) == (GONE, 170)


def test_what_cannot_be_drained_is_refused(fleet: Fleet, agenda: Agenda) -> None:
    for index in (-1, 3):
        with pytest.raises(InputError, match="no such instance"):
            fleet.drain(index)
    fleet.drain(0)
    with pytest.raises(InputError, match="the instance is draining already"):
        fleet.drain(0)
    fleet.drain(2)
    with pytest.raises(InputError, match="the instance is gone already"):
        fleet.drain(2)
    assert set(agenda.required[3:]) == {"Fleet.drain"}


def test_a_follower_sees_what_led_to_the_present_state_and_every_change(fleet: Fleet) -> None:
    fleet.drain(0)
    fleet.add("a", 50)
    seen: Seen = []
    fleet.follow(lambda index, state: seen.append((index, state)))
    assert seen == [(0, ADDED), (0, DRAINING), (1, ADDED), (1, READY), (2, ADDED), (2, READY), (3, ADDED)]
    seen.clear()
    fleet.drain(2)
    fleet.add("b")
    assert seen == [(2, DRAINING), (2, GONE), (4, ADDED), (4, READY)]
    fleet.close()
    assert fleet.instances == []
    fleet.members[1].state = READY
    fleet._notify(fleet.members[1], DRAINING)
    assert len(seen) == 4


def test_present_and_future_instances_of_a_pool_have_its_outlet(fleet: Fleet) -> None:
    outlet: Any = object()
    fleet.connect("a", outlet)
    fleet.add("a")
    fleet.add("b")
    assert [one.outlet is outlet for one in fleet.instances] == [True, True, False, True, False]
    assert list(fleet.connected) == ["a"]


def test_records_have_the_lives_of_their_instances(fleet: Fleet) -> None:
    fleet.drain(2)
    records: Any = [SimpleNamespace() for _ in range(3)]
    fleet.enter_lives(records)
    assert [vars(one) for one in records] == [
        *([{"pool": "a", "gpus": 2, "price_per_hour": 1.0, "added_ns": 100, "gone_ns": None}] * 2),
        {"pool": "b", "gpus": 5, "price_per_hour": 2.5, "added_ns": 100, "gone_ns": 100},
    ]


def test_a_view_has_the_ready_instances_of_its_pools(fleet: Fleet) -> None:
    view = FleetView(fleet, ["b"])
    assert view.ready == [2]
    assert view.slots == 10
    assert [each.name for each in view.pools] == ["b"]
    assert [view.covers(index) for index in range(3)] == [False, False, True]
    assert view.pool_of(0).name == "a"
    assert view.now_ns == 100
    for _ in range(2):
        fleet.add("b")
    assert view.ready == [2, 3, 4]
    assert view.slots == 30
    fleet.drain(0)
    fleet.drain(3)
    assert view.ready == [2, 4]


def test_a_view_waits_for_instances_of_its_own(fleet: Fleet) -> None:
    view = FleetView(fleet, ["a"])
    fleet.add("b", 50)
    assert not view.coming
    coming = fleet.add("a", 50)
    assert view.coming
    fleet.drain(coming)  # it never was ready
    assert view.ready == [0, 1]
    assert not view.coming
    early = fleet.add("b", 50)
    fleet.drain(early)
    assert FleetView(fleet, ["b"]).ready == [2]


def test_of_others_a_view_says_only_that_there_are_any(fleet: Fleet) -> None:
    view, seen = FleetView(fleet, ["b"]), Seen()
    view.follow(lambda index, state: seen.append((index, state)))
    fleet.drain(0)
    fleet.drain(2)
    assert seen == [(0, ADDED), (1, ADDED), (2, ADDED), (2, READY), (2, DRAINING), (2, GONE)]


@pytest.mark.parametrize(
    ("added_ns", "gone_ns", "lived_ns"),
    [(100, None, 900), (100, 400, 300), (0, 400, 350), (0, None, 950), (100, 2000, 900), (2000, None, 0)],
)
def test_an_instance_lives_within_the_run(added_ns: int, gone_ns: int | None, lived_ns: int) -> None:
    one: Any = SimpleNamespace(added_ns=added_ns, gone_ns=gone_ns)
    assert InstanceRecord.lived_ns(one, 50, 1000) == lived_ns
