"""KV on its way step by step: what is offered, reserved and sent, in whole blocks, chunks and layers."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from away import BLOCK_BYTES, Away, on_the_way

from blis_py.core.request import NEVER_NS, Request


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
