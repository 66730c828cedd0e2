"""The set of decoding requests answers as if it looked at each of them."""

from __future__ import annotations

from random import Random

from blis_py.core.decoding import DecodeSet
from blis_py.core.request import Request


def request(seq: int, prompt: int, output: int) -> Request:
    one = Request(id=f"r{seq}", row=seq, prompt_tokens=prompt, output_tokens=output, arrival_ns=0)
    one.seq, one.computed, one.target = seq, prompt, output
    return one


def test_a_request_stopped_and_started_again_before_the_same_step_is_due_once() -> None:
    decoding = DecodeSet(block_size=16, track_longest=False)
    decoding.start(one := request(1, 4, 3), 0)
    decoding.stop(one, 0)
    decoding.start(one, 0)
    assert decoding.due(one.finish_tick) == [one]


def test_the_longest_context_is_known_after_hundreds_of_requests_have_come_and_gone() -> None:
    decoding, rng = DecodeSet(block_size=16, track_longest=True), Random(3)
    inside: list[Request] = []
    for tick in range(1, 600):
        if len(inside) < 12 or rng.random() < 0.5:
            inside.append(request(tick, rng.randrange(1, 500), 1000))
            decoding.start(inside[-1], tick)
        while len(inside) > 20:
            decoding.stop(inside.pop(rng.randrange(len(inside))), tick)
        assert decoding.longest(tick) == max(one.base + tick for one in inside)
        assert decoding.base_sum == sum(one.base for one in inside)
        assert decoding.count == len(inside)
