"""Settings that engines derive: per GPU and width, under those that a user gives, in every configuration."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import blis_py as blis
from blis_py.config.engine import load_engine
from blis_py.config.loader import dump, load_config, pool_configs
from blis_py.config.models import RunConfig
from blis_py.errors import InputError

Blis = Callable[..., tuple[int, str, str]]

LLAMA = {"engine": "sglang", "model": "llama-3.1-8b"}
CHUNK, SHARE, SEQS = (
    "scheduler.max_num_batched_tokens",
    "scheduler.gpu_memory_utilization",
    "scheduler.max_num_seqs",
)


def limits(config: RunConfig) -> tuple[int, float]:
    return config.scheduler.max_num_batched_tokens, config.scheduler.gpu_memory_utilization


@pytest.mark.parametrize(
    ("gpu", "tp", "expected"),
    [
        ("h100", 1, (8192, 0.83)),
        ("h100", 4, (8192, 0.819)),
        ("h200", 1, (8192, 0.903)),
        ("b200", 8, (16384, 0.849)),
        ("rtx-4090", 1, (4096, 0.704)),
        ("l40s", 1, (4096, 0.843)),
    ],
)
def test_gpu_and_width_decide(gpu: str, tp: int, expected: tuple[int, float]) -> None:
    assert limits(load_config(overrides={**LLAMA, "gpu": gpu, "tp": tp})) == expected


def test_small_gpus_had_smaller_chunks_before_0_5_20() -> None:
    settings = {**LLAMA, "gpu": "rtx-4090", "tp": 1, "engine": "sglang-0.5.19"}
    assert limits(load_config(overrides=settings)) == (2048, 0.833)


@pytest.mark.parametrize(
    ("settings", "tokens", "requests"),
    [
        ({"gpu": "h100"}, 8192, 1024),
        ({"gpu": "rtx-pro-6000"}, 8192, 1024),
        ({"gpu": "a100-80"}, 2048, 256),
        ({"gpu": "l40s"}, 2048, 256),
        ({"gpu": "h100", CHUNK: 512}, 512, 512),
        ({"gpu": "h100", CHUNK: 512, SEQS: 2}, 512, 2),
        ({"gpu": "h100", SEQS: 4}, 8192, 4),
    ],
)
@pytest.mark.parametrize("engine", ["vllm", "vllm-0.9", "vllm-0.10"])
def test_vllm_has_as_many_requests_as_a_step_has_tokens_at_most(
    engine: str, settings: dict[str, Any], tokens: int, requests: int
) -> None:
    own = load_config(overrides={**settings, "engine": engine, "model": "llama-3.1-8b"}).scheduler
    assert (own.max_num_batched_tokens, own.max_num_seqs) == (tokens, requests)


def test_a100_was_a_large_gpu_of_vllm_0_8() -> None:
    found = {
        release: load_config(overrides={**LLAMA, "gpu": "a100-80", "engine": release}).scheduler
        for release in ("vllm-0.8", "vllm-0.9")
    }
    limits_of = {key: (own.max_num_batched_tokens, own.max_num_seqs) for key, own in found.items()}
    assert limits_of == {"vllm-0.8": (8192, 1024), "vllm-0.9": (2048, 256)}


def test_a_wider_step_of_vllm_has_more_requests_again() -> None:
    base = load_config(overrides={"model": "llama-3.1-8b", CHUNK: 512})
    assert load_config(overrides={CHUNK: 4096}, base=base).scheduler.max_num_seqs == 1024


def test_a_release_before_graphs_of_chunks_has_more_memory() -> None:
    assert limits(load_config(overrides={**LLAMA, "engine": "sglang-0.5.9"})) == (8192, 0.835)
    assert limits(load_config(overrides={**LLAMA, "engine": "sglang-0.5.10"})) == (8192, 0.83)
    assert limits(load_config(overrides={**LLAMA, "engine": "sglang-0.5.1"})) == (8192, 0.874)


def test_few_running_requests_leave_more_memory_where_they_bound_the_graphs() -> None:
    """The graphs of 32 requests instead of 256 take 224 x 2 MiB less; the wheel's own function says so."""
    few = {**LLAMA, "scheduler.max_num_seqs": 32}
    shares = [
        limits(load_config(overrides={**given, "engine": release}))[1]
        for release in ("sglang-0.5.21", "sglang-0.5.22")
        for given in (LLAMA, few)
    ]
    assert shares[0] == shares[1] == shares[2] < shares[3]


def test_a_flag_wins_and_a_chunk_changes_the_share() -> None:
    assert limits(load_config(overrides={**LLAMA, SHARE: 0.7}))[1] == 0.7
    wide = load_config(overrides={**LLAMA, "engine": "sglang-0.5.9", CHUNK: 16384})
    assert limits(wide) == (16384, 0.685)
    graphs = load_config(overrides={**LLAMA, "engine": "sglang-0.5.9", "latency.cuda_graph_max_size": 512})
    assert limits(graphs)[1] == 0.829
    assert load_config(overrides={**LLAMA, SEQS: 7}).scheduler.max_num_seqs == 7


def test_attention_dp_divides_the_chunk_and_the_share_of_what_others_may_write() -> None:
    deepseek = {"engine": "sglang", "model": "deepseek-r1", "gpu": "b200", "tp": 8, "attention_dp": 8}
    config = load_config(overrides=deepseek)
    assert limits(config) == (2048, 0.751)
    assert config.scheduler.admission_rule == "new-token-ratio-ranks"
    assert limits(load_config(overrides={**deepseek, CHUNK: 2048}))[1] == 0.751


