"""Hand-overs step by step: how a pair begins, is prefilled, and goes on at its decode instance."""

from __future__ import annotations

import pytest
from away import Away

from blis_py.core.request import Request
from blis_py.metrics.record import INSTANCE_FAILED, NO_INSTANCE


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
