"""Other kernels for prompts with nothing cached: where they are taken, with which shapes, and where not."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from stub_engine import run_all
from torch import Tensor

from blis_py.errors import InputError
from engine import build
from engine.build import build_engine
from engine.config import EngineConfig
from engine.diffusion.build import build_diffusion_engine
from engine.diffusion.low_confidence import LowConfidence
from engine.diffusion.settings import DllmSettings
from engine.kernels import prompt_attention
from engine.kernels.attention import AttentionMetadata, paged_attention
from engine.kernels.prompt_attention import FreshPrompts, Prompts
from engine.sampling_params import SamplingParams
from engine.tiny import checkpoint

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
PROMPTS = ["copy: rest -> ", "sort: dbca -> ", "reverse: abcd -> a", "copy: rest -> r"]
HEADS, KV_HEADS, DIM, PAGE = 6, 2, 16, 16


def answers(**settings: Any) -> list[list[int]]:
    """Tokens of prompts of several lengths, which come one after the other and share a beginning."""
    settings |= {"max_model_len": 128, "max_num_batched_tokens": 24, "num_kv_blocks": 64}
    engine = build_engine(EngineConfig(model=str(checkpoint("ar")), device="cpu", **settings))
    params = SamplingParams(temperature=0, max_tokens=10)
    sequences = []
    for prompt in PROMPTS:
        sequences.append(engine.add_request(prompt, params))
        engine.step()
    run_all(engine)
    return [list(sequence.output_ids) for sequence in sequences]


@pytest.mark.parametrize("overlap", [False, True])
def test_answers_are_the_same_and_only_prompts_with_nothing_cached_are_computed(
    overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[Sequence[int]] = []

    def noted(name: str, device: torch.device) -> Any:
        attend = prompt_attention.prompt_attention(name, device)
        assert attend is not None

        def both(q: Tensor, k: Tensor, v: Tensor, prompts: Prompts, scale: float) -> Tensor:
            taken.append(tuple(prompts.lengths))
            return attend(q, k, v, prompts, scale)

        return both

    expected = answers(async_scheduling=overlap)
    monkeypatch.setattr(build, "prompt_attention", noted)
    assert answers(async_scheduling=overlap, attention_backend="math") == expected
    assert taken
    assert max(sum(lengths) for lengths in taken) <= 24


def batch(
    lengths: Sequence[int], contexts: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor, AttentionMetadata, Tensor]:
    """Queries, caches, metadata and slots of decodes at these contexts and prompts of these lengths."""
    seq_lens = [*contexts, *lengths]
    counts = [1] * len(contexts) + list(lengths)
    pages = torch.randperm(8 * len(seq_lens)).view(len(seq_lens), 8)
    k_cache, v_cache = torch.randn(2, pages.numel(), KV_HEADS, PAGE, DIM)
    starts = torch.tensor([0, *counts]).cumsum(0).int()
    meta = AttentionMetadata(
        starts, torch.tensor(seq_lens).int(), pages.int(), max(counts), max(seq_lens), len(contexts)
    )
    slots = [
        int(pages[row, at // PAGE]) * PAGE + at % PAGE
        for row, (length, count) in enumerate(zip(seq_lens, counts, strict=True))
        for at in range(length - count, length)
    ]
    return torch.randn(sum(counts), HEADS, DIM), k_cache, v_cache, meta, torch.tensor(slots)


@pytest.mark.parametrize(
    ("lengths", "contexts"), [((1,), ()), ((37,), ()), ((5, 64, 17), ()), ((33, 2), (1, 90))]
)
def test_it_equals_paged_attention_for_prompts_beside_decodes(
    lengths: tuple[int, ...], contexts: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    q, k_cache, v_cache, meta, slots = batch(lengths, contexts)
    attend = prompt_attention.prompt_attention("math", CPU)
    assert attend is not None
    fresh = FreshPrompts.of(attend, lengths, meta)
    found = fresh.attention(q, k_cache, v_cache, slots, 0.3)
    assert fresh.prompts.starts.diff().tolist() == list(lengths)
    assert fresh.prompts.starts[0] == 0
    torch.testing.assert_close(found, paged_attention(q, k_cache, v_cache, meta, 0.3))


def test_flash_attention_gets_starts_and_flashinfer_a_prompt_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[Any] = []

    def varlen(
        q: Tensor, k: Tensor, v: Tensor, q_starts: Tensor, k_starts: Tensor, *most: int, **more: Any
    ) -> Tensor:
        assert q_starts is k_starts
        calls.append((q_starts.tolist(), most, more, tuple(k.shape)))
        return q

    def single(q: Tensor, k: Tensor, v: Tensor, **more: Any) -> Tensor:
        calls.append((tuple(q.shape), tuple(v.shape), more))
        return q

    monkeypatch.setitem(sys.modules, "flash_attn", SimpleNamespace(flash_attn_varlen_func=varlen))
    monkeypatch.setitem(sys.modules, "flashinfer", SimpleNamespace(single_prefill_with_kv_cache=single))
    monkeypatch.setattr(prompt_attention, "find_spec", lambda name: name)
    q, k = torch.randn(7, HEADS, DIM), torch.randn(7, KV_HEADS, DIM)
    for name in ("flash-attn", "flashinfer"):
        attend = prompt_attention.prompt_attention(name, CUDA)
        assert attend is not None
        assert torch.equal(attend(q, k, k, Prompts((4, 3), torch.tensor([0, 4, 7])), 0.5), q)
    kv, scaled = (KV_HEADS, DIM), {"causal": True, "softmax_scale": 0.5}
    assert calls[0] == ([0, 4, 7], (4, 4), scaled, (7, *kv))
    once = {"causal": True, "sm_scale": 0.5}
    assert calls[1:] == [((n, HEADS, DIM), (n, *kv), once) for n in (4, 3)]


@pytest.mark.parametrize(
    ("name", "device", "why"),
    [
        ("cudnn", CPU, "it needs a GPU"),
        ("flash-attn", CUDA, "the package flash_attn is not installed"),
        ("flashinfer", CUDA, "the package flashinfer is not installed"),
    ],
)
def test_what_is_not_there_is_refused(
    name: str, device: torch.device, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_attention, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=f"attention_backend: not available: {why}.*use triton"):
        prompt_attention.prompt_attention(name, device)


def test_it_is_off_unless_chosen_and_not_for_block_diffusion() -> None:
    assert prompt_attention.prompt_attention(EngineConfig(model="any").attention_backend, CUDA) is None
    with pytest.raises(InputError, match="attention_backend"):
        EngineConfig(model="any", attention_backend="fastest")
    config = EngineConfig(model=str(checkpoint("diffusion")), device="cpu", attention_backend="math")
    with pytest.raises(InputError, match="block diffusion has the engine's own attention"):
        build_diffusion_engine(config, DllmSettings(LowConfidence()))
