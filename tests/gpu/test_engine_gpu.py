"""The engine on a CUDA device, in bf16, with trained tiny models whose answers can be checked; `make gpu`."""

from __future__ import annotations

import gc
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from chance import fewest_right

from engine.build import build_engine
from engine.config import EngineConfig
from engine.diffusion.build import build_diffusion_engine
from engine.diffusion.engine import DiffusionEngine
from engine.diffusion.low_confidence import LowConfidence
from engine.diffusion.settings import DllmSettings
from engine.engine import LLMEngine
from engine.graphs import default_buckets
from engine.kernels.compilations import Compilations
from engine.sampling_params import SamplingParams
from engine.sequence import Sequence
from engine.tiny import checkpoint
from engine.tiny.tasks import TASKS, check, make

DEVICE = "cuda"

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

ANSWER = SamplingParams(temperature=0, max_tokens=64)


def build(**settings: Any) -> LLMEngine:
    defaults = {"max_model_len": 128, "max_num_seqs": 64, "num_kv_blocks": 1024}
    config = EngineConfig(model=str(checkpoint("ar")), device=DEVICE, **{**defaults, **settings})
    return build_engine(config)


def problems(count: int, seed: object) -> list[str]:
    rng = Random(str(seed))
    return [make(rng)[0] for _ in range(count)]


def run(engine: LLMEngine, prompts: Iterable[str], params: SamplingParams = ANSWER) -> list[Sequence]:
    """All at once, to the end."""
    sequences = [engine.add_request(prompt, params) for prompt in prompts]
    while engine.has_unfinished:
        engine.step()
    return sequences


def right(sequences: list[Sequence]) -> int:
    return sum(check(sequence.prompt or "", sequence.text()) for sequence in sequences)


def fewest_expected(kind: str, count: int) -> int:
    """Right answers that a model as good as recorded misses by chance only once in a million."""
    recorded = json.loads((checkpoint(kind) / "training.json").read_text())
    seen = recorded["problems_per_task"]  # what is recorded is itself a sample
    accuracy = sum((recorded["accuracy"][task] * seen + 1) / (seen + 2) for task in TASKS) / len(TASKS)
    return fewest_right(accuracy, count, once_in=1e6)


def test_64_concurrent_requests_are_answered_as_well_as_in_training() -> None:
    engine = build()
    sequences = run(engine, problems(64, "concurrent"))
    assert right(sequences) >= fewest_expected("ar", 64)
    log = engine.recorder.log()
    assert max(log.steps["decode_seqs"]) == 64
    assert "graph" in set(log.steps["regime"])


# ---- graphs ----


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16, 40, 64])
def test_a_full_bucket_gives_the_tokens_of_an_eager_step_of_that_size(size: int) -> None:
    """The same kernels on the same shapes: not a single bit may differ, so no token does."""
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    outputs = []
    for eager in (False, True):
        engine = build(enforce_eager=eager, max_num_seqs=size, cudagraph_mixed_sizes=())
        outputs.append([sequence.output_ids for sequence in run(engine, problems(size, size), params)])
        log = engine.recorder.log()
        assert log.steps["decode_seqs"] == [0, *[size] * 23]
        assert log.steps["bucket"] == [0, *[0 if eager else size] * 23]
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("size", [3, 5, 13, 27, 63])
def test_answers_are_right_where_buckets_are_padded(size: int) -> None:
    """Another size may round differently, so it is the answers that count."""
    engine = build()
    assert right(run(engine, problems(size, size))) >= fewest_expected("ar", size)
    log = engine.recorder.log()
    assert log.steps["bucket"][1] == next(bucket for bucket in default_buckets(64) if bucket > size)


@pytest.mark.parametrize("overlap", [False, True], ids=["synchronous", "overlapped"])
def test_answers_are_right_where_steps_with_prompts_are_captured(overlap: bool) -> None:
    engine, sequences = build(async_scheduling=overlap), []
    for prompt in problems(64, "captured prompts"):
        sequences.append(engine.add_request(prompt, ANSWER))
        engine.step()
    while engine.has_unfinished:
        engine.step()
    assert right(sequences) >= fewest_expected("ar", 64)
    steps = engine.recorder.log().steps
    captured = zip(steps["prefill_seqs"], steps["decode_seqs"], steps["bucket"], strict=True)
    assert sum(bool(prompts and decodes and bucket) for prompts, decodes, bucket in captured) > 30


