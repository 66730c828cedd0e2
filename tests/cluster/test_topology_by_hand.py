"""Clusters that can be and cannot: roles, links, pools of models; the nodes and ports of their links."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from cluster_runs import linear

from blis_py.cluster.instances.network import Network
from blis_py.cluster.topology import (
    Cluster,
    Disaggregation,
    InstanceSpec,
    Link,
    Pool,
    links_between,
    side_of,
)
from blis_py.core.config import SchedulerConfig
from blis_py.errors import InputError
from blis_py.latency.base import FrontendDelays

SPEC = InstanceSpec(
    scheduler=SchedulerConfig(num_kv_blocks=10, max_model_len=20, block_size=4), latency=linear()
)


def pool(name: str, role: str = "both", count: int = 1, **more: Any) -> Pool:
    return Pool(spec=SPEC, name=name, role=role, count=count, **more)


def link(one: str, other: str, **more: Any) -> Link:
    return Link(from_pool=one, to_pool=other, **more)


@pytest.mark.parametrize(
    ("pools", "links", "message"),
    [
        ([pool("a", count=0)], [], "num_instances: must be at least 1"),
        ([pool("a", count=0), pool("b", count=0)], [], "num_instances: must be at least 1"),
        ([pool("a", count=-1), pool("b")], [], "pools.a.count: must be at least 0"),
        ([pool("a"), pool("a")], [], "two pools have this name"),
        ([pool("a", "nosuch")], [], "unknown role"),
        ([pool("a", weight=0.0)], [], "must be positive"),
        ([pool("a", weight=float("inf"))], [], "must be positive"),
        ([pool("a", weight=float("nan"))], [], "must be positive"),
        ([pool("a")], [link("a", "b")], "no such pool"),
        ([pool("a")], [link("b", "a")], "no such pool"),
    ],
)
def test_a_cluster_that_contradicts_itself_is_refused(
    pools: list[Pool], links: list[Link], message: str
) -> None:
    Cluster(pools=(pool("a", count=0), pool("b", weight=0.1)), links=(link("a", "b"),))
    with pytest.raises(InputError, match=message):
        Cluster(pools=tuple(pools), links=tuple(links))


def test_pools_have_one_block_size_and_one_front_end() -> None:
    other = replace(SPEC, scheduler=replace(SPEC.scheduler, block_size=2 * SPEC.scheduler.block_size))
    with pytest.raises(InputError, match="must be the same in all pools"):
        Cluster(pools=(pool("a"), replace(pool("b"), spec=other)))
    bad = replace(SPEC, scheduler=replace(SPEC.scheduler, max_num_seqs=0))
    with pytest.raises(InputError, match="max_num_seqs"):
        Cluster(pools=(replace(pool("a"), spec=bad),))
    whole = Cluster(pools=(pool("a"), pool("b")))
    assert whole.block_size == SPEC.scheduler.block_size
    assert whole.frontend == SPEC.latency.frontend
    assert isinstance(whole.frontend, FrontendDelays)


def of_models(name: str, role: str, *models: str) -> Pool:
    return replace(pool(name, role), models=frozenset(models), spec=replace(SPEC, model=models[0]))


def test_pools_are_grouped_by_the_model_that_they_serve() -> None:
    a, b, c = of_models("a", "both", "m"), of_models("b", "prefill", "n"), of_models("c", "decode", "n")
    several = Cluster(pools=(a, b, c))
    assert [[each.name for each in group] for group in several.groups] == [["a"], ["b", "c"]]
    assert [[each.name for each in group] for group in several.pairs] == [["b", "c"]]
    partly = Cluster(pools=(a, b, of_models("x", "both", "n")))
    assert [[each.name for each in group] for group in partly.pairs] == [["b", "x"]]
    one = Cluster(pools=(pool("a"), pool("b")))
    assert [[each.name for each in group] for group in one.pairs] == [["a", "b"]]


def test_both_sides_of_a_hand_over_are_linked() -> None:
    pools = [pool("p", "prefill"), pool("d", "decode"), pool("x")]
    assert [each.name for each in side_of(pools, "prefill")] == ["p", "x"]
    assert links_between(pools) == [("p", "d"), ("p", "x"), ("x", "d"), ("x", "x")]


def pairs(*pools: Pool, links: tuple[Link, ...] = (), order: str = "decode-first") -> Cluster:
    return Cluster(pools=pools, links=links, disaggregation=Disaggregation(pair_order=order))


def test_hand_overs_need_two_sides_and_their_link() -> None:
    prefill, decode = pool("p", "prefill"), pool("d", "decode")
    linked = (link("p", "d"),)
    pairs(prefill, decode, links=linked).require_pairs()
    pairs(prefill, decode, links=linked, order="prefill-first").require_pairs()
    for cluster, message in (
        (pairs(prefill, pool("d", "decode", count=0), links=linked), "no instance serves decode"),
        (pairs(pool("p", "prefill", count=0), decode, links=linked), "no instance serves prefill"),
        (pairs(prefill, decode), "no link between two pools"),
        (pairs(prefill, decode, links=(link("d", "p"),)), "no link between two pools"),
        (
            pairs(pool("x"), links=(link("x", "x"),), order="prefill-first"),
            "may choose one instance for both",
        ),
    ):
        with pytest.raises(InputError, match=message):
            cluster.require_pairs()


def test_without_a_hand_over_roles_and_links_need_an_outlet() -> None:
    plain = Cluster(pools=(pool("a"), pool("b")), links=(link("a", "b"),))
    with pytest.raises(InputError, match="nothing goes over this link"):
        plain.require_supported()
    plain.require_supported(["a"])
    Cluster(pools=(pool("a"),)).require_supported()
    pairs(pool("p", "prefill"), pool("d", "decode")).require_supported()
    for cluster, connected, message in (
        (Cluster(pools=(pool("p", "prefill"), pool("d", "decode"))), [], "pools.p.role: not supported yet"),
        (Cluster(pools=(pool("a"), pool("p", "prefill"))), ["a"], "a prefill pool has no way on"),
        (Cluster(pools=(pool("a", routing_policy="random"),)), [], "routing_policy: not supported yet"),
        (Cluster(pools=(pool("a", routing_scorers={"x": 1.0}),)), [], "routing_policy: not supported yet"),
        (
            Cluster(pools=(pool("a"),), links=(link("a", "a", bandwidth_gbps=1.0),)),
            ["a"],
            "links.bandwidth_gbps",
        ),
    ):
        with pytest.raises(InputError, match=message):
            cluster.require_supported(connected)


# -- links -------------------------------------------------------------------------------------------------


class Events:
    now_ns = 1000

    def __init__(self) -> None:
        self.at: list[int] = []

    def schedule(self, call: Any, time_ns: int) -> None:
        self.at.append(time_ns)


def network(given: Link, gpus: tuple[int, ...] = (2, 2, 4)) -> tuple[Network, Events]:
    events: Any = Events()
    members: Any = [
        SimpleNamespace(pool=SimpleNamespace(name=f"p{number}", spec=SimpleNamespace(gpus=number)))
        for number in gpus
    ]
    return Network(events, members, lambda source, target: given), events


@pytest.mark.parametrize(
    ("more", "size", "alone_ns"),
    [
        ({}, 10**6, 3000),  # without a bandwidth only the set-up counts
        ({"bandwidth_gbps": 5.0}, 10**6, 3000 + 100_000),
        ({"bandwidth_gbps": 5.0, "efficiency": 0.5}, 10**6, 3000 + 200_000),
        ({"bandwidth_gbps": 5.0}, 1, 3001),
        ({"bandwidth_gbps": 5.0}, 0, 3000),
        ({"bandwidth_gbps": 5.0, "contended": True}, 0, 3000),
    ],
)
def test_a_transfer_alone_takes_its_set_up_and_its_bytes(
    more: dict[str, Any], size: int, alone_ns: int
) -> None:
    """Over the links of two GPUs."""
    found, events = network(link("p2", "p2", latency_ns=3000, **more))
    transfer = found.send(size, 0, 1, lambda *_: None)
    assert transfer.alone_ns == alone_ns
    assert events.at == [1000 + alone_ns]
    assert (found.under_way, found.sent_bytes) == (1, size)
    assert transfer.is_shared == (alone_ns > 3000)
    found.end(transfer, 9000)
    assert (found.under_way, found.moved_bytes, found.cancelled_bytes) == (0, size, 0)


def test_nodes_of_a_pool_are_filled_in_order() -> None:
    given = link("a", "b", bandwidth_gbps=1.0, node_gbps=10.0, gpus_per_node=8)
    found, _ = network(given, gpus=(2, 4, 2, 2, 2, 2, 4, 4))
    assert [found._node(index, given) for index in range(8)] == [
        *(("p2", 0), ("p4", 0), ("p2", 0), ("p2", 0), ("p2", 0), ("p2", 1), ("p4", 0), ("p4", 1))
    ]
    wide, _ = network(given, gpus=(16, 16))
    assert [wide._node(index, given) for index in range(2)] == [("p16", 0), ("p16", 1)]
    assert [port.rate for port in wide._ports_of(0, 1, given)] == pytest.approx(
        [rate * given.efficiency for rate in (16, 20, 16, 20)]
    )
    one_sided = replace(given, one_sided=True)
    assert len(wide._ports_of(0, 1, one_sided)) == 2
    assert wide._ports_of(0, 1, replace(given, bandwidth_gbps=None)) == []
