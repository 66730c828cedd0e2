"""Requests of every kind, served together, and each served alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from stub_engine import VOCAB, Letters, StubModel, StubSizes, assert_no_leak, stub_engine

from blis_py.core.request import Request
from engine.engine import LLMEngine
from engine.output_stream import OutputDelta
from engine.sampling_params import SamplingParams
from engine.sequence import Sequence

PAGES = (16, 32, 64, 128)


class Unsteady(StubModel):
    """Some of its forwards raise."""

    def __init__(self, rng: Random, share: float) -> None:
        super().__init__(StubSizes())
        self.rng, self.share, self.failures = rng, share, 0

    def __call__(self, input_ids: Any, *args: Any) -> Any:
        assert (input_ids >= 0).all(), "a placeholder has reached the model"
        if self.rng.random() < self.share:
            self.failures += 1
            raise RuntimeError("out of memory, say")
        return super().__call__(input_ids, *args)


@dataclass
class Load:
    """What was sent, and what became of it."""

    prompts: list[list[int]] = field(default_factory=list)
    params: list[SamplingParams] = field(default_factory=list)
    sequences: list[Sequence] = field(default_factory=list)
    deltas: list[list[OutputDelta]] = field(default_factory=list)
    """What each client received while it ran."""

    def aborted(self) -> set[str]:
        return {s.request.id for s in self.sequences if s.finish_reason == "abort"}


def random_settings(rng: Random) -> dict[str, Any]:
    page = rng.choice(PAGES)
    return {
        "block_size": page,
        "num_kv_blocks": max(rng.choice([260, 330, 1600]) // page, 2),
        "max_model_len": 250 if page < 128 else 256,
        "max_num_seqs": rng.choice([3, 8, 16]),
        "max_num_batched_tokens": rng.choice([20, 64, 400]),
        "long_prefill_token_threshold": rng.choice([0, 0, 13]),
        "prefix_cache": rng.choice(["hash", "radix", "none"]),
        "batch_former": rng.choice(["running-first", "running-first", "prefill-first"]),
        "preemption_policy": rng.choice(["fcfs", "priority"]),
        "scheduler": rng.choice(["fcfs", "priority-fcfs", "sjf"]),
    }


def random_params(rng: Random) -> SamplingParams:
    """Ends by length, at an end of sequence (token 0), at stop tokens and at stop strings."""
    more: dict[str, Any] = {}
    kind = rng.randrange(7)
    if kind == 0:
        more = {"stop": [chr(32 + rng.randrange(1, 90)) for _ in range(8)], "detokenize": True}
    elif kind == 1:
        more = {"stop_token_ids": [rng.randrange(VOCAB) for _ in range(6)], "min_tokens": rng.randrange(4)}
    elif kind == 2:
        more = {"ignore_eos": True}
    elif kind == 3:
        more = {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": 0.2}
    elif kind == 4:
        more = {"logprobs": rng.randrange(3)}
    longest = rng.randrange(4, 44)
    return SamplingParams(
        temperature=0 if kind != 5 else 1.0, seed=rng.randrange(9), max_tokens=longest, **more
    )


def serve_load(engine: LLMEngine, rng: Random, count: int = 40, aborts: bool = True) -> Load:
    """Requests come while others run: shared beginnings, next turns, aborts; then checks for leaks."""
    load = Load()
    beginnings = [[rng.randrange(1, VOCAB) for _ in range(70)] for _ in range(3)]
    while len(load.sequences) < count or engine.has_unfinished:
        while len(load.sequences) < count and rng.random() < 0.4:
            prompt = rng.choice(beginnings)[: rng.randrange(70)]
            prompt = prompt + [rng.randrange(VOCAB) for _ in range(rng.randrange(1, 60))]
            load.prompts.append(prompt)
            load.params.append(random_params(rng))
            load.deltas.append([])
            priority, on_delta = rng.choice([0, 1, 5]), load.deltas[-1].append
            load.sequences.append(
                engine.add_request(prompt, load.params[-1], priority=priority, on_delta=on_delta)
            )
        if aborts and load.sequences and rng.random() < 0.03:
            engine.abort_request(rng.choice(load.sequences).request.id)
        engine.step()
        if rng.random() < 0.1:
            engine.scheduler.check()
    assert_no_leak(engine.scheduler, engine.executor)
    return load


def assert_received_all(load: Load) -> None:
    """Every client received its output, piece by piece and in order, and the end, once and last."""
    for sequence, deltas in zip(load.sequences, load.deltas, strict=True):
        text = sequence.text()
        assert "".join(delta.text for delta in deltas) == text
        assert [token for delta in deltas for token in delta.token_ids] == sequence.output_ids
        assert [delta.finish_reason for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
        assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == (
            sequence.finish_reason,
            sequence.stop_reason,
        )
        assert {delta.request_id for delta in deltas} == {sequence.request.id}


def assert_as_alone(load: Load) -> None:
    """Every output is that of the request alone, step by step; of one aborted or failed, the beginning."""
    assert_received_all(load)
    engine = stub_engine(
        tokenizer=Letters(), max_model_len=256, num_kv_blocks=16, enable_prefix_caching=False
    )
    for prompt, params, sequence in zip(load.prompts, load.params, load.sequences, strict=True):
        single = engine.add_request(prompt, params)
        while engine.has_unfinished:
            engine.step()
        if sequence.finish_reason in ("abort", "error"):
            assert sequence.output_ids == single.output_ids[: len(sequence.output_ids)]
            continue
        assert sequence.output_ids == single.output_ids
        assert (sequence.finish_reason, sequence.stop_reason) == (single.finish_reason, single.stop_reason)
        assert sequence.text() == single.text()
        assert sequence.logprobs == single.logprobs


def ends_by_outcome(sequence: Sequence) -> bool:
    """Whether it was not known before the outcome that this token was its last."""
    request: Request = sequence.request
    return sequence.finish_reason == "stop" and len(sequence.output_ids) < request.target
