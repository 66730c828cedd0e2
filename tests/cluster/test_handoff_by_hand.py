"""Hand-overs step by step: what each engine does with a pair, and what becomes of it if something fails."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cluster_runs import linear

from blis_py.cluster.instances.handoff import DEADLOCK, TRANSFER_FAILED
from blis_py.cluster.instances.handoffs import HANDOFFS
from blis_py.cluster.instances.pairs import Pair
from blis_py.cluster.topology import Cluster, Disaggregation, InstanceSpec, Link, Pool
from blis_py.core.config import SchedulerConfig
from blis_py.core.request import NEVER_NS, Request
from blis_py.errors import InputError
from blis_py.metrics.record import INSTANCE_FAILED, NO_INSTANCE

FRONT_END_NS = 3
BLOCK, BLOCK_BYTES = 4, 1000


class Log:
    """Anything that is called: what, and with which numbers and words."""

    def __init__(self, **known: Any) -> None:
        vars(self).update(known)
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            plain = tuple("request" if isinstance(each, Request) else each for each in given)
            self.calls.append((name, *plain))

        return call

    @property
    def names(self) -> list[str]:
        return [name for name, *_ in self.calls]


class Network(Log):
    def send(self, size_bytes: int, prefill: int, decode: int, when: Any, pair: Pair) -> Any:
        self.calls.append(("send", size_bytes))
        return SimpleNamespace(alone_ns=7, tag=pair)


class Events(Log):
    now_ns = 100

    def call_at(self, time_ns: int, action: Any, *_: Any) -> None:
        self.calls.append(("call_at", time_ns))
        self.actions.append(action)


class Away:
    """A hand-over with two instances of its own: 1 for prefill, 0 for decode."""

    def __init__(self, name: str, chosen: int = 0, committed: int = 0, **settings: Any) -> None:
        given = Disaggregation(handoff=name, **settings)
        self.handoff: Any = HANDOFFS[name](given)
        spec = SimpleNamespace(
            scheduler=SimpleNamespace(block_size=BLOCK),
            kv_block_bytes=BLOCK_BYTES,
            kv_layers=4,
            gpus=2,
        )
        member = SimpleNamespace(pool=SimpleNamespace(spec=spec, name="p"))
        self.decode, self.prefill = (
            Log(
                committed=committed,
                most_tokens=50,
                now_ns=0,
                receiving_beside=lambda request: [],
                block_size=BLOCK,
                max_num_seqs=4,
            )
            for _ in range(2)
        )
        self.events, self.recorder, self.network = Events(actions=[]), Log(), Network()
        handoff = self.handoff
        handoff._instances, handoff._events = [self.decode, self.prefill], self.events
        handoff._recorder, handoff.network = self.recorder, self.network
        handoff._front_end_ns, handoff._block_bytes = FRONT_END_NS, {}
        handoff._when_sent, handoff._when_computed = handoff._sent, handoff._chunks
        handoff._fleet = SimpleNamespace(members=[member, member], cluster=SimpleNamespace(block_size=BLOCK))
        handoff._choose_decode = lambda request, prefill, now_ns: chosen
        handoff._horizon = Log()

    def begin(
        self, decode: int = 0, prompt_tokens: int = 10, max_tokens: int = 6, deadline_ns: int = -1
    ) -> Pair:
        request = Request("r", 0, prompt_tokens, row=0, output_tokens=5, max_tokens=max_tokens)
        request.deadline_ns = deadline_ns
        assert self.handoff.begin(request, 1, decode, 100)
        pair: Pair = self.handoff._pairs[0]
        return pair

    def prefilled(self, pair: Pair, end_ns: int = 100) -> None:
        assert self.handoff.way_on(pair.request) is not None
        self.handoff.take([pair.request], end_ns)


def test_the_prefill_instance_gets_a_request_for_one_token_and_the_decode_instance_expects_it() -> None:
    away = Away("vllm")
    pair = away.begin()
    assert (pair.request.max_tokens, pair.limits, pair.started) == (1, (5, 6), True)
    assert pair.request.keeps_blocks
    assert away.decode.calls == [("expect", 1, 100, False)]
    assert away.prefill.calls == [("take_over", "request", 103)]
    assert away.recorder.calls == [("dispatched", "request", 1, 103)]
    assert away.handoff._horizon.names == ["expect"]
    late = Away("vllm", pair_order="prefill-first")
    late.begin(decode=-1)
    assert late.decode.calls == []
    assert late.handoff._horizon.calls == []


def test_an_instance_hands_over_to_itself_only_as_in_blis() -> None:
    for name, itself in (("vllm", False), ("blis", True)):
        assert Away(name).handoff.begin(Request("r", 0, 9, row=0), 1, 1, 100) == itself


def test_what_is_sent_during_the_prefill_is_watched() -> None:
    for overlap, watched in (
        ("none", []),
        ("chunk", ["watch_steps"]),
        ("layer", ["watch_steps", "watch_prompts"]),
    ):
        away = Away("vllm", overlap=overlap)
        away.begin()
        assert away.prefill.names == [*watched, "take_over"]


@pytest.mark.parametrize(
    ("name", "carried", "lease"), [("vllm", 0, None), ("vllm", 0, 50), ("trtllm", 1, None)]
)
def test_a_request_goes_on_with_its_own_limits(name: str, carried: int, lease: int | None) -> None:
    away = Away(name, **({} if lease is None else {"lease_ns": lease * 10**6}))
    pair = away.begin()
    away.prefilled(pair, 100)
    one = pair.decode_request
    assert one is not None
    assert (one.carried, one.generated, one.max_tokens, one.output_tokens) == (carried, carried, 6, 5)
    assert away.decode.calls == [
        *(("expect", 1, 100, False), ("expect", -1, 100, False), ("take_over", "request", 103)),
    ]
    assert away.recorder.calls[1:] == [("revisit", "request", 103), ("dispatched", "request", 0)]
    assert away.events.calls == ([("call_at", 100 + lease * 10**6)] if lease else [])


def test_a_decode_instance_may_be_chosen_behind_the_prefill_or_be_lacking() -> None:
    away = Away("vllm", pair_order="prefill-first")
    pair = away.begin(decode=-1)
    away.prefilled(pair)
    assert pair.decode == 0
    assert away.decode.names == ["take_over"]
    none = Away("vllm", chosen=-1, pair_order="prefill-first")
    pair = none.begin(decode=-1)
    none.prefilled(pair)
    assert none.recorder.calls[-1] == ("lost", "request", 100, NO_INSTANCE)
    assert none.decode.calls == []


@pytest.mark.parametrize("failed", [0, 1])
def test_a_request_between_two_instances_is_lost_with_either(failed: int) -> None:
    away = Away("vllm")
    pair = away.begin()
    away.handoff._failed.add(failed)
    away.prefilled(pair)
    assert away.recorder.calls[-1] == ("lost", "request", 100, INSTANCE_FAILED)
    assert away.decode.names == ["expect", "expect"]


# -- the KV ------------------------------------------------------------------------------------------------


def on_the_way(name: str = "vllm", prompt_tokens: int = 10, **settings: Any) -> tuple[Away, Pair, Any]:
    away = Away(name, **settings)
    pair = away.begin(prompt_tokens=prompt_tokens)
    away.prefilled(pair)
    return away, pair, pair.decode_request


def test_all_that_the_decode_instance_lacks_is_offered_and_sent_in_whole_blocks() -> None:
    away, pair, request = on_the_way()
    supply = away.handoff.offer(request, 4, 100)
    assert (supply.tokens, supply.ready_ns) == (5, NEVER_NS)  # the last one is computed in any case
    assert away.handoff.offer(pair.request, 4, 100) is None
    away.handoff.load(request, 4, supply, 100)
    assert (pair.reserved_ns, pair.sent_tokens, pair.begin_ns, pair.alone_ns) == (100, 10, 100, 7)
    assert away.network.calls == [("send", 2 * BLOCK_BYTES)]
    assert (pair.size_bytes, len(pair.transfers)) == (2 * BLOCK_BYTES, 1)
    away.handoff._sent(pair.transfers[0], 150)
    assert away.handoff.under_way == 0
    assert not pair.is_open
    assert away.prefill.calls[-1] == ("let_go", "request", 150)
    assert away.decode.calls[-1] == ("kv_ready_at", "request", 150)
    row = np.frombuffer(away.handoff._packed, np.int64)
    assert row[:8].tolist() == [0, 1, 0, 100, 100, 100, 100, 150]
    assert away.handoff.offer(request, 4, 100) is None


@pytest.mark.parametrize(
    ("sent", "until", "size"),
    [(0, 10, 3), (0, 8, 2), (0, 9, 2), (4, 10, 2), (8, 10, 1), (3, 8, 2), (8, 8, 0), (10, 10, 1), (12, 8, 0)],
)
def test_blocks_that_are_not_there_count(sent: int, until: int, size: int) -> None:
    away, pair, _ = on_the_way()
    pair.sent_tokens = sent
    assert away.handoff._lacking_bytes(pair, until) == size * BLOCK_BYTES


def test_nothing_is_sent_twice_but_the_end_always() -> None:
    away, pair, request = on_the_way()
    away.handoff.load(request, 0, None, 100)
    away.network.calls.clear()
    pair.sent_tokens = 8
    away.handoff._send(pair, 8, 120)
    assert away.network.calls == []
    assert pair.begin_ns == 100
    pair.sent_tokens, pair.ahead_bytes = 8, BLOCK_BYTES
    away.handoff._send(pair, 10, 130)
    assert away.network.calls == [("send", 0)]
    assert (pair.begin_ns, pair.ahead_bytes) == (130, 0)


def test_a_transfer_ends_a_hand_over_only_when_all_is_sent_and_computed() -> None:
    away, pair, request = on_the_way()
    away.handoff.load(request, 0, None, 100)
    last = pair.transfers[0]
    pair.transfers.append(SimpleNamespace(tag=pair))  # type: ignore[arg-type]
    away.handoff._sent(last, 150)
    assert pair.is_open
    (other,) = pair.transfers
    for name, value in (("sent_tokens", 8), ("prefill_end_ns", -1)):
        before = getattr(pair, name)
        setattr(pair, name, value)
        away.handoff._sent(SimpleNamespace(tag=pair), 160)
        assert pair.is_open
        setattr(pair, name, before)
    pair.prefill_end_ns = 0
    away.handoff._sent(other, 170)
    assert not pair.is_open


def test_a_reservation_that_is_taken_back_stops_the_transfer() -> None:
    away, pair, request = on_the_way()
    away.handoff.load(request, 0, None, 100)
    away.handoff.cancel(Request("other", 0, 1, row=9))
    away.handoff.cancel(pair.request)
    assert pair.reserved_ns == 100
    pair.ahead_bytes = 5
    away.handoff.cancel(request)
    assert (pair.reserved_ns, pair.size_bytes, pair.ahead_bytes, pair.transfers) == (-1, 0, 0, [])
    assert away.network.names == ["send", "cancel"]


@pytest.mark.parametrize(
    ("reserved_ns", "cached", "tokens", "sent"),
    [(0, 0, 9, [8]), (0, 0, 10, []), (-1, 0, 9, []), (0, 4, 4, [8]), (0, -1, 3, []), (50, 0, 4, [4])],
)
def test_chunks_are_sent_in_whole_blocks_and_the_last_at_the_end(
    reserved_ns: int, cached: int, tokens: int, sent: list[int]
) -> None:
    away = Away("vllm", overlap="chunk")
    pair = away.begin()
    pair.reserved_ns, pair.request.cached_tokens = reserved_ns, cached
    step = SimpleNamespace(prefills=[(pair.request, tokens), (Request("o", 0, 9, row=5), 3)])
    away.handoff._chunks(step, 1)
    assert pair.chunk_tokens == (0 if tokens == 10 else max(cached, 0) + tokens)  # a whole prompt is no chunk
    assert ([pair.sent_tokens] if away.network.calls else []) == sent
    away.handoff._chunks(SimpleNamespace(prefills=[(pair.request, 0)]), 1)
    assert len(away.network.calls) == len(sent)
    pair.request.preemptions = 1  # it is computed anew
    away.handoff._chunks(SimpleNamespace(prefills=[(pair.request, 1)]), 1)
    assert (pair.chunk_tokens, pair.preemptions) == (max(cached, 0) + 1, 1)
    pair.prefill_end_ns = 0
    away.handoff._chunks(SimpleNamespace(prefills=[(pair.request, 1)]), 1)
    assert pair.chunk_tokens == max(cached, 0) + 1


def test_layers_are_sent_as_they_are_computed() -> None:
    """Three of four layers, a quarter of the step apart, each with what the ones before have not sent."""
    away = Away("vllm", overlap="layer")
    pair = away.begin()
    step = SimpleNamespace(prefills=[(pair.request, 10)])
    away.handoff._layers(step, 1000, 1400)
    assert away.events.calls == []
    pair.reserved_ns = 0
    away.handoff._layers(step, 1000, 1400)
    assert away.events.calls == [("call_at", 1100), ("call_at", 1200), ("call_at", 1300)]
    for action in away.events.actions:
        action(0)
    assert away.network.calls == [("send", 750)] * 3
    assert pair.ahead_bytes == 2250
    pair.reserved_ns = 5  # its blocks are others by now
    away.events.actions[2](0)
    assert len(away.network.calls) == 3
    part = SimpleNamespace(prefills=[(pair.request, 6)])
    away.events.actions.clear()
    pair.ahead_bytes = 0
    away.handoff._layers(part, 1000, 1400)
    away.events.actions[0](0)
    assert away.network.calls[-1] == ("send", BLOCK_BYTES // 4)  # of the one whole block


# -- ends --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("stage", "decode"), [("prefill", 0), ("prefill", -1), ("decode", 0)])
def test_an_end_before_the_kv_is_there_frees_both_sides(stage: str, decode: int) -> None:
    away = Away("vllm", pair_order="decode-first" if decode == 0 else "prefill-first")
    pair = away.begin(decode=decode)
    if stage == "decode":
        away.prefilled(pair)
    away.decode.calls.clear()
    away.prefill.calls.clear()
    away.handoff._ended(pair.request if stage == "prefill" else pair.decode_request, 100)
    assert away.prefill.calls == [("let_go", "request", 100)]
    assert away.decode.names == ([] if stage == "decode" or decode < 0 else ["expect"])
    assert away.handoff.under_way == 0
    away.handoff._ended(pair.request, 100)
    assert len(away.prefill.calls) == 1


def test_an_end_on_the_prefill_side_of_a_pair_that_is_at_both_cancels_the_decode_side() -> None:
    away, pair, _ = on_the_way()
    away.decode.calls.clear()
    away.handoff._ended(pair.request, 100)
    assert away.decode.calls == [("cancel", "request", 100)]


@pytest.mark.parametrize(
    ("policy", "reserved", "calls"),
    [
        ("fail", True, ["cancel"]),
        ("recompute", True, ["kv_ready_at"]),
        ("recompute", False, []),
    ],
)
def test_kv_that_does_not_arrive_ends_a_request_or_is_computed_again(
    policy: str, reserved: bool, calls: list[str]
) -> None:
    away, pair, request = on_the_way(load_failure_policy=policy)
    if reserved:
        away.handoff.load(request, 0, None, 0)
        pair.reserved_ns = 0
    away.decode.calls.clear()
    away.handoff._lose_kv(pair, TRANSFER_FAILED)
    assert pair.is_lost
    assert away.decode.names == calls
    assert away.handoff._horizon.calls[-1] == ("forget", 0)
    assert away.prefill.calls[-1] == ("let_go", "request", 100)
    assert (away.recorder.calls[-1] == ("evicted", "request", TRANSFER_FAILED)) == (policy == "fail")
    assert away.handoff.arrived(request, 100) == 0
    assert away.handoff.offer(request, 0, 100) is None


@pytest.mark.parametrize(("open_", "reserved_ns", "lost", "expires"), [
    (True, -1, False, True), (False, -1, False, False), (True, 0, False, False), (True, -1, True, False)
])  # fmt: skip
def test_a_lease_ends_kv_that_is_not_being_fetched(
    open_: bool, reserved_ns: int, lost: bool, expires: bool
) -> None:
    away, pair, _ = on_the_way(lease_ns=50_000_000)
    pair.is_open, pair.reserved_ns, pair.is_lost = open_, reserved_ns, lost
    (action,) = away.events.actions
    action(50_000_100)
    assert ("evicted" in away.recorder.names) == expires


@pytest.mark.parametrize(
    ("index", "stage", "effect"),
    [
        (1, "prefill", ("evicted", "prefill")),
        (0, "prefill", ("evicted", "prefill")),
        (1, "decode", ("evicted", "decode")),  # its KV is lost, and that fails a request
        (0, "decode", ("evicted", "decode")),
        (0, "between", None),
        (2, "prefill", None),
    ],
)
def test_requests_of_an_instance_that_fails_end_where_they_are(
    index: int, stage: str, effect: tuple[str, str] | None
) -> None:
    away = Away("vllm")
    pair = away.begin()
    if stage == "between":
        pair.prefill_end_ns = 0
    if stage == "decode":
        away.prefilled(pair)
    assert away.handoff.lose(index) == (set() if index == 2 else {0})
    assert ("evicted" in away.recorder.names) == (effect is not None)
    assert pair.is_lost == (stage == "between" or (index, stage) == (1, "decode"))
    if effect is not None:
        cancelled = away.prefill if effect[1] == "prefill" else away.decode
        assert "cancel" in cancelled.names


def test_a_deadlock_ends_with_the_oldest_that_holds_blocks() -> None:
    away = Away("vllm")
    away.prefill.now_ns, away.decode.now_ns = 140, 120  # type: ignore[attr-defined]
    assert not away.handoff.resolve_deadlock()
    assert away.events.now_ns == 140
    pairs = []
    for row in range(3):
        request = Request(f"r{row}", 0, 9, row=row)
        away.handoff.begin(request, 1, 0, 100)
        pairs.append(away.handoff._pairs[row])
    pairs[2].reserved_ns = 0
    evicted: list[Any] = []
    away.handoff._evict = lambda pair, why: evicted.append((pair.row, why))
    assert away.handoff.resolve_deadlock()
    pairs[2].is_lost = True
    assert away.handoff.evict_oldest("why")
    for pair in pairs:
        pair.prefill_end_ns = 0  # on the wire
    assert not away.handoff.evict_oldest("why")
    pairs[1].decode_request = pairs[1].request
    assert away.handoff.evict_oldest("why")
    assert evicted == [(2, DEADLOCK), (0, "why"), (1, "why")]


@pytest.mark.parametrize(
    ("prefill_end_ns", "reserved_ns", "lost", "holds"),
    [
        (-1, -1, False, False),
        (0, -1, False, True),
        (-1, 0, False, True),
        (0, 0, False, False),
        (0, -1, True, False),
    ],
)
def test_blocks_are_held_where_the_other_side_has_none(
    prefill_end_ns: int, reserved_ns: int, lost: bool, holds: bool
) -> None:
    pair = Pair(Request("r", 0, 1, row=0), 1, 0, 5)
    pair.prefill_end_ns, pair.reserved_ns, pair.is_lost = prefill_end_ns, reserved_ns, lost
    assert pair.holds_blocks == holds
    row = np.frombuffer(pair.record(9), np.int64).tolist()
    assert row == [0, 1, 0, 5, prefill_end_ns, reserved_ns, -1, 9, 0, 0]


def test_all_pairs_on_their_way_at_the_end_are_recorded() -> None:
    away = Away("trtllm")
    for row in range(3):
        away.handoff.begin(Request(f"r{row}", 0, 9, row=row, output_tokens=4), 1, 0, 100)
    one, two, _ = away.handoff._pairs.values()
    one.prefill_end_ns = two.prefill_end_ns = 0
    two.decode_request = two.request
    away.recorder.calls.clear()
    assert len(away.handoff.record().size_bytes) == 0
    assert away.recorder.names == ["undelivered", "revisit", "undelivered"]


# -- engines -----------------------------------------------------------------------------------------------


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
