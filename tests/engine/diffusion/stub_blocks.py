"""A block-diffusion model that costs little and depends on every token it attends to, and its oracle."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import torch
from virtual_clock import StepClock

from engine.config import EngineConfig
from engine.diffusion.blocks import Algorithm, Blocks, Logits
from engine.diffusion.build import build_diffusion_engine
from engine.diffusion.engine import DiffusionEngine
from engine.diffusion.joint_threshold import JointThreshold
from engine.diffusion.low_confidence import LowConfidence
from engine.diffusion.settings import ALGORITHMS, DllmSettings
from engine.diffusion.top_k_per_step import TopKPerStep
from engine.sampling_params import SamplingParams

BLOCK, VOCAB, EOS, MASK = 32, 41, 0, 40


@dataclass
class StubSizes:
    num_layers: int = 1
    num_kv_heads: int = 1
    head_dim: int = 1
    vocab_size: int = VOCAB
    max_position_embeddings: int = 4096
    mask_block: int = BLOCK


def opinion(context_sum: int, positions: Any, filled: int) -> tuple[Any, Any]:
    """Favourite token of each position and how sure the model is of it, given the tokens it sees.

    The favourite changes while the block fills up, so that there is something to edit; sometimes it is the
    mask token.
    """
    favourite = (context_sum + 7 * positions + filled // 12) % VOCAB
    sureness = (5 * context_sum + 11 * positions + 3 * filled) % 10
    return favourite, sureness


def stub_logits(favourite: torch.Tensor, sureness: torch.Tensor) -> torch.Tensor:
    logits = torch.zeros(len(favourite), VOCAB)
    logits.scatter_(1, ((favourite + 1) % VOCAB).long().unsqueeze(1), sureness.unsqueeze(1) - 0.5)
    return logits.scatter_(1, favourite.long().unsqueeze(1), sureness.unsqueeze(1))


@dataclass
class StubModel:
    """Reads tokens back from the K cache and positions from the V cache: a wrong slot, page, length or mask
    changes the output. Everything is integer, so a result cannot depend on the batch."""

    config: StubSizes = field(default_factory=StubSizes)
    fail_at: int = -1
    """Index of the forward that raises."""
    forwards: int = 0
    lm_head_rows: int = 0

    def __call__(self, input_ids: Any, context: Any) -> torch.Tensor:
        self.forwards += 1
        if self.forwards - 1 == self.fail_at:
            raise RuntimeError("out of memory, say")
        positions, meta, (k_cache, v_cache) = context.positions, context.attention, context.kv[0]
        assert meta.mask_block == BLOCK
        assert meta.num_decodes == 0
        page = k_cache.shape[2]
        keys, values = k_cache.view(-1).numpy(), v_cache.view(-1).numpy()
        where, starts, lengths = context.slots.numpy(), meta.query_start.numpy(), meta.seq_lens.numpy()
        keys[where], values[where] = input_ids.numpy(), positions.numpy()
        out = np.zeros((len(where), 2), dtype=np.float32)
        within = np.arange(page)
        for i, table in enumerate(meta.block_tables.numpy()):
            length, first, last = int(lengths[i]), int(starts[i]), int(starts[i + 1])
            assert length % BLOCK == 0
            assert (last - first) % BLOCK == 0
            if last - first > BLOCK:
                continue  # a prompt chunk: its logits are not used
            places = (table[: -(-length // page), None] * page + within).ravel()[:length]
            seen = keys[places].astype(np.int64)
            context = seen[: length - BLOCK]
            total = int((context * (values[places[: length - BLOCK]].astype(np.int64) + 1)).sum())
            filled = int((seen[length - BLOCK :] != MASK).sum())
            own = positions.numpy()[first:last]
            out[first:last, 0], out[first:last, 1] = opinion(total, own, filled)
        return torch.from_numpy(out)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        self.lm_head_rows += len(hidden)
        return stub_logits(hidden[:, 0], hidden[:, 1])


@torch.inference_mode()
def expected(algorithm: Algorithm, prompt: list[int], most: int) -> tuple[list[int], list[int]]:
    """Output and rounds per block, by one block at a time without engine, pages or batches."""
    ids, rounds = list(prompt), list[int]()
    while True:
        start = len(ids) // BLOCK * BLOCK
        tail = ids[start:]
        answer = torch.arange(BLOCK)[None] >= len(tail)
        blocks = Blocks(torch.tensor([tail + [MASK] * (BLOCK - len(tail))]), answer, MASK)
        state = algorithm.init_step_state(blocks)
        total = sum((i + 1) * token for i, token in enumerate(ids[:start]))
        rounds.append(0)
        done = False
        while not done:
            rounds[-1] += 1
            wanted = algorithm.needs_logits(blocks, state)
            if not wanted.any():
                break
            filled = int((blocks.ids != MASK).sum())
            favourite, sureness = opinion(total, np.arange(start, start + BLOCK), filled)
            logits = stub_logits(torch.tensor(favourite), torch.tensor(sureness, dtype=torch.float32))
            rows = wanted.view(-1).nonzero().view(-1)
            done = bool(algorithm.step(blocks, Logits(logits[rows], rows), state))
        ids = ids[:start] + blocks.ids[0].tolist()
        output = ids[len(prompt) :][:most]
        if EOS in output:
            return output[: output.index(EOS) + 1], rounds
        if len(output) == most:
            return output, rounds


class Tokens:
    """A tokenizer that knows the end of sequence and nothing else."""

    vocab_size = VOCAB
    eos_ids = frozenset({EOS})

    def encode(self, text: str) -> list[int]:
        raise NotImplementedError

    def decode(self, ids: Any) -> str:
        return " ".join(map(str, ids))


def stub_engine(
    algorithm: Algorithm | str = "LowConfidence",
    model: StubModel | None = None,
    clock: StepClock | None = None,
    **given: Any,
) -> DiffusionEngine:
    """An engine around the stub model; takes fields of `EngineConfig` and `DllmSettings`."""
    chosen = ALGORITHMS[algorithm]() if isinstance(algorithm, str) else algorithm
    modes = {name: given.pop(name) for name in ("fdfo", "reuse_in_place", "reloop") if name in given}
    defaults = {"max_model_len": 256, "num_kv_blocks": 128, "max_num_seqs": 4, "block_size": BLOCK}
    config = EngineConfig(model="stub", device="cpu", **{**defaults, **given})
    return build_diffusion_engine(
        config,
        DllmSettings(chosen, **modes),
        model=model or StubModel(),
        tokenizer=Tokens(),
        mask_id=MASK,
        clock=clock or StepClock(),
    )


CHOICES = [LowConfidence(0.9), JointThreshold(0.6), JointThreshold(0.5, 0.2, 3, 0.7), TopKPerStep(5)]


def params(most: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=most)


def problems(seed: int, count: int, most: int = 70) -> list[tuple[list[int], int]]:
    """Prompts of odd lengths, some with the mask token in them, and output limits."""
    rng = Random(seed)
    return [
        ([rng.randrange(VOCAB) for _ in range(rng.choice([0, 1, 31, 32, 33, 64, 70]))], rng.randint(1, most))
        for _ in range(count)
    ]


def run_all(engine: DiffusionEngine) -> None:
    """To the end, then checks that nothing has leaked."""
    while engine.has_unfinished:
        engine.step()
        engine.scheduler.check()
    assert_no_leak(engine)


def assert_no_leak(engine: DiffusionEngine) -> None:
    scheduler = engine.scheduler
    scheduler.check()
    assert scheduler.kv.pool.num_free == scheduler.kv.pool.total
    assert scheduler.free_slots == scheduler.config.max_num_seqs
    assert engine.executor.slots.resident == 0
    assert not engine.has_unfinished
