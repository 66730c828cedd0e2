"""Aborts, deadlines, errors and bad input: nothing leaks, and the engine goes on."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from stub_engine import (
    VOCAB,
    Letters,
    StubModel,
    assert_no_leak,
    expected,
    run_all,
    stub_engine,
)

from blis_py.errors import InputError
from engine.llm import _paired, generate
from engine.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=12)


def test_an_error_in_a_forward_ends_the_requests_of_that_step_only() -> None:
    model = StubModel(fail_at=4)
    engine = stub_engine(model, max_num_seqs=2)
    sequences = [engine.add_request([i] * 40, GREEDY) for i in range(4)]
    run_all(engine)
    assert [s.finish_reason for s in sequences] == ["error", "error", "length", "length"]
    assert sequences[0].error == "RuntimeError: out of memory, say"
    assert sequences[3].output_ids == expected([3] * 40, 12)
    assert engine.recorder.log().steps["failed"].count(1) == 1


@pytest.mark.parametrize("fail_at", range(9))
@pytest.mark.parametrize("blocks", [12, 64])
def test_what_a_broken_step_would_have_computed_is_never_a_prefix_hit(fail_at: int, blocks: int) -> None:
    """Requests that share a prompt are admitted in one step, and the later ones share planned blocks."""
    model = StubModel(fail_at=fail_at)
    engine = stub_engine(model, num_kv_blocks=blocks, max_model_len=128, max_num_batched_tokens=50)
    prompt = [3, 1, 4] * 12
    for i in range(6):
        engine.add_request([*prompt, i], GREEDY)
    run_all(engine)
    again = [engine.add_request([*prompt, i], GREEDY) for i in range(6)]
    run_all(engine)
    for i, sequence in enumerate(again):
        assert sequence.output_ids == expected([*prompt, i], 12)


def test_an_interrupt_leaves_an_engine_that_can_be_used() -> None:
    class Interrupted(StubModel):
        def logits(self, hidden: object) -> object:
            if self.forwards == 3:
                raise KeyboardInterrupt
            return super().logits(hidden)  # type: ignore[arg-type]

    engine = stub_engine(Interrupted())
    engine.add_request([1, 2, 3], GREEDY)
    with pytest.raises(KeyboardInterrupt):
        run_all(engine)
    again = engine.add_request([1, 2, 3], GREEDY)
    run_all(engine)
    assert again.output_ids == expected([1, 2, 3], 12)


def test_aborted_requests_leave_before_the_next_step() -> None:
    engine = stub_engine(max_num_seqs=2)
    sequences = [engine.add_request([i] * 40, GREEDY, request_id=f"r{i}") for i in range(4)]
    engine.step()
    engine.step()
    engine.abort_request("r0")
    engine.abort_request("r3")
    engine.abort_request("r3")
    engine.abort_request("nobody")
    gone = engine.step().finished
    assert [s.request.id for s in gone] == ["r0", "r3"]
    run_all(engine)
    assert [s.finish_reason for s in sequences] == ["abort", "length", "length", "abort"]
    assert len(sequences[0].output_ids) == 2


def test_a_deadline_ends_a_request_waiting_or_running() -> None:
    engine = stub_engine(max_num_seqs=1)
    running = engine.add_request([1] * 20, SamplingParams(temperature=0, max_tokens=400), deadline_ns=10**6)
    waiting = engine.add_request([2] * 20, GREEDY, deadline_ns=10**6 // 2)
    run_all(engine)
    assert (running.finish_reason, waiting.finish_reason) == ("timeout", "timeout")
    assert len(running.output_ids) > 10
    assert waiting.output_ids == []


def test_urgent_requests_go_first_with_priorities() -> None:
    engine = stub_engine(scheduler="priority-fcfs", max_num_seqs=1)
    order = [5, 1, 0, 1]
    sequences = [engine.add_request([i + 1] * 20, GREEDY, priority=p) for i, p in enumerate(order)]
    run_all(engine)
    assert sorted(range(4), key=lambda i: sequences[i].finish_ns) == [2, 1, 3, 0]


@pytest.mark.parametrize(
    ("prompt", "params", "complaint"),
    [
        ([], {}, "is empty"),
        ([1] * 600, {}, "cannot be served: needs 612 tokens, max_model_len is 512"),
        ([1] * 500, {"max_tokens": 100}, "needs 600 tokens"),
        ([1, VOCAB], {}, "tokens 0 to 96"),
        ([1, -1], {}, "tokens 0 to 96"),
        ([1, None], {}, r"prompt\[1\].*None is no token id"),
        ([True], {}, "True is no token id"),
        ([[1]], {}, r"\[1\] is no token id"),
        ([1.0], {}, "no token id"),
        (None, {}, "neither text nor token ids"),
        (b"text", {}, "neither text nor token ids"),
        ([1], {"stop_token_ids": [VOCAB]}, "stop_token_ids"),
        ([1], {"stop": "x"}, "needs a tokenizer"),
        ("text", {}, "needs a tokenizer"),
    ],
)
def test_what_can_never_be_served_is_refused_and_the_engine_goes_on(
    prompt: list[int] | str, params: dict[str, object], complaint: str
) -> None:
    engine = stub_engine()
    with pytest.raises(InputError, match=complaint):
        engine.add_request(prompt, SamplingParams(**{"temperature": 0, "max_tokens": 12, **params}))  # type: ignore[arg-type]
    fine = engine.add_request(np.array([1, 2, 3]), GREEDY)  # type: ignore[arg-type]
    run_all(engine)
    assert fine.output_ids == expected([1, 2, 3], 12)


@pytest.mark.parametrize("prompts", [5, None, [None], [[True]], [2.5], [[1, "2"]]])
def test_prompts_that_are_neither_text_nor_token_ids_are_refused_together(prompts: Any) -> None:
    engine = stub_engine()
    with pytest.raises(InputError, match="prompt"):
        generate(engine, *_paired(prompts, GREEDY))
    assert not engine.has_unfinished


def test_two_requests_cannot_have_one_name_at_a_time() -> None:
    engine = stub_engine()
    engine.add_request([1], GREEDY, request_id="a")
    with pytest.raises(InputError, match="of this name"):
        engine.add_request([1], GREEDY, request_id="a")
    run_all(engine)
    engine.add_request([1], GREEDY, request_id="a")


@pytest.mark.slow
def test_thousands_of_steps_of_trouble_leak_nothing() -> None:
    """Preemptions, aborts, deadlines, stops, prefix hits and broken forwards, in one long run."""
    rng = random.Random(7)
    model = StubModel()
    engine = stub_engine(
        model,
        tokenizer=Letters(),
        num_kv_blocks=24,
        max_model_len=128,
        max_num_seqs=8,
        max_num_batched_tokens=48,
        scheduler="priority-fcfs",
    )
    shared = [rng.randrange(1, VOCAB) for _ in range(40)]
    alive: list[str] = []
    checked = added = 0
    for step in range(3_000):
        if len(engine.scheduler.waiting) < 4 and rng.random() < 0.5:
            prompt = shared[: rng.randrange(41)] + [rng.randrange(VOCAB) for _ in range(rng.randrange(1, 30))]
            deadline = engine.clock.now_ns() + 100_000 if rng.random() < 0.05 else -1
            params = SamplingParams(temperature=0, max_tokens=rng.randrange(1, 50))
            priority = rng.choice([0, 1, 5])
            sequence = engine.add_request(prompt, params, priority=priority, deadline_ns=deadline)
            alive.append(sequence.request.id)
            added += 1
        if alive and rng.random() < 0.02:
            engine.abort_request(rng.choice(alive[-20:]))
        if rng.random() < 0.005:
            model.fail_at = model.forwards
        for sequence in engine.step().finished:
            alive.remove(sequence.request.id)
            if sequence.finish_reason in ("stop", "length") and rng.random() < 0.2:
                checked += 1
                prompt = sequence.prompt_ids.tolist()
                assert sequence.output_ids == expected(prompt, len(sequence.output_ids))
        if step % 500 == 0:
            engine.scheduler.check()
    run_all(engine)
    assert_no_leak(engine.scheduler, engine.executor)
    assert checked > 100
    counters = engine.scheduler.counters
    assert counters.preemptions > 100
    assert counters.prefix_hit_tokens > 1000
    assert engine.recorder.log().steps["failed"].count(1) > 10
