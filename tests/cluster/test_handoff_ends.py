"""Ends of a hand-over: before the KV arrives, by a lease, with an instance that fails, at a deadlock."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from away import Away, on_the_way

from blis_py.cluster.instances.handoff import DEADLOCK, TRANSFER_FAILED
from blis_py.cluster.instances.pairs import Pair
from blis_py.core.request import Request


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