def test_every_default_bucket_is_captured_and_answers_problems_it_was_not_captured_with() -> None:
    engine = build(max_num_seqs=512, num_kv_blocks=4096, max_num_batched_tokens=24_576)
    buckets = default_buckets(512)
    if engine.executor.graphs is not None:
        assert tuple(engine.executor.graphs.buckets) == buckets
    for size in reversed(buckets):
        first = engine.recorder.steps
        assert right(run(engine, problems(size, size))) >= fewest_expected("ar", size)
        assert engine.recorder.log().steps["bucket"][first + 1] == size


# ---- nothing is compiled while serving ----

EXPERTS = Path(__file__).parent / "experts"
"""Configuration of a small mixture of experts."""


def serve_prompts_of_all_lengths(engine: LLMEngine | DiffusionEngine, longest: int) -> None:
    """One at a time, then together, some of them behind what others have left in the cache."""
    rng = Random("lengths")
    lengths = [min(int(1.5**power) + rng.randrange(3), longest) for power in range(24)]
    prompts = [[rng.randrange(250) for _ in range(length)] for length in lengths]
    prompts += [
        prompt[: rng.randrange(1, length + 1)] for prompt, length in zip(prompts, lengths, strict=True)
    ]
    for together in (*([prompt] for prompt in prompts), prompts, [[1]] * 200):
        for prompt in together:
            params = SamplingParams(temperature=0, max_tokens=rng.randint(1, 40), ignore_eos=True)
            engine.add_request(prompt, params)
        while engine.has_unfinished:
            engine.step()


@pytest.mark.parametrize("eager", [False, True], ids=["graphs", "eager"])
@pytest.mark.parametrize("kind", ["dense", "experts", "diffusion"])
def test_after_the_warm_up_no_request_waits_for_a_compiler(kind: str, eager: bool) -> None:
    models = {"dense": checkpoint("ar"), "experts": EXPERTS, "diffusion": checkpoint("diffusion")}
    config = EngineConfig(
        model=str(models[kind]),
        device=DEVICE,
        load_format="dummy",
        enforce_eager=eager,
        num_kv_blocks=2048,
        block_size=32 if kind == "diffusion" else 16,
        max_num_seqs=48 if kind == "diffusion" else 200,
    )
    if kind == "diffusion":
        engine = build_diffusion_engine(config, DllmSettings(LowConfidence()))
    else:
        engine = build_engine(config)
    serve_prompts_of_all_lengths(engine, engine.scheduler.config.max_model_len - 40)
    assert engine.compilations.while_serving == Compilations()


def test_an_engine_that_is_built_again_compiles_nothing() -> None:
    build()
    assert build().compilations.before_serving.compiled == 0


# ---- races ----

SHARED = [(7 * i) % 250 for i in range(64)]
KINDS: list[dict[str, Any]] = [
    {"temperature": 0, "logprobs": 2},
    {"temperature": 0.8},
    {"temperature": 0.8, "top_k": 20, "top_p": 0.9},
    {"temperature": 0.9, "min_p": 0.05, "repetition_penalty": 1.2, "logprobs": 1},
]


def mixed_workload(engine: LLMEngine) -> list[tuple[Any, ...]]:
    """Arrivals and aborts at fixed steps, whatever the clock says; every kind of sampling.

    Random tokens rather than problems: where the model is unsure, a last bit shows in the answer. It shows
    in the log-probabilities anyway.
    """
    rng = Random("races")
    sequences: list[Sequence] = []
    step = 0
    while len(sequences) < 60 or engine.has_unfinished:
        for _ in range(2 if step % 3 == 0 and len(sequences) < 60 else 0):
            index = len(sequences)
            own = [rng.randrange(250) for _ in range(rng.randint(1, 40))]
            length = rng.randint(8, 48)
            params = SamplingParams(max_tokens=length, ignore_eos=True, seed=index, **KINDS[index % 4])
            prompt = SHARED[: rng.randrange(65)] + own
            priority = rng.choice((0, 1, 5))
            sequences.append(engine.add_request(prompt, params, arrival_ns=step, priority=priority))
        if step % 11 == 10:
            engine.abort_request(sequences[-1].request.id)
        engine.step(step)
        step += 1
    return [(s.output_ids, s.logprobs, s.finish_reason, s.request.preemptions) for s in sequences]


