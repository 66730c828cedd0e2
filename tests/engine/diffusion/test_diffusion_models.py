"""The engine on real decoders: the same tokens in both modes, with and without a cache."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from engine.config import EngineConfig
from engine.diffusion.blocks import Algorithm, Blocks, Logits
from engine.diffusion.build import build_diffusion_engine, make_executor
from engine.diffusion.engine import DiffusionEngine
from engine.diffusion.joint_threshold import JointThreshold
from engine.diffusion.low_confidence import LowConfidence
from engine.diffusion.settings import DllmSettings
from engine.diffusion.top_k_per_step import TopKPerStep
from engine.forward_context import ForwardContext
from engine.kernels.attention import AttentionMetadata
from engine.models import build_model, load_model_config
from engine.models.config import find_config
from engine.sampling_params import SamplingParams
from engine.tiny.vocab import MASK
from training.diffusion import BLOCK, CONFIG
from training.model import Qwen3, Shape, load, save

CHOICES = [LowConfidence(0.6), JointThreshold(0.5, 0.3), TopKPerStep(6)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small decoder with random weights, louder than usual so that some tokens are more likely."""
    torch.manual_seed(3)
    model = Qwen3(Shape(layers=2, hidden=64, heads=4, kv_heads=2, head_dim=16, ffn=96))
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 2:
                weight.mul_(9)
    folder: Path = tmp_path_factory.mktemp("decoder")
    save(model.eval(), folder, CONFIG)
    return folder


def engine_on(folder: Path, algorithm: Algorithm, model: Any = None, **given: Any) -> DiffusionEngine:
    modes = {name: given.pop(name) for name in ("fdfo", "reuse_in_place", "reloop") if name in given}
    defaults = {"block_size": BLOCK, "max_num_seqs": 1, "num_kv_blocks": 64, "max_model_len": 256}
    config = EngineConfig(model=str(folder), device="cpu", **{**defaults, **given})
    settings = DllmSettings(algorithm, **modes)
    return build_diffusion_engine(config, settings, model=model, mask_id=MASK if model else None)


def prompts(count: int) -> list[list[int]]:
    rng = Random(2)
    return [[rng.randrange(256) for _ in range(rng.choice([0, 20, 31, 32, 33, 50]))] for _ in range(count)]


def outputs(engine: DiffusionEngine, inputs: list[list[int]], most: int = 70) -> list[list[int]]:
    limits = SamplingParams(temperature=0, max_tokens=most, ignore_eos=True)
    sequences = [engine.add_request(prompt, limits) for prompt in inputs]
    while engine.has_unfinished:
        engine.step()
    assert not any(sequence.error for sequence in sequences)
    return [sequence.output_ids for sequence in sequences]


@torch.inference_mode()
def recomputed(model: Qwen3, algorithm: Algorithm, prompt: list[int], most: int = 70) -> list[int]:
    """No pages, no cache: everything anew in every round."""
    ids = list(prompt)
    while len(ids) - len(prompt) < most:
        start = len(ids) // BLOCK * BLOCK
        tail = ids[start:]
        row = torch.tensor([tail + [MASK] * (BLOCK - len(tail))])
        blocks = Blocks(row, torch.arange(BLOCK)[None] >= len(tail), MASK)
        state, done = algorithm.init_step_state(blocks), False
        while not done and algorithm.needs_logits(blocks, state).any():
            rows = algorithm.needs_logits(blocks, state).view(-1).nonzero().view(-1)
            whole = torch.cat((torch.tensor(ids[:start], dtype=torch.int64), blocks.ids[0]))
            logits = model.logits(model(whole[None], mask_block=BLOCK)[0, start:])
            done = bool(algorithm.step(blocks, Logits(logits[rows], rows), state))
        ids = ids[:start] + blocks.ids[0].tolist()
    return ids[len(prompt) :][:most]


