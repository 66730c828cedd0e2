"""The engine around the real decoder, with random weights: same tokens whatever the batching."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from stub_engine import assert_no_leak, eager_capture, with_graphs

from blis_py.calibrate.parity import replay_steps
from blis_py.errors import InputError
from engine.build import build_engine, make_executor
from engine.config import EngineConfig
from engine.llm import LLM, RequestOutput, generate
from engine.sampling_params import SamplingParams

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 300,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "torch_dtype": "float32",
    "eos_token_id": 299,
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("tiny-qwen3")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return str(folder)


GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
SHARED = [(7 * i) % 290 for i in range(40)]
PROMPTS = [SHARED * (i % 2) + [(i * 31 + 11 * j) % 290 for j in range(3 + 5 * i)] for i in range(9)]


def llm(checkpoint: str, **settings: Any) -> LLM:
    defaults = {"load_format": "dummy", "device": "cpu", "num_kv_blocks": 60, "max_num_seqs": 9}
    return LLM(checkpoint, **{**defaults, **settings})


def tokens(outputs: list[RequestOutput]) -> list[list[int]]:
    return [output.token_ids for output in outputs]


@pytest.fixture(scope="module")
def one_by_one(checkpoint: str) -> list[list[int]]:
    model = llm(checkpoint, max_num_seqs=1, enable_prefix_caching=False)
    return tokens(model.generate(PROMPTS, GREEDY))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"block_size": 32, "num_kv_blocks": 30},
        {"max_num_batched_tokens": 11},
        {"enable_prefix_caching": False},
        {"num_kv_blocks": 10, "max_model_len": 150},
    ],
    ids=str,
)
def test_greedy_outputs_do_not_depend_on_settings(
    checkpoint: str, one_by_one: list[list[int]], settings: dict[str, Any]
) -> None:
    model = llm(checkpoint, **settings)
    assert tokens(model.generate(PROMPTS, GREEDY)) == one_by_one
    assert_no_leak(model.engine.scheduler, model.engine.executor)
    if settings.get("num_kv_blocks") == 10:
        assert model.engine.scheduler.counters.preemptions > 0
    assert replay_steps(model.engine.recorder.log()).share == 1.0


@pytest.mark.usefixtures("prepared_on")
def test_padded_batches_give_the_same_logits_as_exact_ones(
    checkpoint: str, one_by_one: list[list[int]]
) -> None:
    model = llm(checkpoint, max_num_seqs=16)
    with_graphs(model.engine, (4, 16))
    assert tokens(model.generate(PROMPTS, GREEDY)) == one_by_one
    assert {"graph", "eager"} == set(model.engine.recorder.log().steps["regime"])


@pytest.mark.usefixtures("prepared_on")
@pytest.mark.parametrize("eager", [False, True])
def test_the_warm_up_leaves_no_trace(checkpoint: str, one_by_one: list[list[int]], eager: bool) -> None:
    settings = {"max_num_seqs": 9, "max_num_batched_tokens": 120, "enforce_eager": eager}
    model = llm(checkpoint, **settings)
    engine, config = model.engine, EngineConfig(model=checkpoint, **settings).on("cpu")
    length = engine.scheduler.config.max_model_len
    engine.executor = make_executor(
        config, engine.executor.forward, length, torch.device("cpu"), eager_capture
    )
    assert not any(cache.any() for layer in engine.executor.forward.kv for cache in layer)
    assert tokens(model.generate(PROMPTS, GREEDY)) == one_by_one
    assert_no_leak(engine.scheduler, engine.executor)


def test_a_cached_prefix_changes_no_token(checkpoint: str, one_by_one: list[list[int]]) -> None:
    model = llm(checkpoint)
    model.generate(PROMPTS, GREEDY)
    again = model.generate(PROMPTS, GREEDY)
    assert tokens(again) == one_by_one
    assert sum(output.cached_tokens for output in again) > 200


def test_texts_come_with_reasons_and_logprobs(checkpoint: str) -> None:
    model = llm(checkpoint)
    params = SamplingParams(temperature=0.7, seed=3, max_tokens=5, logprobs=1, ignore_eos=True)
    output = model.generate("Hello", params)[0]
    assert (output.prompt, output.prompt_token_ids) == ("Hello", [*b"Hello"])
    assert (output.finish_reason, len(output.token_ids)) == ("length", 5)
    assert output.logprobs is not None
    assert all(token in noted for token, noted in zip(output.token_ids, output.logprobs, strict=True))
    assert model.generate("Hello", params)[0].token_ids == output.token_ids


def test_one_bad_prompt_refuses_the_call_and_leaves_nothing_behind(checkpoint: str) -> None:
    model = llm(checkpoint)
    with pytest.raises(InputError, match="max_model_len is 512"):
        model.generate([[1, 2], [1] * 600], GREEDY)
    assert not model.engine.has_unfinished
    assert_no_leak(model.engine.scheduler, model.engine.executor)
    with pytest.raises(InputError, match="2 prompts, 1 sampling parameters"):
        model.generate([[1], [2]], [GREEDY])
    assert len(model.generate([1, 2, 3], GREEDY)) == 1


def test_unknown_settings_are_refused(checkpoint: str) -> None:
    with pytest.raises(InputError, match="max_num_sequences"):
        LLM(checkpoint, max_num_sequences=3)


def test_no_cuda_device_is_said_plainly(checkpoint: str) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(InputError, match="no CUDA device"):
        build_engine(EngineConfig(model=checkpoint, device="cuda"))


def test_generate_reports_progress(checkpoint: str) -> None:
    model = llm(checkpoint)
    seen: list[tuple[int, int]] = []
    generate(model.engine, PROMPTS, [GREEDY] * 9, lambda ended, all: seen.append((ended, all)))
    assert seen[-1] == (9, 9)
