"""Links between instances: shared bandwidth, exact at every begin and end of a transfer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from apart import US, cluster

from blis_py.cluster.instances.fleet import Member
from blis_py.cluster.instances.network import Network, Transfer
from blis_py.cluster.time.events import EventQueue
from blis_py.cluster.topology import Link


def transfers(
    sent: Sequence[tuple[int, int, int, int]], members: int = 4, gpus: int = 1, **settings: Any
) -> list[int]:
    """Ends of transfers in us, each given with its begin in us, its kB, and both ends."""
    events = EventQueue()
    pool = cluster("vllm").pools[0]
    pool = replace(pool, spec=replace(pool.spec, gpus=gpus))
    link = Link(from_pool="a", to_pool="b", **{"bandwidth_gbps": 1.0, **settings})
    network = Network(events, [Member(index, pool, 0) for index in range(members)], lambda *ends: link)
    ends = [-1] * len(sent)

    def begin(number: int) -> None:
        _, kilobytes, source, target = sent[number]

        def done(transfer: Transfer, now_ns: int) -> None:
            ends[number] = now_ns // US

        network.send(kilobytes * 1000, source, target, done)

    for number, (at_us, *_) in enumerate(sent):
        events.call_at(at_us * US, lambda now_ns, number=number: begin(number))
    events.run()
    assert network.under_way == 0
    assert network.moved_bytes == sum(kilobytes for _, kilobytes, *_ in sent) * 1000
    return ends


def test_three_overlapping_transfers_from_one_instance_are_those_worked_out_by_hand() -> None:
    # 1 GB/s = 1 kB/us. 0-10 the first alone: 10 of 60. 10-30 two of them: 20 and 10 of 30. From 30 three,
    # 1/3 each: the second has 20 left, the third 10, done at 60; the first then has 40 - 10 = 30 left, and
    # the second 10. Two again: the second is done at 80, the first has 20 left, alone: 100.
    assert transfers([(0, 60, 0, 1), (10, 30, 0, 2), (30, 10, 0, 3)]) == [100, 80, 60]


def test_a_transfer_that_meets_no_other_takes_one_event_and_ends_alike_whether_or_not_it_does() -> None:
    # Set-up takes 5 us. Met: the first as its bytes flow, the second before they do, the third never:
    # 5-25 the first alone: 20 of 40. 25-45 halves: the second is done, and at 55 the first.
    assert transfers([(0, 40, 0, 1), (20, 10, 0, 2)], latency_ns=5 * US) == [55, 45]
    # Both flow from 5 and 8 on: 3 of 20, then 10 each until 28; 7 of the first are left.
    assert transfers([(0, 20, 0, 1), (3, 10, 0, 2)], latency_ns=5 * US) == [35, 28]
    assert transfers([(0, 40, 0, 1), (45, 10, 0, 2)], latency_ns=5 * US) == [45, 60]


def test_both_ends_are_shared() -> None:
    assert transfers([(0, 20, 0, 2), (0, 20, 1, 2)]) == [40, 40], "one receiver"
    assert transfers([(0, 20, 0, 2), (0, 20, 1, 3)]) == [20, 20], "nothing in common"


def test_what_one_transfer_cannot_use_goes_to_the_others() -> None:
    # The first two leave instance 0; the second also shares the receiver with two more, so it gets 1/3,
    # and the first 2/3.
    ends = transfers([(0, 40, 0, 1), (0, 40, 0, 3), (0, 40, 2, 3), (0, 40, 4, 3)], members=5)
    assert ends == [60, 120, 120, 120]


def test_bytes_flow_after_the_set_up_and_at_the_efficiency() -> None:
    assert transfers([(5, 20, 0, 1)], latency_ns=7 * US, efficiency=0.5) == [52]
    assert transfers([(0, 20, 0, 1), (0, 20, 0, 1)], contended=False, latency_ns=US) == [21, 21]
    assert transfers([(0, 20, 0, 1)], bandwidth_gbps=None, latency_ns=US) == [1]


def test_the_gpus_of_an_instance_add_up_and_a_node_may_have_less() -> None:
    assert transfers([(0, 40, 0, 1)], gpus=4) == [10]
    assert transfers([(0, 40, 0, 1)], gpus=4, node_gbps=2.0) == [20]
    # Two instances of 4 GPUs share a node of 8, and its 2 GB/s.
    assert transfers([(0, 40, 0, 2), (0, 40, 1, 3)], gpus=4, node_gbps=2.0) == [40, 40]
    assert transfers([(0, 40, 0, 2), (0, 40, 1, 3)], gpus=4, node_gbps=2.0, gpus_per_node=4) == [20, 20]


@pytest.mark.parametrize("load", [0.3, 0.7])
def test_a_link_under_poisson_arrivals_is_a_shared_processor(load: float) -> None:
    """M/M/1 with processor sharing: the mean time is that of an idle link, divided by one minus the load."""
    rng = np.random.default_rng(7)
    count, mean_kilobytes = 6000, 1000
    sizes = np.ceil(rng.exponential(mean_kilobytes, count)).astype(int)
    begins = np.cumsum(rng.exponential(mean_kilobytes / load, count)).astype(int)
    ends = transfers([(int(b), int(s), 0, 1) for b, s in zip(begins, sizes, strict=True)], members=2)
    mean_us = np.mean(np.array(ends) - begins)
    assert mean_us == pytest.approx(mean_kilobytes / (1 - load), rel=0.08)


def test_the_instances_of_a_pool_fill_its_nodes_whatever_stands_before_them() -> None:
    first, second = cluster("vllm").pools[:2]
    assert first.name != second.name
    pools = [first, second, second, first, second, second, second]
    link = Link(from_pool="a", to_pool="b", gpus_per_node=2)
    members = [Member(index, pool, 0) for index, pool in enumerate(pools)]
    network = Network(EventQueue(), members, lambda *ends: link)
    nodes = [network._node(index, link) for index in range(len(pools))]
    assert [node for name, node in nodes if name == second.name] == [0, 0, 1, 1, 2]
    assert [node for name, node in nodes if name == first.name] == [0, 0]