def test_models_that_read_images_have_a_smaller_share() -> None:
    qwen = {"engine": "sglang", "model": "qwen3.5-35b-a3b", "gpu": "h100"}
    assert limits(load_config(overrides=qwen))[1] == pytest.approx(0.835 * 0.924765625)
    assert limits(load_config(overrides={**qwen, "model": "llama-4-scout", "tp": 4}))[1] == 0.819


def test_running_requests_follow_the_pool() -> None:
    """On eight H200 the pool of Llama-3.1-8B holds more than eight of its longest sequences."""
    small, large = (
        load_config(overrides={**LLAMA, "gpu": gpu, "tp": tp}) for gpu, tp in (("h100", 1), ("h200", 8))
    )
    assert (small.scheduler.max_num_seqs, large.scheduler.max_num_seqs) == (2048, 4096)
    states = load_config(overrides={"engine": "sglang", "model": "qwen3.5-27b", "gpu": "h100"})
    uncached = load_config(
        overrides={
            "engine": "sglang",
            "model": "qwen3.5-27b",
            "gpu": "h100",
            "scheduler.prefix_cache": "none",
        }
    )
    assert states.scheduler.max_num_seqs == uncached.scheduler.max_num_seqs // 5


def test_a_saved_configuration_is_the_same_and_follows_another_width(tmp_path: Path) -> None:
    config = load_config(overrides={**LLAMA, "gpu": "h200", "tp": 2})
    file = tmp_path / "config.yaml"
    file.write_text(dump(config))
    assert load_config(file) == config
    wider = load_config(file, overrides={"tp": 8, "gpu": "b200"})
    assert limits(wider) == limits(load_config(overrides={**LLAMA, "gpu": "b200", "tp": 8}))


def test_a_value_changed_by_hand_stays_and_others_follow_it(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    text = dump(load_config(overrides={**LLAMA, "engine": "sglang-0.5.9"}))
    file.write_text(text.replace("max_num_batched_tokens: 8192", "max_num_batched_tokens: 16384"))
    assert limits(load_config(file, overrides={"tp": 2})) == (16384, 0.683)


def test_every_pool_and_phase_derives_its_own() -> None:
    pools = [
        {"name": "wide", "gpu": "b200", "tp": 8, "count": 1},
        {"name": "small", "gpu": "h100", "tp": 1, "count": 1},
    ]
    config = load_config(overrides={**LLAMA, "pools": pools})
    assert [limits(own) for _, own in pool_configs(config)] == [(16384, 0.849), (8192, 0.83)]
    phases = [{"name": role, "role": role, "count": 1} for role in ("prefill", "decode")]
    apart = load_config(overrides={**LLAMA, "pools": phases})
    assert [limits(own) for _, own in pool_configs(apart)] == [(8192, 0.835)] * 2


def test_candidates_of_a_plan_derive_their_own() -> None:
    base = load_config(overrides=LLAMA)
    found = [
        limits(load_config(overrides={"gpu": g, "tp": t}, base=base)) for g, t in (("h100", 4), ("b200", 1))
    ]
    assert found == [(8192, 0.819), (16384, 0.854)]


def test_a_model_that_does_not_fit_is_refused_with_the_derived_share() -> None:
    with pytest.raises(InputError, match=r"llama-3.1-70b does not fit on H100 at TP1.* try --tp 4"):
        blis.build(engine="sglang", model="llama-3.1-70b", num_requests=1)


def test_an_unknown_model_or_gpu_is_refused_as_ever() -> None:
    with pytest.raises(InputError, match="lama"):
        blis.build(engine="sglang", model="lama", num_requests=1)
    with pytest.raises(InputError, match="h1000"):
        blis.build(engine="sglang", model="llama-3.1-8b", gpu="h1000", num_requests=1)


def test_rules_are_listed_and_named_in_presets(blis: Blis, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = json.loads(blis("engines")[1])
    values = {row["setting"]: row["value"] for row in rows if row["name"] == "sglang"}
    assert "16384" in values[CHUNK]
    assert values[SHARE].startswith("by GPU memory")
    file = tmp_path / "ours.yaml"
    file.write_text(f"title: Ours\nsettings: {{{SHARE}: {{rule: sglang-shares, source: our servers}}}}\n")
    with pytest.raises(InputError, match=f"{SHARE}: no such rule .*sglang-memory-share"):
        load_engine(str(file))


@pytest.mark.parametrize(
    ("engine", "gpu", "model", "kernels"),
    [
        ("vllm-0.11", "h100", "gpt-oss-120b", "marlin"),
        ("vllm-0.11", "h100", "openai/gpt-oss-120b", "marlin"),
        ("trtllm-1.2.0rc6", "h200", "GPT-OSS-20B", "cutlass"),
        ("vllm-0.12", "h100", "gpt-oss-120b", "auto"),
        ("vllm-0.11", "b200", "gpt-oss-120b", "auto"),
        ("vllm-0.16", "h200", "minimax-m2.5", "flashinfer_cutlass"),
        ("vllm-0.17", "h200", "minimax-m2.5", "auto"),
        ("trtllm-1.2.0rc6", "h200", "gpt-oss-20b", "cutlass"),
        ("trtllm-1.3.0rc1", "h200", "gpt-oss-20b", "cutlass"),
        ("trtllm-1.3.0rc2", "h200", "gpt-oss-20b", "auto"),
        ("vllm", "h100", "llama-3.1-8b", "auto"),
    ],
)
def test_kernels_of_experts_are_those_of_the_release(engine: str, gpu: str, model: str, kernels: str) -> None:
    config = load_config(overrides={"engine": engine, "gpu": gpu, "model": model})
    assert config.latency.moe_backend == kernels
    given = {"engine": engine, "gpu": gpu, "model": model, "latency.moe_backend": "triton"}
    assert load_config(overrides=given).latency.moe_backend == "triton"
