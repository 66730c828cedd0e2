"""Hand-overs of the engines by hand: waits and blocks. See `apart` for the times of steps and links."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from apart import BLOCK_BYTES, US, cluster, requests, simulate, token_times

from blis_py.cluster.instances.handoff import HandOff
from blis_py.cluster.instances.handoffs import handoff as handoff_of
from blis_py.cluster.simulation import ClusterSimulation
from blis_py.cluster.topology import Disaggregation
from blis_py.errors import InputError
from blis_py.metrics.invariants import check
from blis_py.metrics.record import Outcome
from blis_py.metrics.visits import Onward, Role

ONE = requests([0], [20], [4])
"""A request of 20 tokens: 30 us of prefill, 5 blocks, 3 + 20 us of transfer."""


@pytest.mark.parametrize(
    ("handoff", "expected_us"),
    [
        # The decode instance pulls from 30 to 53 and computes the last prompt token again, 10 + 1 us.
        ("vllm", [64, 74, 84, 94]),
        # The token of the prefill is delivered with the KV.
        ("trtllm", [53, 63, 73, 83]),
        ("trtllm-generation-first", [53, 63, 73, 83]),
        ("sglang", [53, 63, 73, 83]),
        # The first step on the decode instance delivers two.
        ("blis", [63, 63, 73, 83]),
    ],
)
@pytest.mark.parametrize("async_scheduling", [False, True])
def test_token_times_are_those_worked_out_by_hand(
    handoff: str, expected_us: list[int], async_scheduling: bool
) -> None:
    record = simulate(ONE, handoff, async_scheduling=async_scheduling)
    check(record)
    assert token_times(record) == expected_us
    visits = record.visits
    assert visits.role.tolist() == [Role.PREFILL, Role.DECODE]
    assert visits.outcome.tolist() == [Onward.HANDED_OVER, Outcome.COMPLETED]
    handovers = record.handovers
    assert handovers is not None
    assert handovers.size_bytes.tolist() == [5 * BLOCK_BYTES]
    assert (handovers.prefill_end_ns // US).tolist() == [30]
    assert (handovers.end_ns // US).tolist() == [53]
    assert (handovers.reservation_ns + handovers.link_queue_ns).tolist() == [0]


def test_chunks_are_sent_as_they_are_computed() -> None:
    # Steps end at 18, 36 and 50; the last 4 tokens take 3 + 4 us. Whole it takes 3 + 20.
    budget = {"max_num_batched_tokens": 8}
    assert token_times(simulate(ONE, "sglang", **budget)) == [57, 67, 77, 87]
    assert token_times(simulate(ONE, "sglang", overlap="none", **budget)) == [73, 83, 93, 103]


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_layers_are_sent_as_they_are_computed(async_scheduling: bool) -> None:
    """Of four, one is computed every 7.5 us and takes 3 + 5: the last one from 30 to 38. In chunks the last
    one computes 4 tokens until 50, of which a layer takes 3 + 1."""
    layers = {"overlap": "layer", "kv_layers": 4, "async_scheduling": async_scheduling}
    assert token_times(simulate(ONE, "sglang", **layers)) == [38, 48, 58, 68]
    chunked = simulate(ONE, "sglang", max_num_batched_tokens=8, **layers)
    assert token_times(chunked) == [54, 64, 74, 84]
    for record in (simulate(ONE, "sglang", **layers), chunked):
        check(record)
        assert record.handovers is not None
        assert record.handovers.size_bytes.tolist() == [5 * BLOCK_BYTES]


def test_only_what_the_decode_instance_lacks_is_pulled() -> None:
    table = requests([0, 200], [20, 20], [4, 4], shared=[("s", 16), ("s", 16)])
    record = simulate(table, "vllm")
    assert record.handovers is not None
    assert record.handovers.size_bytes.tolist() == [5 * BLOCK_BYTES, BLOCK_BYTES]
    assert token_times(record, 1)[0] == 200 + 14 + 3 + 4 + 11, "the prefill instance has a cache as well"


def test_the_wait_for_the_link_is_apart_from_the_wire() -> None:
    record = simulate(requests([0, 0], [20, 20], [2, 2]), "trtllm", prefill=2)
    assert record.handovers is not None
    assert (record.handovers.wire_ns // US).tolist() == [23, 23]
    assert (record.handovers.link_queue_ns // US).tolist() == [20, 20], "they share the receiver"


def test_the_decode_instance_takes_blocks_before_the_prefill_or_after_it() -> None:
    """The first request has 5 of 8 blocks and keeps them until its last token."""
    table = requests([0, 0], [20, 20], [4, 4])
    pulled = simulate(table, "vllm", num_kv_blocks=8, prefill=2)
    assert pulled.handovers is not None
    assert (pulled.handovers.reservation_ns // US).tolist() == [0, 94 - 30]
    early = simulate(table, "sglang", num_kv_blocks=8, prefill=2)
    assert early.handovers is not None
    assert (early.handovers.reservation_ns // US).tolist() == [0, 83]
    assert (early.visits.enqueue_ns[:2] // US).tolist() == [0, 83], "its prefill waits as well"


def test_sglang_keeps_a_reserve_for_the_requests_it_has() -> None:
    table = requests([0, 0], [20, 20], [4, 4])
    reserved = {"num_kv_blocks": 40, "prefill": 2}  # 160 tokens
    together = simulate(table, "sglang", reserved_decode_tokens=60, **reserved)
    apart = simulate(table, "sglang", reserved_decode_tokens=64, **reserved)
    assert together.handovers is not None
    assert apart.handovers is not None
    assert (together.handovers.reserved_ns // US).tolist() == [0, 0], "160 - 40 - 2 * 60 = 0"
    assert (apart.handovers.reserved_ns // US).tolist() == [0, 83]


@pytest.mark.parametrize(("output", "waits"), [(121, False), (122, True)])
def test_sglang_has_room_for_the_rest_of_a_long_output_beside_the_requests_it_has(
    output: int, waits: bool
) -> None:
    """160 tokens of KV, two prompts of 20: 120 are left, and the prefill emits the first."""
    settings = {"num_kv_blocks": 40, "prefill": 2, "reserved_decode_tokens": 0}
    record = simulate(requests([0, 0], [20, 20], [4, output]), "sglang", **settings)
    assert record.handovers is not None
    assert (record.handovers.reserved_ns > 0).tolist() == [False, waits]


@pytest.mark.parametrize("handoff", ["vllm", "trtllm"])
def test_the_prefill_instance_keeps_its_blocks_until_they_are_read(handoff: str) -> None:
    """Its 9 blocks have room for one prompt, so that the second waits for the transfer of the first."""
    record = simulate(requests([0, 0], [20, 20], [2, 2]), handoff, num_kv_blocks=9)
    assert (record.visits.scheduled_ns[:2] // US).tolist() == [0, 53]
    freed = simulate(requests([0, 0], [20, 20], [2, 2]), "blis", num_kv_blocks=9)
    assert (freed.visits.scheduled_ns[:2] // US).tolist() == [0, 30]


def test_a_lease_ends() -> None:
    """The decode instance has no room for the second request until the first is done, at 94."""
    table = requests([0, 0], [20, 20], [4, 4])
    settings = {"num_kv_blocks": 8, "prefill": 2, "lease_ns": 20 * US}
    failed = simulate(table, "vllm", **settings)
    assert failed.outcome.tolist() == [Outcome.COMPLETED, Outcome.EVICTED]
    assert failed.rejection is not None
    assert failed.rejection.names[failed.rejection.codes[1]] == "KV transfer failed"
    again = simulate(table, "vllm", load_failure_policy="recompute", **settings)
    assert again.outcome.tolist() == [Outcome.COMPLETED, Outcome.COMPLETED]
    assert token_times(again, 1)[0] == 94 + 30, "it computes the prompt itself"
    check(failed)
    check(again)


@pytest.mark.parametrize(
    ("decider", "settings", "apart"),
    [
        ("always", {}, [0, 1, 2]),
        ("never", {}, []),
        ("prefix-threshold", {"threshold_tokens": 19}, [0, 2]),
        ("load", {}, [1]),
    ],
)
def test_deciders(decider: str, settings: dict[str, Any], apart: list[int]) -> None:
    """The second request finds 16 of its 20 tokens, and the first is under way at that time."""
    table = requests([0, 70, 500], [20, 20, 20], [9, 4, 4], shared=[("s", 16), ("s", 16), ("", 0)])
    run = cluster("trtllm", decider=decider, policy="weighted", **settings)
    run = replace(run, ingress=replace(run.ingress, cache_delay_ns=0))
    record = ClusterSimulation(table, run).run()
    assert record.handovers is not None
    assert sorted(record.handovers.request.tolist()) == apart
    assert record.outcome.tolist() == [Outcome.COMPLETED] * 3


def test_the_blocks_of_a_transfer_count_as_work_of_the_decode_instance() -> None:
    run = cluster("vllm", policy="least-loaded", decode=2)
    run = replace(run, ingress=replace(run.ingress, snapshot_refresh_ns=0))
    record = ClusterSimulation(requests([0, 5], [20, 20], [4, 4]), run).run()
    assert sorted(record.instance.tolist()) == [1, 2], "the second goes to the other one at once"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prefill": 0}, "no instance serves prefill"),
        ({"pair_order": "prefill-first", "shared": 1}, "may choose one instance for both"),
        ({"decider": "guess"}, "unknown decider"),
    ],
)
def test_what_cannot_work_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        simulate(ONE, "vllm", **settings)


def test_an_unknown_hand_over_is_refused() -> None:
    with pytest.raises(InputError, match="unknown hand-over"):
        simulate(ONE, "dynamo")


@pytest.mark.parametrize(
    ("handoff", "begins_us"), [("vllm", 0), ("trtllm", 53), ("trtllm-generation-first", 53), ("sglang", 83)]
)
def test_kv_on_its_way_takes_a_place_of_the_decode_instance(handoff: str, begins_us: int) -> None:
    """With one place, the second takes blocks when the first has decoded; under vLLM at once."""
    table = requests([0, 0], [20, 20], [4, 4])
    record = simulate(table, handoff, prefill=2, max_num_seqs=1, reserved_decode_tokens=0)
    check(record)
    assert record.handovers is not None
    first, second = (record.handovers.reserved_ns // US).tolist()
    assert second - first == begins_us


@pytest.mark.parametrize("batch_former", ["running-first", "prefill-only", "in-flight"])
def test_a_request_handed_over_joins_the_decodes_of_others(batch_former: str) -> None:
    """Its first step on the decode instance is a decode step, whatever the order of prompts and decodes."""
    table = requests([0, 35], [20, 20], [30, 4])
    record = simulate(table, "sglang", prefill=2, batch_former=batch_former)
    gaps = set(np.diff(token_times(record)).tolist())
    assert gaps == {10}, "nothing that the first request notices"


@pytest.mark.parametrize("single_step", [False, True])
def test_kv_is_received_between_any_two_steps_and_new_requests_in_intervals(single_step: bool) -> None:
    """The second request comes to the decode instance before its first step; the third during the second
    interval, whose end it waits for before it has blocks."""
    table = requests([0, 50, 175], [20, 20, 20], [60, 4, 4])
    settings = {"batch_former": "prefill-only", "receive_interval": 10, "prefill": 2}
    record = simulate(table, "sglang", single_step=single_step, **settings)
    assert record.handovers is not None
    assert (record.handovers.reserved_ns // US).tolist() == [0, 50, 253], "ten steps after 53, and ten more"
    assert np.diff(token_times(record, 1)).tolist()[0] < 20, "and no interval once its KV is there"


def test_trtllm_guarantees_ends_when_blocks_are_taken() -> None:
    """The first request runs with a guarantee of 6 of 16 blocks, the second is on the way with 5. A third one
    needs 6; once its KV is there, it decodes."""
    table = requests([0, 40, 41], [20, 20, 20], [4, 4, 4])
    settings = {"num_kv_blocks": 16, "prefill": 3, "admission_rule": "guaranteed-no-evict"}
    record = simulate(table, "trtllm", **settings)
    check(record)
    assert record.handovers is not None
    reserved_us = (record.handovers.reserved_ns // US).tolist()
    assert reserved_us[:2] == [30, 73]
    assert reserved_us[2] == int(record.finish_ns[0]) // US
    assert max(np.diff(token_times(record, 2)).tolist()) == 10


@pytest.mark.parametrize("handoff", ["trtllm", "trtllm-generation-first"])
@pytest.mark.parametrize("single_step", [False, True])
@pytest.mark.parametrize(
    ("buffer", "expected_us"),
    [
        (None, [0, 0, 0]),
        (60, [0, 0, 0]),
        (56, [0, 0, 43]),  # two at the same time, each with half of the link
        (37, [0, 0, 43]),  # in whole blocks, ten of them
        (36, [0, 23, 46]),  # one after the other
        (1, [0, 23, 46]),  # a prompt that is longer than the buffer comes alone
    ],
)
def test_a_buffer_admits_as_many_prompts_as_it_holds(
    handoff: str, single_step: bool, buffer: int | None, expected_us: list[int]
) -> None:
    """Three prompts of 5 blocks, all computed at the same time; alone each takes 3 + 20 us."""
    table = requests([0, 0, 0], [20, 20, 20], [2, 2, 2])
    record = simulate(table, handoff, prefill=3, max_tokens_in_buffer=buffer, single_step=single_step)
    check(record)
    assert record.handovers is not None
    assert (record.handovers.reserved_ns // US - 30).tolist() == expected_us


@pytest.mark.parametrize("single_step", [False, True])
def test_a_decode_instance_chosen_after_the_prefill_is_chosen_once(single_step: bool) -> None:
    """Round-robin takes a turn for each request, and not another one at its arrival."""
    table = requests([0, 100, 200, 300], [20] * 4, [4] * 4)
    record = simulate(table, "vllm", pair_order="prefill-first", decode=2, single_step=single_step)
    assert record.instance.tolist() == [1, 2, 1, 2]


@pytest.mark.parametrize("handoff", ["sglang", "trtllm-generation-first"])
def test_where_both_get_a_request_at_once_the_prefill_cannot_come_first(handoff: str) -> None:
    settings = Disaggregation(handoff=handoff, pair_order="prefill-first")
    with pytest.raises(InputError, match=f"disaggregation.pair_order: has no effect with {handoff}"):
        handoff_of(settings)


@pytest.mark.parametrize(("latency_ns", "took_us"), [(0, 1), (400, 1), (1000, 1), (1001, 2), (3000, 3)])
def test_a_hand_over_of_blis_without_a_bandwidth_takes_its_latency_in_whole_microseconds(
    latency_ns: int, took_us: int
) -> None:
    record = simulate(requests([0], [20], [2]), "blis", latency_ns=latency_ns, bandwidth_gbps=None)
    assert record.handovers is not None
    assert (record.handovers.end_ns - record.handovers.begin_ns).tolist() == [took_us * 1000]


@pytest.mark.parametrize(
    ("sent_tokens", "until_tokens", "blocks"),
    [
        (0, 7, 0),  # no block of 8 tokens is complete
        (0, 8, 1),
        (8, 12, 0),
        (8, 16, 1),
        (16, 12, 0),  # more than that is on the way
        (0, 20, 3),  # the last one need not be full
        (16, 20, 1),
        (20, 20, 1),  # its last block goes on from what was cached
        (24, 20, 0),
    ],
)
def test_whole_blocks_of_the_decode_instance_are_sent_and_the_last_one_of_a_prompt(
    sent_tokens: int, until_tokens: int, blocks: int
) -> None:
    """Of a prompt of 20 tokens."""
    pair: Any = SimpleNamespace(decode=1, sent_tokens=sent_tokens, request=SimpleNamespace(prompt_tokens=20))
    blocks_of_eight: Any = SimpleNamespace(_block_bytes={1: (8, BLOCK_BYTES)})
    assert HandOff._lacking_bytes(blocks_of_eight, pair, until_tokens) == blocks * BLOCK_BYTES


@pytest.mark.parametrize(("latency_ns", "duration_us"), [(0, 1), (1, 1), (1000, 1), (1001, 2), (3000, 3)])
def test_a_transfer_of_blis_without_a_bandwidth_takes_its_latency_in_whole_microseconds(
    latency_ns: int, duration_us: int
) -> None:
    record = simulate(ONE, "blis", latency_ns=latency_ns, bandwidth_gbps=None)
    handovers = record.handovers
    assert handovers is not None
    assert (handovers.end_ns - handovers.prefill_end_ns).tolist() == [duration_us * US]


HANDOFFS = ["vllm", "trtllm", "trtllm-generation-first", "sglang", "blis"]


@pytest.mark.parametrize(
    ("handoff", "pair_order"),
    [*((name, "decode-first") for name in HANDOFFS), ("vllm", "prefill-first"), ("trtllm", "prefill-first")],
)
@pytest.mark.parametrize("fails", ["", "prefill", "decode"])
def test_the_order_in_which_pools_are_listed_changes_nothing(
    handoff: str, pair_order: str, fails: str
) -> None:
    """Clients that give up, scarce blocks, perhaps a failure; the policy reads the load, without a draw."""
    rng, count = np.random.default_rng(5), 30
    arrivals = np.cumsum(rng.integers(0, 25, count))
    prompts, outputs = rng.integers(4, 60, count), rng.integers(1, 25, count)
    deadlines = np.where(np.arange(count) % 4, -1, arrivals + rng.integers(5, 150, count))
    table = requests(*(column.tolist() for column in (arrivals, prompts, outputs, deadlines)))
    apart_ns = np.sort(rng.integers(0, 999, count))  # no two events at the same time
    table = replace(table, arrival_ns=table.arrival_ns + apart_ns)
    listed = cluster(
        handoff,
        prefill=2,
        decode=2,
        num_kv_blocks=40,
        policy="always-busiest",
        pair_order=pair_order,
        latency_ns=3137,
    )
    found = []
    for pools in (listed.pools, listed.pools[::-1]):
        simulation = ClusterSimulation(table, replace(listed, pools=pools))
        instances = [*simulation.fleet.instances]
        names = [pool.name for pool in pools for _ in range(pool.count)]
        if fails:
            index = names.index(fails)
            simulation.call_at(200 * US, lambda now_ns, at=index, run=simulation: run.fail(at))
        record = simulation.run()
        check(record)
        assert [instance.in_flight for instance in instances] == [0] * 4
        firsts = {name: names.index(name) for name in names}
        places = [(names[at], at - firsts[names[at]]) if at >= 0 else None for at in record.instance.tolist()]
        times = [record.outcome, record.first_token_ns, record.finish_ns]
        found.append([places, *(column.tolist() for column in times)])
    assert found[0] == found[1]


@pytest.mark.parametrize("limit", [{"num_kv_blocks": 6}, {"max_model_len": 24}])
def test_generation_first_serves_what_just_fits_into_the_decode_instance(limit: dict[str, int]) -> None:
    record = simulate(requests([0], [20], [4]), "trtllm-generation-first", **limit)
    assert record.outcome.tolist() == [Outcome.COMPLETED]