@pytest.mark.parametrize("algorithm", CHOICES, ids=repr)
def test_alone_in_the_batch_both_modes_give_the_tokens_of_full_recomputation(
    checkpoint: Path, algorithm: Algorithm
) -> None:
    inputs = [prompt for prompt in prompts(8) if prompt][:2]  # masks alone are all alike, up to rounding
    fdfo = outputs(engine_on(checkpoint, algorithm), inputs)
    assert outputs(engine_on(checkpoint, algorithm, fdfo=False), inputs) == fdfo
    model = load(checkpoint)
    assert fdfo == [recomputed(model, algorithm, prompt) for prompt in inputs]


def test_the_architecture_of_llada2_runs_on_dummy_weights(tmp_path: Path) -> None:
    config = json.loads(find_config("llada2.0-mini").read_text())
    small = {
        "hidden_size": 64,
        "head_dim": 16,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 96,
        "moe_intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_experts": 16,
        "num_experts_per_tok": 4,
        "vocab_size": 300,
        "mask_token_id": 299,
        "max_position_embeddings": 256,
    }
    (tmp_path / "config.json").write_text(json.dumps(config | small))
    inputs = [[1, 2, 3], list(range(40))]
    runs = []
    for fdfo in (True, False):
        engine = engine_on(tmp_path, TopKPerStep(8), fdfo=fdfo, load_format="dummy")
        runs.append(outputs(engine, inputs, most=35))
    assert runs[0] == runs[1]
    assert [len(output) for output in runs[0]] == [35, 35]
    assert all(token < 299 for output in runs[0] for token in output)


def eager_capture(run: Any) -> tuple[Any, torch.Tensor]:
    """Stands in for a CUDA graph: a replay runs the same function on the same buffers again."""
    result = run()
    return lambda: result.copy_(run()), result


@pytest.mark.parametrize("page", [32, 64])
def test_a_warm_up_and_padded_rounds_in_fixed_buffers_change_no_token(checkpoint: Path, page: int) -> None:
    inputs = prompts(5)
    plain = outputs(engine_on(checkpoint, TopKPerStep(8), max_num_seqs=3, block_size=page), inputs, most=40)
    engine = engine_on(checkpoint, TopKPerStep(8), max_num_seqs=3, block_size=page)
    config = EngineConfig(
        model=str(checkpoint),
        max_num_seqs=3,
        max_num_batched_tokens=256,
        block_size=page,
        cudagraph_capture_sizes=(1, 4),
    )
    bare = engine.executor
    engine.executor = make_executor(config, bare.model, bare.kv, bare.slots, 256, eager_capture)
    assert not any(cache.any() for layer in engine.executor.kv for cache in layer)
    assert outputs(engine, inputs, most=40) == plain


class OneByOne:
    """A decoder that gives each sequence a forward of its own: trivially batch-invariant."""

    def __init__(self, folder: Path) -> None:
        self.config = load_model_config(folder)
        self.decoder = build_model(self.config, device="cpu", path=folder)

    def __call__(self, ids: Any, context: ForwardContext) -> torch.Tensor:
        meta, hidden = context.attention, []
        starts = meta.query_start.tolist()
        for index, (first, last) in enumerate(pairwise(starts)):
            own = AttentionMetadata(
                query_start=torch.tensor([0, last - first], dtype=torch.int32),
                seq_lens=meta.seq_lens[index : index + 1],
                block_tables=meta.block_tables[index : index + 1],
                max_query_len=last - first,
                max_seq_len=meta.max_seq_len,
                num_decodes=0,
                mask_block=meta.mask_block,
            )
            positions, slots = context.positions[first:last], context.slots[first:last]
            hidden.append(self.decoder(ids[first:last], ForwardContext(positions, slots, own, context.kv)))
        return torch.cat(hidden)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.decoder.logits(row[None]) for row in hidden])


@pytest.mark.parametrize("algorithm", CHOICES, ids=repr)
def test_with_batch_invariant_kernels_batches_change_no_token(checkpoint: Path, algorithm: Algorithm) -> None:
    model, inputs = OneByOne(checkpoint), prompts(4)
    alone = outputs(engine_on(checkpoint, algorithm, model), inputs, most=36)
    for fdfo in (True, False):
        batched = engine_on(checkpoint, algorithm, model, fdfo=fdfo, max_num_seqs=3)
        assert outputs(batched, inputs, most=36) == alone
