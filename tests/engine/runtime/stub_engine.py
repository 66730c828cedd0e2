"""A model that costs nothing and depends on every token it attends to, through the real paged cache."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from virtual_clock import StepClock

from blis_py.core.scheduler import Scheduler
from engine.build import build_engine
from engine.config import EngineConfig
from engine.engine import LLMEngine
from engine.executor import Executor, Forward
from engine.graphs import DecodeGraphs
from engine.mixed_graphs import MixedGraphs

VOCAB = 97


@dataclass
class StubSizes:
    num_layers: int = 1
    num_kv_heads: int = 1
    head_dim: int = 1
    vocab_size: int = VOCAB
    max_position_embeddings: int = 4096


@dataclass
class StubModel:
    """Next token = (sum over the context of (position + 1) * token) mod vocabulary.

    Tokens are read back from the K cache and positions from the V cache, so a wrong slot, table, length
    or position changes the output. Integers below 2**24 are exact in float32.
    """

    config: StubSizes = field(default_factory=StubSizes)
    fail_at: int = -1
    """Index of the forward that raises."""
    forwards: int = 0

    def __call__(self, input_ids: Any, context: Any) -> torch.Tensor:
        self.forwards += 1
        if self.forwards - 1 == self.fail_at:
            raise RuntimeError("out of memory, say")
        positions, meta, (k_cache, v_cache) = context.positions, context.attention, context.kv[0]
        page = k_cache.shape[2]
        keys, values = k_cache.view(-1).numpy(), v_cache.view(-1).numpy()
        where, starts, lengths = context.slots.numpy(), meta.query_start.numpy(), meta.seq_lens.numpy()
        stored = where >= 0
        keys[where[stored]] = input_ids.numpy()[stored]
        values[where[stored]] = positions.numpy()[stored]
        new = np.diff(starts)
        assert (new[: meta.num_decodes] <= 1).all()
        assert new.max() <= meta.max_query_len
        assert lengths.max() <= meta.max_seq_len
        within = np.arange(page)
        answers = np.zeros(len(where), dtype=np.float32)
        for i, table in enumerate(meta.block_tables.numpy()):
            if length := int(lengths[i]):
                pages = table[: -(-length // page)]
                places = (pages[:, None] * page + within).ravel()[:length]
                sums = np.cumsum(keys[places].astype(np.int64) * (values[places].astype(np.int64) + 1))
                answers[starts[i] : starts[i + 1]] = sums[length - new[i] :] % VOCAB
        return torch.from_numpy(answers).unsqueeze(1)

    def track_expert_load(self) -> None: ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Falls with the distance from the token computed, cyclically: rank r is token + r."""
        return -((torch.arange(VOCAB) - hidden) % VOCAB) / 8


def expected(prompt: list[int], count: int) -> list[int]:
    """What the stub model answers greedily."""
    total, answer = sum((i + 1) * token for i, token in enumerate(prompt)), []
    for position in range(len(prompt), len(prompt) + count):
        answer.append(total % VOCAB)
        total += (position + 1) * answer[-1]
    return answer


class Letters:
    """A tokenizer of one character per token; token 0 ends a sequence."""

    vocab_size = VOCAB
    eos_ids = frozenset({0})

    def encode(self, text: str) -> list[int]:
        return [ord(character) - 32 for character in text]

    def decode(self, ids: Any) -> str:
        return "".join(chr(32 + token) for token in ids)


def stub_engine(
    model: StubModel | None = None, *, tokenizer: Any = None, clock: Any = None, **settings: Any
) -> LLMEngine:
    """An engine around the stub model."""
    defaults = {"max_model_len": 512, "num_kv_blocks": 64, "max_num_seqs": 16}
    config = EngineConfig(**{"model": "stub", "device": "cpu", **defaults, **settings})
    return build_engine(config, model=model or StubModel(), tokenizer=tokenizer, clock=clock or StepClock())


def run_all(engine: LLMEngine) -> None:
    """Steps until nothing is left, then checks that nothing has leaked."""
    while engine.has_unfinished:
        engine.step()
    assert_no_leak(engine.scheduler, engine.executor)


def assert_no_leak(scheduler: Scheduler, executor: Executor) -> None:
    scheduler.check()
    assert scheduler.kv.pool.num_free == scheduler.kv.pool.total
    assert executor.free_slots == scheduler.config.max_num_seqs


def eager_capture(run: Any) -> tuple[Any, torch.Tensor]:
    """Stands in for a CUDA graph: a replay runs the same function on the same buffers again."""
    result = run()

    def replay() -> None:
        result.copy_(run())

    return replay, result


def with_mixed_graphs(engine: LLMEngine, sizes: tuple[int, ...]) -> MixedGraphs:
    """Steps with prompts, up to so many tokens, go through padded batches from now on."""
    executor, config = engine.executor, engine.scheduler.config
    graphs = MixedGraphs(
        executor.forward, executor.builder, config.max_model_len, sizes, config.max_num_seqs, eager_capture
    )
    executor.mixed_graphs = graphs
    return graphs


def with_graphs(engine: LLMEngine, buckets: tuple[int, ...]) -> DecodeGraphs:
    """Decode steps of `engine` go through padded batches from now on."""
    executor = engine.executor
    forward: Forward = executor.forward
    length = engine.scheduler.config.max_model_len
    graphs = DecodeGraphs(forward, executor.builder, length, buckets, eager_capture)
    executor.graphs = graphs
    return graphs
