"""Rules of vLLM for decode steps with drafts and for grammars, on the smallest servers that they decide.

A step is written as the positions of each request, `+B` where B is admitted, and `-B` where it is preempted.
`test_engine_decisions.py` has steps of vLLM's own schedulers.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import pytest

from blis_py.core.config import SchedulerConfig
from blis_py.core.request import Request, Status
from blis_py.core.scheduler import Scheduler
from blis_py.core.step import Step

VLLM: dict[str, Any] = {"drafts_beyond_limit": True, "blocks_await_outcome": True}


@dataclass
class Drafts:
    """`depth` drafts a step, of which `accepted` are right."""

    depth: int
    accepted: int

    def is_irregular(self, request: Request) -> bool:
        return True

    def rows(self, request: Request) -> int:
        return 1 + self.depth

    def tokens(self, request: Request, step: int, rows: int) -> int:
        return 1 + self.accepted


class Server:
    """A scheduler whose step n + 1 is planned before the outcome of step n, if it is asynchronous."""

    def __init__(self, depth: int, accepted: int, **settings: Any) -> None:
        settings = {"num_kv_blocks": 40, "max_model_len": 80, "block_size": 4, **settings}
        config = SchedulerConfig(num_speculative_tokens=depth, **settings)
        self.core = Scheduler(config, emission=Drafts(depth, accepted) if depth else None)
        self.flight: deque[Step] = deque()
        self.asynchronous = config.async_scheduling

    def add(self, name: str, prompt: int, output: int, **how: Any) -> Request:
        request = Request(name, 0, prompt, output, output, **how)
        assert self.core.add(request) is None
        return request

    def step(self) -> str:
        """Plan a step, apply the outcome that is known next, and describe the step."""
        planned = self.core.schedule(0)
        words: list[str] = []
        if planned is not None:
            tokens = {request.id: count for request, count in planned.prefills}
            tokens |= {r.id: 1 for r in self.core.running if r.status is Status.DECODING}
            words = [f"{name}{count}" for name, count in sorted(tokens.items())]
            words += [f"-{request.id}" for request in planned.preempted]
            words += [f"+{request.id}" for request in planned.admitted]
            self.core.advance(planned)
            self.flight.append(planned)
        if self.flight and (planned is None or not self.asynchronous or len(self.flight) > 1):
            self.core.resolve(self.flight.popleft())
        self.core.check()
        return " ".join(words)

    def steps(self) -> list[str]:
        found = []
        while self.flight or self.core.running or self.core.waiting:
            found.append(self.step())
        assert self.core.kv.pool.num_free == self.core.kv.pool.total
        return found


@pytest.mark.parametrize(
    ("beyond", "steps"),
    [(False, ["A6 +A", "A4", "A3", "A2", "A1"]), (True, ["A6 +A", "A4", "A4", "A4", "A4"])],
)
def test_drafts_are_verified_beyond_the_clients_limit(beyond: bool, steps: list[str]) -> None:
    server = Server(3, 0, drafts_beyond_limit=beyond)
    server.add("A", 6, 5)
    assert server.steps() == steps


def test_drafts_end_where_the_longest_sequence_does() -> None:
    server = Server(3, 0, max_model_len=12, **VLLM)
    server.add("A", 6, 6)
    assert server.steps() == ["A6 +A", "A4", "A4", "A3", "A2", "A1"]


def test_no_step_is_planned_behind_one_that_ends_a_request_though_all_drafts_be_rejected() -> None:
    """Asynchronous, two tokens a step: the end at five tokens is no surprise only if one more is missing."""
    server = Server(1, 1, async_scheduling=True, **VLLM)
    one = server.add("A", 6, 5)
    assert server.steps() == ["A6 +A", "A2", "A2", "A2", ""]
    assert (one.generated, one.last_tick) == (5, 2)
    server = Server(1, 1, async_scheduling=True, **VLLM)
    server.add("A", 6, 4)
    assert server.steps() == ["A6 +A", "A2", "A2", ""]


def test_drafts_in_flight_hold_blocks_as_if_they_were_accepted() -> None:
    held = {}
    for asynchronous in (False, True):
        server = Server(3, 0, async_scheduling=asynchronous, **VLLM)
        one = server.add("A", 8, 20)
        for _ in range(3):
            server.step()
        held[asynchronous] = len(one.block_table)
    assert held == {False: 4, True: 4}
    assert held[True] * 4 == 8 + 4 + 4, "two steps of four positions"


def test_drafts_in_flight_may_fill_the_longest_sequence() -> None:
    """Asynchronous: the request waits for the outcome, then goes on."""
    server = Server(3, 0, async_scheduling=True, max_model_len=12, **VLLM)
    server.add("A", 6, 6)
    assert server.steps() == ["A6 +A", "A4", "A1", "A3", "", "A2", "", "A1", ""]


PADS = {**VLLM, "pads_lone_tokens": True}


@pytest.mark.parametrize(
    ("rules", "budget", "step"),
    [
        ({}, 16, "A4 B1 +B"),
        (PADS, 16, "A4 B4 +B"),
        (PADS, 7, "A4"),
        ({**PADS, "padding_needs_company": True}, 16, "A4 B4 +B"),
    ],
    ids=["vLLM 0.24", "vLLM 0.33", "vLLM 0.33, no budget", "vLLM 0.29"],
)
def test_a_request_with_one_token_to_compute_is_padded_beside_decodes(
    rules: dict[str, Any], budget: int, step: str
) -> None:
    server = Server(3, 0, max_num_batched_tokens=budget, **rules)
    server.add("A", 5, 30, block_keys=["a"])
    server.step()
    two = server.add("B", 5, 9, block_keys=["a"])
    assert server.step() == step
    if "B" in step:
        assert (two.computed, two.generated, two.cached_tokens) == (5, 1, 4)


def test_alone_it_is_padded_if_the_rest_was_cached_but_not_to_0_29() -> None:
    for rules, step in ((PADS, "B4 +B"), ({**PADS, "padding_needs_company": True}, "B1 +B")):
        server = Server(3, 0, **rules)
        server.add("A", 5, 1, block_keys=["a"])
        server.steps()
        server.add("B", 5, 9, block_keys=["a"])
        assert server.step() == step


def test_padding_beyond_the_longest_sequence_keeps_a_request_waiting_to_0_28() -> None:
    for rules, step in ((PADS, "A4 B1 +B"), ({**PADS, "padding_must_fit": True}, "A4")):
        server = Server(3, 0, max_model_len=7, **rules)
        server.add("A", 1, 6)
        server.step()
        server.add("P", 5, 1, block_keys=["a"])
        assert server.step() == "A4 P5 +P"
        server.add("B", 5, 2, block_keys=["a"])
        assert server.step() == step


def test_a_request_resumed_with_all_but_its_last_token_has_no_drafts() -> None:
    """Chunks of four: the last token of 9 is computed alone, and without drafts."""
    server = Server(2, 0, long_prefill_token_threshold=4, **VLLM)
    server.add("A", 8, 9)
    assert [server.step() for _ in range(3)] == ["A4 +A", "A4", "A3"]
    (one,) = server.core.running
    server.core.preempt(one)
    assert [server.step() for _ in range(3)] == ["A2 +A", "A3", "A3"]


@pytest.mark.parametrize(("first", "order"), [(False, "ABC"), (True, "CAB")], ids=["vLLM 0.33", "vLLM 0.24"])
def test_requests_with_a_grammar_overtake_the_queue_or_not(first: bool, order: str) -> None:
    server = Server(0, 0, max_num_seqs=1, constrained_go_first=first)
    for name in "ABC":
        server.add(name, 4, 1, constrained=name == "C")
    assert [step[0] for step in server.steps()] == list(order)


def test_a_preempted_request_with_a_grammar_is_one_of_the_others() -> None:
    server = Server(0, 0, max_num_seqs=1, constrained_go_first=True)
    one = server.add("A", 4, 5, constrained=True)
    server.step()
    server.core.preempt(one)
    two = server.add("B", 4, 1, constrained=True)
    assert server.core.waiting.head(0) is two
    server.core.abort(two)
    assert server.core.waiting.head(0) is one
    assert sorted(request.id for request in server.core.waiting) == ["A"]
