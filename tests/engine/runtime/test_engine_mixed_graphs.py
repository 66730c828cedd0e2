"""Steps with prompts through captured batches: outputs, what is logged, and what goes to a graph."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch
from mixed_load import Unsteady, assert_as_alone, random_settings, serve_load
from stub_engine import (
    Letters,
    StubModel,
    eager_capture,
    expected,
    run_all,
    stub_engine,
    with_graphs,
    with_mixed_graphs,
)

from engine.engine import LLMEngine
from engine.mixed_graphs import default_sizes
from engine.sampling_params import SamplingParams

SIZES = (16, 48, 100)
LOOPS = pytest.mark.parametrize("overlap", [False, True], ids=["synchronous", "overlapped"])


def captured(model: StubModel | None = None, sizes: tuple[int, ...] = SIZES, **settings: Any) -> LLMEngine:
    """An engine whose steps are captured, those with prompts up to 100 tokens."""
    engine = stub_engine(model, tokenizer=Letters(), **settings)
    config = engine.scheduler.config
    with_graphs(engine, tuple(size for size in (1, 2, 3, 8, 16) if size <= config.max_num_seqs))
    with_mixed_graphs(engine, tuple(size for size in sizes if size <= config.max_num_batched_tokens))
    return engine


@LOOPS
@pytest.mark.parametrize("seed", range(4))
def test_every_request_gets_what_it_gets_alone(seed: int, overlap: bool) -> None:
    rng = Random(seed)
    settings = random_settings(rng)
    engine = captured(async_scheduling=overlap, **settings)
    load = serve_load(engine, rng)
    assert_as_alone(load)
    steps = engine.recorder.log().steps
    both = zip(steps["prefill_tokens"], steps["bucket"], strict=True)
    assert any(tokens and bucket for tokens, bucket in both)


@LOOPS
@pytest.mark.parametrize("seed", range(2))
def test_and_where_forwards_fail(seed: int, overlap: bool) -> None:
    rng = Random(seed)
    model = Unsteady(rng, 0.0)
    engine = captured(model, async_scheduling=overlap, **random_settings(rng))
    model.share = 0.05
    assert_as_alone(serve_load(engine, rng))
    assert model.failures > 1


def test_a_step_is_padded_to_the_next_captured_number_of_tokens() -> None:
    engine = captured()
    greedy = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    first, second = [7] * 5, [9] * 30
    sequences = [engine.add_request(first, greedy)]
    engine.step()
    sequences.append(engine.add_request(second, greedy))
    run_all(engine)
    steps = engine.recorder.log().steps
    assert steps["bucket"] == [16, 48, 2, 1]
    assert set(steps["regime"]) == {"graph"}
    assert [list(sequence.output_ids) for sequence in sequences] == [expected(first, 3), expected(second, 3)]


def test_a_step_of_more_tokens_or_more_prompts_than_are_captured_runs_eagerly() -> None:
    engine = captured(max_num_batched_tokens=400)
    greedy = SamplingParams(temperature=0, max_tokens=1)
    engine.add_request([3] * 101, greedy)
    engine.step()
    for _ in range(9):
        engine.add_request([4], greedy)
    engine.step()
    for _ in range(8):
        engine.add_request([5, 6], greedy)
    engine.step()
    assert engine.recorder.log().steps["bucket"] == [0, 0, 16]


def test_padding_stores_nothing_and_moves_no_sequence() -> None:
    engine = captured(async_scheduling=True)
    k_cache, _ = engine.executor.forward.kv[0]
    k_cache.fill_(-1.0)
    engine.add_request([8] * 20, SamplingParams(temperature=0, max_tokens=6, ignore_eos=True))
    run_all(engine)
    assert int((k_cache >= 0).sum()) == 25, "the prompt, and every token but the last"


def test_sizes_reach_as_far_as_a_batch() -> None:
    assert default_sizes(2048)[0] == 16
    assert default_sizes(2048)[-1] == 512
    assert default_sizes(100) == (16, 32, 48, 64, 96)


def test_captured_batches_do_not_depend_on_the_requests_in_them() -> None:
    """The same graph: many decodes and a prompt, then prompts alone."""
    engine = captured(max_num_seqs=16)
    greedy = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    prompts = [[i + 1] * (3 + i) for i in range(10)]
    sequences = [engine.add_request(prompt, greedy) for prompt in prompts[:6]]
    engine.step()
    sequences += [engine.add_request(prompt, greedy) for prompt in prompts[6:8]]
    run_all(engine)
    sequences += [engine.add_request(prompt, greedy) for prompt in prompts[8:]]
    run_all(engine)
    for prompt, sequence in zip(prompts, sequences, strict=True):
        assert list(sequence.output_ids) == expected(prompt, 12)


def test_capture_stand_in_runs_the_same_function_again() -> None:
    seen = torch.zeros(1)
    replay, result = eager_capture(lambda: seen.clone())
    seen += 1
    replay()
    assert result.item() == 1


@LOOPS
def test_greedy_tokens_come_out_of_the_graph_and_others_do_not(overlap: bool) -> None:
    """The host chooses where anything but the most likely token is wanted by any request of the batch."""
    engine = captured(async_scheduling=overlap)
    graphs, heads = engine.executor.graphs, []
    logits = engine.executor.forward.logits
    engine.executor.forward.logits = lambda hidden: heads.append(len(hidden)) or logits(hidden)  # type: ignore[func-returns-value,method-assign]
    greedy = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    sequence = engine.add_request([5, 6, 7], greedy)
    run_all(engine)
    assert list(sequence.output_ids) == expected([5, 6, 7], 8)
    assert heads == [1] + [1] * 7, "that of the prompt, and those inside the graph's stand-in"
    replayed: list[int] = []
    replay = graphs.replay_greedy  # type: ignore[union-attr]
    graphs.replay_greedy = lambda *batch: replayed.append(1) or replay(*batch)  # type: ignore
    for more in ({"logprobs": 1}, {"presence_penalty": 0.5}, {"min_tokens": 3}):
        params = SamplingParams(temperature=0, max_tokens=5, **more)  # type: ignore[arg-type]
        engine.add_request([9, 8], params)
        run_all(engine)
    engine.add_request([9, 8], SamplingParams(temperature=1.0, seed=1, max_tokens=5, ignore_eos=True))
    run_all(engine)
    assert not replayed
