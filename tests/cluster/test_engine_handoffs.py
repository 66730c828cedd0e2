"""Hand-overs of each engine step by step: where they differ from the common one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from away import BLOCK_BYTES, Away, on_the_way
from cluster_runs import linear

from blis_py.cluster.instances.handoffs import HANDOFFS
from blis_py.cluster.topology import Cluster, Disaggregation, InstanceSpec, Link, Pool
from blis_py.core.config import SchedulerConfig
from blis_py.core.request import Request
from blis_py.errors import InputError


@pytest.mark.parametrize(
    ("committed", "buffer", "beside", "full"),
    [
        *(
            (3, None, [], False),
            (4, None, [], True),
            (3, 20, [], False),
            (3, 20, [8], False),
            (3, 20, [9], True),
        ),
        *((3, 4, [], False), (3, 24, [5, 3], False), (3, 23, [5, 4], False), (3, 20, [5, 4], True)),
    ],
)
def test_a_request_waits_for_a_place_and_for_the_buffer(
    committed: int, buffer: int | None, beside: list[int], full: bool
) -> None:
    """A prompt of 10 tokens takes three blocks of 4; those beside it take theirs."""
    away, _, request = on_the_way("trtllm", max_tokens_in_buffer=buffer, pair_order="decode-first")
    away.decode.committed = committed  # type: ignore[attr-defined]
    away.decode.receiving_beside = lambda one: [Request("o", 0, tokens) for tokens in beside]  # type: ignore[method-assign, assignment]
    supply = away.handoff.offer(request, 0, 100)
    assert (supply.free_tokens > 0) == full


def test_a_request_for_one_token_stays_on_the_prefill_instance() -> None:
    away = Away("trtllm")
    for output, most in ((1, 0), (5, 1)):
        request = Request("r", 0, 9, row=0, output_tokens=output, max_tokens=most)
        assert away.handoff.begin(request, 1, 0, 100)
        assert away.handoff.under_way == 0
        assert away.prefill.calls[-1] == ("take_over", "request", 103)
    assert away.recorder.calls == [("dispatched", "request", 1)] * 2


@pytest.mark.parametrize(
    ("committed", "limit", "free"), [(0, 6, 0), (1, 6, 200), (2, 6, 300), (1, 500, 499), (1, 0, 200)]
)
def test_sglang_keeps_a_reserve_for_each_request_that_decodes(committed: int, limit: int, free: int) -> None:
    away = Away("sglang", committed=committed, reserved_decode_tokens=100)
    pair = away.begin(max_tokens=limit)
    assert pair.decode_request is not None
    supply = away.handoff.offer(pair.decode_request, 0, 100)
    assert supply.free_tokens == free


def test_sglang_begins_the_prefill_when_the_decode_instance_has_blocks() -> None:
    away = Away("sglang")
    pair = away.begin(deadline_ns=500)
    request = pair.decode_request
    assert request is not None
    assert (request.carried, request.generated, pair.started) == (1, 1, False)
    assert away.decode.calls == [("take_over", "request", 103)]
    assert away.prefill.calls == []
    away.handoff.load(request, 0, None, 101)
    assert away.decode.calls[-1] == ("set_deadline", "request", -1, 101)
    assert away.prefill.calls[-1] == ("take_over", "request", 103)
    away.handoff._reserved(pair, 102)  # taken again after an eviction there: the prefill goes on
    assert away.prefill.names.count("take_over") == 1
    away.prefilled(pair, 120)
    assert away.decode.calls[-1] == ("set_deadline", "request", 500, 120)
    assert away.network.calls == [("send", 3 * BLOCK_BYTES)]
    away.network.calls.clear()
    pair.prefill_end_ns, pair.sent_tokens = 0, 0
    away.handoff._reserved(pair, 130)
    assert away.network.calls == [("send", 3 * BLOCK_BYTES)]


@pytest.mark.parametrize(("deadline_ns", "set_"), [(-1, False), (0, True)])
@pytest.mark.parametrize(("reserved_ns", "sends"), [(-1, False), (0, True)])
def test_a_request_goes_on_where_it_has_been_all_the_time(
    deadline_ns: int, set_: bool, reserved_ns: int, sends: bool
) -> None:
    away = Away("trtllm-generation-first")
    pair = away.begin(deadline_ns=deadline_ns)
    assert away.decode.names == ["take_over"]
    assert pair.decode_request is not None
    assert pair.decode_request.deadline_ns == -1
    pair.reserved_ns = reserved_ns
    away.prefilled(pair, 110)
    assert ("set_deadline" in away.decode.names) == set_
    assert len(away.network.calls) == sends
    assert pair.reserved_ns == (110 if sends else -1)
    away.handoff._reserved(pair, 115)
    assert len(away.network.calls) == sends + 1


@pytest.mark.parametrize(
    ("prompt_tokens", "limit", "prefills"), [(44, 6, True), (45, 6, False), (49, 0, True), (50, 0, False)]
)
def test_a_generation_that_can_never_fit_is_not_prefilled(
    prompt_tokens: int, limit: int, prefills: bool
) -> None:
    away = Away("trtllm-generation-first")
    away.begin(prompt_tokens=prompt_tokens, max_tokens=limit)
    assert (away.prefill.names == ["take_over"]) == prefills


@pytest.mark.parametrize(
    ("gbps", "contended", "active", "duration_us"),
    [(None, False, 0, 3), (1.0, False, 0, 4), (1.0, False, 3, 4), (1.0, True, 3, 9), (1000.0, False, 0, 3)],
)
def test_blis_fixes_the_time_of_a_transfer_at_its_begin(
    gbps: float | None, contended: bool, active: int, duration_us: int
) -> None:
    """2.5 µs to set it up, and three blocks of half a thousand bytes."""
    away = Away("blis")
    pair = away.begin()
    link = SimpleNamespace(bandwidth_gbps=gbps, latency_ns=2500, contended=contended)
    away.handoff.link = lambda prefill, decode: link
    away.handoff._active = active
    away.prefilled(pair, 200)
    assert away.events.calls == [("call_at", 200 + duration_us * 1000)]
    assert (pair.alone_ns, pair.size_bytes, pair.reserved_ns) == (duration_us * 1000, 3 * BLOCK_BYTES, 200)
    away.events.actions[0](900)
    request = pair.decode_request
    assert request is not None
    assert (away.handoff._active, request.carried, request.max_tokens) == (active, 1, 6)
    supply = away.handoff.offer(request, 0, 950)
    assert (supply.tokens, supply.ready_ns) == (request.num_tokens, 950)
    away.handoff.load(request, 0, supply, 950)
    assert away.handoff.under_way == 0
    request.first_tick = 4
    away.handoff._decoded(request)
    assert (request.carried, request.bursts) == (0, [(4, 2)])


def test_blis_takes_a_step_for_a_request_of_one_token_too() -> None:
    away = Away("blis")
    pair = away.begin(max_tokens=1)
    away.handoff.link = lambda prefill, decode: SimpleNamespace(
        bandwidth_gbps=None, latency_ns=0, contended=False
    )
    away.prefilled(pair, 200)
    assert away.events.calls == [("call_at", 1200)]
    away.events.actions[0](1200)
    request = pair.decode_request
    assert request is not None
    assert (request.output_tokens, request.max_tokens) == (2, 0)
    away.handoff._decoded(request)
    assert request.carried == 1
    gone = Away("blis")
    pair = gone.begin()
    gone.handoff.link = away.handoff.link
    gone.prefilled(pair, 200)
    pair.is_open = False
    gone.events.actions[0](1200)
    assert pair.decode_request is None


def test_sglang_reserves_on_decode_instances_by_blocks_alone() -> None:
    scheduler = SchedulerConfig(num_kv_blocks=9, max_model_len=9, admission_rule="new-token-ratio")
    spec = InstanceSpec(scheduler=scheduler, latency=linear())
    pools = tuple(Pool(spec=spec, name=role, role=role) for role in ("prefill", "decode"))
    given = Disaggregation(handoff="sglang")
    link = Link(from_pool="prefill", to_pool="decode")
    found = HANDOFFS["sglang"](given).fitted(Cluster(pools=pools, links=(link,), disaggregation=given))
    rules = {pool.role: pool.spec.scheduler.admission_rule for pool in found.pools}
    assert rules == {"prefill": "new-token-ratio", "decode": "blocks"}
    assert [pool.spec.kv_source is not None for pool in found.pools] == [False, True]
    with pytest.raises(InputError, match="takes its KV from another source"):
        HANDOFFS["sglang"](given).fitted(found)