def poison_free_memory() -> None:
    """Reads of memory that was never written give NaN."""
    for size in (1 << 8, 1 << 12, 1 << 16, 1 << 20, 1 << 22):
        held = [torch.full((size,), torch.nan, device=DEVICE) for _ in range(8)]
        del held


def test_a_mixed_workload_repeats_to_the_bit() -> None:
    """Chunked prefill, preemption, prefix hits, sampling and aborts; a difference would be a race."""
    engine = build(
        max_num_seqs=16,
        block_size=16,
        num_kv_blocks=40,
        max_model_len=192,
        max_num_batched_tokens=64,
        long_prefill_token_threshold=24,
        scheduler="priority-fcfs",
    )
    first = mixed_workload(engine)
    counters, log = engine.scheduler.counters, engine.recorder.log()
    assert counters.preemptions > 0
    assert counters.prefix_hit_tokens > 0
    assert {"abort", "length"} == {reason for _, _, reason, _ in first}
    assert max(Counter(row for rows in log.steps["prefill_ids"] for row in rows).values()) > 1, "chunks"
    assert any(p and d for p, d in zip(log.steps["prefill_seqs"], log.steps["decode_seqs"], strict=True))
    assert "graph" in set(log.steps["regime"])
    for _ in range(9):
        engine.reset()
        poison_free_memory()
        assert mixed_workload(engine) == first
    assert engine.compilations.while_serving == Compilations()


# ---- leaks ----


def short_requests(engine: LLMEngine, count: int, rng: Random) -> Counter[str | None]:
    """Serves them; some are aborted, some have a deadline. Returns how often they ended in which way."""
    sequences: list[Sequence] = []
    while len(sequences) < count or engine.has_unfinished:
        while len(sequences) < count and len(engine.scheduler.waiting) < 32:
            deadline_ns = engine.clock.now_ns() + rng.choice((1, 10**7)) if rng.random() < 0.1 else -1
            params = SamplingParams(max_tokens=rng.randint(1, 12), seed=len(sequences), **rng.choice(KINDS))
            sequences.append(engine.add_request(make(rng)[0], params, deadline_ns=deadline_ns))
        if rng.random() < 0.3:
            engine.abort_request(rng.choice(sequences[-96:]).request.id)
        engine.step()
    return Counter(sequence.finish_reason for sequence in sequences)


def at_rest(engine: LLMEngine) -> tuple[int, int, int]:
    """Free pages, free slots, and bytes on the device, after one and the same request."""
    run(engine, ["copy: rest -> "])
    gc.collect()
    engine.scheduler.check()
    nbytes = torch.cuda.memory_allocated() if DEVICE == "cuda" else 0
    return engine.scheduler.kv.pool.num_free, engine.executor.free_slots, nbytes


def test_10000_short_requests_leak_nothing() -> None:
    engine, rng = build(block_size=16, num_kv_blocks=160, max_num_batched_tokens=512), Random("leaks")
    ends = short_requests(engine, 1000, rng)
    before = at_rest(engine)
    assert before[:2] == (160, 64)
    for _ in range(9):
        ends += short_requests(engine, 1000, rng)
        assert at_rest(engine) == before
    assert ends.keys() == {"stop", "length", "abort", "timeout"}
    assert ends.total() == 10_000
    assert min(ends.values()) > 100


# ---- block diffusion ----


@pytest.mark.parametrize("fdfo", [True, False], ids=["first done, first out", "synchronous"])
def test_block_diffusion_answers_as_well_as_in_training(fdfo: bool) -> None:
    config = EngineConfig(
        model=str(checkpoint("diffusion")),
        device=DEVICE,
        block_size=32,
        max_num_seqs=16,
        num_kv_blocks=64,
        max_model_len=128,
    )
    engine = build_diffusion_engine(config, DllmSettings(LowConfidence(), fdfo=fdfo))
    sequences = [engine.add_request(prompt, ANSWER) for prompt in problems(96, "blocks")]
    while engine.has_unfinished:
        engine.step()
    assert right(sequences) >= fewest_expected("diffusion", 96)
    engine.scheduler.check()
