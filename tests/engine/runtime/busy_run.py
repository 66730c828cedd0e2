"""Runs in which much happens at once, and what it takes for the simulator to have formed the same batches."""

from __future__ import annotations

import random
from typing import Any

import pytest
from stub_engine import VOCAB, Letters, StubModel, stub_engine

from blis_py.calibrate.parity import replay_steps
from engine.engine import LLMEngine
from engine.sampling_params import SamplingParams
from engine.sequence import Sequence

ROOMY = {"num_kv_blocks": 400}
CHUNKS = {"num_kv_blocks": 24, "max_num_batched_tokens": 40}
NO_PREFIX_CACHE = {"num_kv_blocks": 24, "enable_prefix_caching": False, "long_prefill_token_threshold": 13}
TIGHT = {"num_kv_blocks": 24, "preemption_policy": "priority", "max_num_batched_tokens": 12}
PREFILL_FIRST = {"num_kv_blocks": 40, "batch_former": "prefill-first"}
FAIR = {"num_kv_blocks": 24, "preemption_policy": "priority", "fairness_tokens": 200}
LFU = {**PREFILL_FIRST, "radix_eviction_policy": "lfu"}

SCHEDULERS = pytest.mark.parametrize("scheduler", ["fcfs", "priority-fcfs", "sjf"])
CONFIGS = pytest.mark.parametrize(
    "config",
    [ROOMY, CHUNKS, NO_PREFIX_CACHE, TIGHT, PREFILL_FIRST],
    ids=["roomy", "chunks", "no-prefix-cache", "tight", "prefill-first"],
)
RADIX_SCHEDULERS = pytest.mark.parametrize("scheduler", ["fcfs", "lpm", "hrrn", "dfs-weight"])


def busy_run(seed: int, requests: int = 50, model: StubModel | None = None, **config: Any) -> LLMEngine:
    """Requests come while others run: shared prefixes, next turns, aborts, deadlines, stops, idle times."""
    rng = random.Random(seed)
    engine = stub_engine(model, tokenizer=Letters(), max_model_len=256, **config)
    beginnings = [[rng.randrange(1, VOCAB) for _ in range(60)] for _ in range(3)]
    sequences: list[Sequence] = []
    while len(sequences) < requests or engine.has_unfinished:
        while len(sequences) < requests and rng.random() < 0.4:
            prompt = rng.choice(beginnings)[: rng.randrange(60)]
            prompt = prompt + [rng.randrange(VOCAB) for _ in range(rng.randrange(1, 60))]
            if sequences and rng.random() < 0.3:
                last = rng.choice(sequences)
                prompt = [*last.prompt_ids.tolist(), *last.output_ids, 5][:190]
            deadline = engine.clock.now_ns() + rng.randrange(10**5) if rng.random() < 0.1 else -1
            params = SamplingParams(temperature=0, max_tokens=rng.randrange(1, 60))
            sequences.append(
                engine.add_request(prompt, params, priority=rng.choice([0, 1, 5]), deadline_ns=deadline)
            )
        if sequences and rng.random() < 0.02:
            engine.abort_request(rng.choice(sequences).request.id)
        if rng.random() < 0.1:
            engine.clock.wait_until(engine.clock.now_ns() + rng.randrange(10**5))
        engine.step()
    return engine


def assert_same_batches(engine: LLMEngine) -> None:
    parity = replay_steps(engine.recorder.log())
    assert parity.first is None
    assert parity.identical == parity.steps == engine.scheduler.tick
