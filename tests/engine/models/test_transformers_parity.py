"""Logits of the decoder against those of HuggingFace transformers, for tiny random models in float32."""

from __future__ import annotations

import warnings
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from paged_run import PagedRun
from torch import Tensor

from engine.models import Decoder, build_model, load_model_config

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

SIZES: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
    "initializer_range": 0.2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 24,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24}
GEMMA = {
    "head_dim": 16,
    "sliding_window": 9,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
    },
    "pad_token_id": 0,
}
GPT_OSS = {
    "head_dim": 16,
    "intermediate_size": 24,
    "sliding_window": 9,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "rope_scaling": {**YARN, "truncate": False},
    "attention_bias": True,
}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 24, "num_experts": 6}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-2": ("Llama", {"num_key_value_heads": 6}),
    "llama with biases and wide heads": ("Llama", {"attention_bias": True, "head_dim": 24}),
    "llama-3.1": ("Llama", {"rope_scaling": LLAMA3, "rope_theta": 500.0}),
    "llama-3.2, tied": ("Llama", {"rope_scaling": LLAMA3, "tie_word_embeddings": True}),
    "llama, linear scaling": ("Llama", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
    "qwen2.5": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
    "qwen3, yarn": ("Qwen3", {"head_dim": 16, "rope_scaling": YARN}),
    "mistral": ("Mistral", {"sliding_window": None, "head_dim": 16}),
    "mistral, sliding window": ("Mistral", {"sliding_window": 13, "head_dim": 16}),
    "qwen2.5, last layers with a window": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 11, "max_window_layers": 1},
    ),
    "ministral, some layers with a window": (
        "Ministral",
        {
            "sliding_window": 13,
            "head_dim": 16,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "seed-oss": ("SeedOss", {"head_dim": 16}),
    "seed-oss, biases elsewhere": (
        "SeedOss",
        {"head_dim": 16, "attention_bias": False, "attention_out_bias": True},
    ),
    "mixtral": ("Mixtral", {"sliding_window": None, "num_local_experts": 5, "num_experts_per_tok": 2}),
    "qwen3-moe": ("Qwen3Moe", {**EXPERTS, "head_dim": 16, "norm_topk_prob": True}),
    "qwen3-moe, weights as they are": ("Qwen3Moe", {**EXPERTS, "head_dim": 16, "norm_topk_prob": False}),
    "qwen3-moe, some dense": ("Qwen3Moe", {**EXPERTS, "head_dim": 16, "mlp_only_layers": [0]}),
    "gemma-3": ("Gemma3", GEMMA),
    "gemma-3, untied": ("Gemma3", {**GEMMA, "tie_word_embeddings": False, "query_pre_attn_scalar": 20}),
    "gpt-oss": ("GptOss", {**GPT_OSS, "num_experts_per_tok": 2, "num_local_experts": 5}),
    "qwen3-moe, every second": ("Qwen3Moe", {**EXPERTS, "head_dim": 16, "decoder_sparse_step": 2}),
}
LENGTHS = (53, 31)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@cache
def models(case: str, folder: Path) -> tuple[Any, Decoder]:
    """The same checkpoint in transformers and in the engine."""
    family, changes = CASES[case]
    kind = "Gemma3Text" if family == "Gemma3" else family
    config = getattr(transformers, f"{kind}Config")(**{**SIZES, **changes})
    torch.manual_seed(sorted(CASES).index(case))
    theirs = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for weight in theirs.parameters():
            if weight.dim() == 1:  # norms are initialised to one and biases to zero, which proves nothing
                weight.add_(torch.randn_like(weight) * 0.3)
    path = folder / case.replace(" ", "-")
    with warnings.catch_warnings(action="ignore"):
        theirs.save_pretrained(path, max_shard_size="30KB")
    return theirs, build_model(load_model_config(path), device="cpu", path=path)


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(101, (length,), generator=generator).tolist() for length in LENGTHS]


@torch.inference_mode()
def expected(theirs: Any, tokens: list[int]) -> Tensor:
    logits: Tensor = theirs(torch.tensor([tokens])).logits[0]
    return logits


@pytest.mark.parametrize("case", CASES)
def test_prefill_gives_the_logits_of_transformers(case: str, folder: Path) -> None:
    theirs, ours = models(case, folder)
    logits = PagedRun(ours, page_size=16).step(list(enumerate(prompts())))
    for tokens, rows in zip(prompts(), logits, strict=True):
        torch.testing.assert_close(rows, expected(theirs, tokens), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("case", CASES)
def test_chunks_and_decodes_across_odd_pages_give_the_logits_of_transformers(case: str, folder: Path) -> None:
    """Both sequences share every forward: one decodes while the other still computes its prompt."""
    theirs, ours = models(case, folder)
    long, short = prompts()
    run = PagedRun(ours, page_size=7)
    rows: dict[int, list[Tensor]] = {0: [], 1: []}
    done = {0: 0, 1: 0}
    while done[0] < len(long) or done[1] < len(short):
        sizes = {0: 11 if done[0] < 44 else 1, 1: 24 if done[1] == 0 else 1}
        work = [
            (name, tokens[done[name] : done[name] + sizes[name]])
            for name, tokens in ((0, long), (1, short))
            if done[name] < len(tokens)
        ]
        for (name, tokens), logits in zip(work, run.step(work), strict=True):
            rows[name].append(logits)
            done[name] += len(tokens)
    for name, tokens in ((0, long), (1, short)):
        torch.testing.assert_close(torch.cat(rows[name]), expected(theirs, tokens), atol=1e-4, rtol=1e-4)


def test_the_logits_compared_are_not_trivial(folder: Path) -> None:
    logits = expected(models("qwen3", folder)[0], prompts()[0])
    assert logits.std() > 0.5
    assert len(set(logits.argmax(-1).tolist())) > 10
