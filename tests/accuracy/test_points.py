"""Measured operating points become servers by their labels and launch flags, or have a reason."""

from __future__ import annotations

import csv
import gzip
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks" / "accuracy"))

ROW = {
    "id": "a",
    "backend": "sglang",
    "backend_version": "0.5.9",
    "model_path": "deepseek-ai/DeepSeek-R1",
    "system": "b200_sxm",
    "precision": "fp4",
    "mode": "agg",
    "isl": "1024",
    "osl": "1024",
    "gemm_quant_mode": "nvfp4",
    "batch_size": "4",
    "tp_size": "64",
    "attention_dp_size": "1",
    "moe_tp_size": "8",
    "moe_ep_size": "8",
    "silicon_ttft_ms": "200",
    "silicon_tpot_ms": "8",
}
FLAGS = {
    "group": "g1",
    "gpus": "8",
    "expert_parallel": "ep 8",
    "data_parallel": "off",
    "kv_cache_dtype": "fp8_e4m3",
    "mem_util": "0.85",
    "token_budget": "16384",
    "max_seqs": "CONC",
    "scheduler_recv_interval": "10",
    "mtp": "no",
    "status": "read",
}

FIXED = {"match": "label conc not listed", "script": "benchmarks/gptoss_fp4_h100_slurm.sh"}
"""A label of 512 requests in flight, which no configuration had."""


def point(folder: Path, row: dict[str, str] | None = None, flags: dict[str, str] | None = None) -> Any:
    from point_sets import silicon

    (folder / "silicon").mkdir(parents=True)
    write(folder / "silicon" / "rows.csv.gz", {**ROW, **(row or {})})
    write(folder / "silicon" / "row_groups.csv.gz", {"row": "0", "concurrency": "4", "group": "g1"})
    with (folder / "silicon" / "server_flags.csv").open("w") as file:
        rows(file, {**FLAGS, **(flags or {})})
    return next(silicon(folder))


def write(path: Path, row: dict[str, str]) -> None:
    with gzip.open(path, "wt") as file:
        rows(file, row)


def rows(file: Any, *several: dict[str, str]) -> None:
    writer = csv.DictWriter(file, several[0])
    writer.writeheader()
    writer.writerows(several)


def test_a_width_is_the_launched_one_and_not_the_label(tmp_path: Path) -> None:
    """The label says TP64: TP8 times EP8 on eight GPUs."""
    found = point(tmp_path)
    assert (found.gpus, found.attention_dp, found.ep) == (8, 1, 8)


def test_launch_flags_are_settings(tmp_path: Path) -> None:
    settings = point(tmp_path).settings()
    assert settings["model"] == "nvidia/DeepSeek-R1-NVFP4"
    assert (settings["engine"], settings["tp"], settings["ep"]) == ("sglang-0.5.9", 8, 8)
    assert (settings["kv_cache_dtype"], settings["gpu_memory_utilization"]) == ("fp8", 0.85)
    assert (settings["max_num_batched_tokens"], settings["max_num_seqs"]) == (16384, 4)
    assert settings["receive_interval"] == 10


def test_a_version_that_a_row_lacks_is_that_of_its_image(tmp_path: Path) -> None:
    """Synchronous steps in vLLM 0.10; a tag without a version says nothing."""
    row = {"backend": "vllm", "backend_version": "", "model_path": "openai/gpt-oss-120b"}
    images = ("vllm/vllm-openai:v0.10.2", "vllm/vllm-openai:v0.19.0-cu130", "release:gpt-oss-dev", "")
    found = [point(tmp_path / str(i), row, {"image": image}) for i, image in enumerate(images)]
    assert [p.version for p in found] == ["0.10.2", "0.19.0", "", ""]
    assert [p.settings()["engine"] for p in found] == ["vllm-0.10.2", "vllm-0.19.0", "vllm", "vllm"]


def test_waits_of_tensorrt_llm_are_settings(tmp_path: Path) -> None:
    said = 'attention-dp {"batching_wait_iters": 0, "enable_balance": true, "timeout_iters": 60}'
    flags = {"data_parallel": said, "other_flags": "y:batch_wait_timeout_iters=20"}
    settings = point(tmp_path, {"backend": "trtllm"}, flags).settings()
    assert (settings["attention_dp"], settings["attention_dp_timeout_iters"]) == (8, 60)
    assert settings["prompt_wait_steps"] == 20


def test_vllm_without_flashinfer_s_and_deepgemm_s_experts_has_triton_s(tmp_path: Path) -> None:
    row = {"backend": "vllm", "backend_version": "0.17.0", "precision": "fp8"}
    off = ["VLLM_MOE_USE_DEEP_GEMM=0", "VLLM_USE_FLASHINFER_MOE_FP8=0"]
    backends = [
        point(tmp_path / str(number), row, {"env": " ".join(env)}).settings().get("moe_backend")
        for number, env in enumerate((off, off[:1], []))
    ]
    assert backends == ["triton", None, None]


def test_vllm_without_openai_s_kernels_has_marlin_for_mxfp4_on_hopper(tmp_path: Path) -> None:
    switched = {"env": "VLLM_MXFP4_USE_MARLIN=1"}
    rows = [
        ("h200_sxm", "openai/gpt-oss-120b", "0.18.0", switched),
        ("h200_sxm", "openai/gpt-oss-120b", "0.11.2", {}),
        ("h200_sxm", "openai/gpt-oss-120b", "0.18.0", {}),
        ("b200_sxm", "openai/gpt-oss-120b", "0.11.2", {}),
        ("h200_sxm", "MiniMaxAI/MiniMax-M2.5", "0.11.2", {}),
    ]
    backends = [
        point(
            tmp_path / str(number),
            {"backend": "vllm", "backend_version": version, "system": gpu, "model_path": model},
            flags,
        )
        .simulation()
        .config.latency.moe_backend
        for number, (gpu, model, version, flags) in enumerate(rows)
    ]
    assert backends == ["marlin", "marlin", "auto", "auto", "auto"]


def test_vllm_0_15_and_0_16_multiply_experts_with_block_scales_by_cutlass_on_hopper(tmp_path: Path) -> None:
    rows = [
        ("h200_sxm", "MiniMaxAI/MiniMax-M2.5", "0.16.0"),
        ("h200_sxm", "MiniMaxAI/MiniMax-M2.5", "0.15.1"),
        ("h200_sxm", "MiniMaxAI/MiniMax-M2.5", "0.14.0"),
        ("h200_sxm", "MiniMaxAI/MiniMax-M2.5", "0.17.0"),
        ("b200_sxm", "MiniMaxAI/MiniMax-M2.5", "0.16.0"),
        ("h200_sxm", "openai/gpt-oss-120b", "0.16.0"),
    ]
    engine = {"backend": "vllm", "precision": "fp8", "gemm_quant_mode": "fp8_block"}
    backends = [
        point(
            tmp_path / str(number), {**engine, "backend_version": version, "system": gpu, "model_path": model}
        )
        .simulation()
        .config.latency.moe_backend
        for number, (gpu, model, version) in enumerate(rows)
    ]
    assert backends == ["flashinfer_cutlass", "flashinfer_cutlass", "auto", "auto", "auto", "auto"]


@pytest.mark.parametrize(
    ("version", "gpu", "backend"),
    [("1.3.0rc1", "h100_sxm", "cutlass"), ("1.3.0rc2", "h100_sxm", "auto"), ("1.2.0", "b200_sxm", "auto")],
)
def test_tensorrt_llm_had_its_own_kernel_for_mxfp4_on_hopper_until_it_chose_one(
    tmp_path: Path, version: str, gpu: str, backend: str
) -> None:
    row = {
        "backend": "trtllm",
        "backend_version": version,
        "system": gpu,
        "model_path": "openai/gpt-oss-120b",
    }
    assert point(tmp_path, row).simulation().config.latency.moe_backend == backend


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("256", (None, 256)),
        ("CONC", (None, 4)),
        ("max_batch_size 64 padded", (True, 64)),
        ("prefill default | decode 32", (None, 32)),
        ("prefill off | decode sizes up to 8 padded", (True, 8)),
        ("default", (None, None)),
    ],
)
def test_sizes_of_cuda_graphs_are_settings(
    tmp_path: Path, text: str, sizes: tuple[bool | None, int | None]
) -> None:
    row = {"backend": "trtllm", "backend_version": "1.2.0"} if "padded" in text else {}
    found = point(tmp_path, row, {"cuda_graph": text})
    settings = found.settings()
    assert (settings.get("cuda_graph_padding"), settings.get("cuda_graph_max_size")) == sizes
    assert found.simulation()


@pytest.mark.parametrize(
    ("row", "flags", "reason"),
    [
        ({"mode": "disagg"}, {}, "prefill and decode on GPUs of their own"),
        ({}, {"mtp": "yes"}, "multi-token prediction ran, or may have"),
        ({}, {"mtp": "either"}, "multi-token prediction ran, or may have"),
        ({"system": "gb200"}, {}, "a disaggregated deployment under the label of one engine"),
        ({"model_path": "someone/Else"}, {}, "no configuration of else in fp4"),
        ({}, FIXED, "the client's script ignored the configured concurrency"),
    ],
)
def test_what_cannot_be_expressed_has_a_reason(
    tmp_path: Path, row: dict[str, str], flags: dict[str, str], reason: str
) -> None:
    from points import NotExpressed

    with pytest.raises(NotExpressed, match=reason):
        point(tmp_path, row, flags).predict()


def test_a_point_is_predicted_in_the_measures_that_it_has(tmp_path: Path) -> None:
    predicted = point(tmp_path).predict()
    assert set(predicted) == {"ttft.mean", "tpot.mean"}
    assert predicted["tpot.mean"] == pytest.approx(8, rel=0.2)


OWN = {"status": "not published", "token_budget": "", "max_seqs": "", "mem_util": ""}
ROOM = {"max_num_seqs": 512, "max_num_batched_tokens": 3040}


def test_requests_of_aiconfigurators_own_runs_are_all_alike(tmp_path: Path) -> None:
    drawn = point(tmp_path / "drawn").simulation().table
    alike = point(tmp_path / "alike", flags=OWN).simulation().table
    assert len(set(drawn.prompt_tokens.tolist())) > 1
    assert min(drawn.prompt_tokens) >= 0.8 * 1024
    assert set(alike.prompt_tokens.tolist()) == {1024}
    assert set(alike.output_tokens.tolist()) == {1024}


def test_checks_at_a_recommended_load_repeat_prompts_after_a_warm_up(tmp_path: Path) -> None:
    """100 prompts, each once before any is repeated; not in sweeps. The launch says who keeps them."""
    own = {"backend": "vllm", "backend_version": "0.12.0", "isl": "1000"}
    run = point(tmp_path / "check", own, OWN).simulation()
    assert run.config.scheduler.prefix_cache != "none"
    assert len(run.table) == (2 + 10) * 4
    assert len(set(run.table.content.tolist())) == 48
    assert run.table.arrival_ns.tolist().count(0) == 2 * 4
    assert point(tmp_path / "sweep", {**own, "isl": "1024"}, OWN).simulation().table.content.max() == -1
    for engine, release in (("sglang", "0.5.6"), ("trtllm", "1.1.0")):
        kept = {**own, "backend": engine, "backend_version": release}
        again = point(tmp_path / engine, kept, OWN).simulation()
        assert again.table.content.max() > 0
        assert again.config.scheduler.prefix_cache == "none"


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_a_prefix_cache_that_the_table_of_flags_has_off_is_off(tmp_path: Path, engine: str) -> None:
    row = {
        "backend": engine,
        "backend_version": {"vllm": "0.15.0", "sglang": "0.5.8", "trtllm": "1.2.0rc6"}[engine],
    }
    for said in ("off", "default (on)"):
        run = point(tmp_path / said, row, {"prefix_cache": said}).simulation()
        assert (run.config.scheduler.prefix_cache == "none") == (said == "off")


def test_attention_dp_that_a_label_lacks_follows_from_its_experts_or_its_batch(tmp_path: Path) -> None:
    """TP1 beside experts in four parts; a batch of 4 beside 16 requests in flight."""
    lacks = {"attention_dp_size": "", "moe_tp_size": "4", "moe_ep_size": "1"}
    read = {"gpus": "", "expert_parallel": "", **OWN}
    by_experts = point(tmp_path / "experts", {**lacks, "tp_size": "1"}, read)
    assert (by_experts.gpus, by_experts.attention_dp, by_experts.concurrency) == (4, 4, 16)
    by_batch = point(tmp_path / "batch", {**lacks, "tp_size": "4", "batch_size": "1"}, read)
    assert (by_batch.gpus, by_batch.attention_dp, by_batch.concurrency) == (4, 4, 4)


def test_a_measurement_under_two_names_has_the_flags_of_the_published_one(tmp_path: Path) -> None:
    both = [{"id": "read"}, {"id": "copy", "silicon_ttft_ms": "200.04"}]
    found = several(tmp_path, both, {"mtp": "yes"}, published=1)
    assert [p.refused for p in found] == ["multi-token prediction ran, or may have"] * 2


@pytest.mark.parametrize(
    ("engine", "version", "expected"),
    [
        (
            "trtllm",
            "1.0.0rc3",
            {**ROOM, "async_scheduling": False, "gpu_memory_utilization": 0.8},
        ),
        ("trtllm", "1.2.0rc6.post1", {**ROOM, "async_scheduling": True, "gpu_memory_utilization": 0.9}),
        ("trtllm", "1.3.0rc1", {**ROOM, "async_scheduling": True, "gpu_memory_utilization": 0.8}),
        ("vllm", "0.12.0", ROOM),
        ("sglang", "0.5.8.post1", {"batch_former": "running-first"}),
        ("sglang", "0.5.1.post1", {}),
    ],
)
def test_servers_of_its_own_runs_have_the_settings_of_its_generator(
    tmp_path: Path, engine: str, version: str, expected: dict[str, Any]
) -> None:
    """Room for one prompt and the decodes; mixed chunks where SGLang's generator has them; no overlap of
    steps where TensorRT-LLM's first one has none, and its share of the free memory by template."""
    settings = point(tmp_path, {"backend": engine, "backend_version": version}, OWN).settings()
    named = ("max_num_seqs", "max_num_batched_tokens", "batch_former", "async_scheduling")
    named += ("gpu_memory_utilization",)
    assert {name: settings[name] for name in named if name in settings} == expected


def test_flags_of_a_width_that_a_script_lacked_are_those_of_the_launch_that_has_it() -> None:
    """Of the same image and lengths; of another one they say nothing."""
    from point_sets import _LAUNCH, _as_configured

    same = dict.fromkeys(_LAUNCH, "a")
    flags = {
        "before": [{**same, "match": "search space differs", "mem_util": "0.82"}],
        "later": [{**same, "match": "full", "mem_util": "0.95"}],
        "other": [{**same, "image": "b", "match": "search space differs", "mem_util": "0.82"}],
    }
    found = {group: row["mem_util"] for group, row in _as_configured(flags).items()}
    assert found == {"before": "0.95", "later": "0.95", "other": "0.82"}


def several(
    folder: Path, many: list[dict[str, str]], flags: dict[str, str] | None = None, published: int = 9
) -> list[Any]:
    """Points of these rows, of which the first so many have published flags."""
    from point_sets import points_of

    for name in ("silicon", "inferencemax"):
        (folder / name).mkdir(parents=True)
    with gzip.open(folder / "silicon" / "rows.csv.gz", "wt") as file:
        rows(file, *({**ROW, **row} for row in many))
    groups = [
        {"row": str(i), "concurrency": "", "group": "g1" if i < published else ""} for i in range(len(many))
    ]
    with gzip.open(folder / "silicon" / "row_groups.csv.gz", "wt") as file:
        rows(file, *groups)
    with (folder / "silicon" / "server_flags.csv").open("w") as file:
        rows(file, {**FLAGS, **(flags or {})})
    for name, row in (("rows", {"id": ""}), ("row_groups", {"row": "", "group": ""})):
        with gzip.open(folder / "inferencemax" / f"{name}.csv.gz", "wt") as file:
            csv.DictWriter(file, row).writeheader()
    return points_of(folder)


def test_a_run_that_another_one_contradicts_is_marked(tmp_path: Path) -> None:
    """The same load with the first tokens in less than half the time, or fewer requests in flight with less
    than half the pace; another length of prompts says nothing."""
    found = several(
        tmp_path,
        [
            {"id": "slow", "silicon_ttft_ms": "7000"},
            {"id": "fast", "silicon_ttft_ms": "600"},
            {"id": "other", "isl": "8192", "silicon_ttft_ms": "7000"},
            {"id": "impossible pace", "batch_size": "512", "silicon_tpot_ms": "3.9"},
        ],
    )
    assert [p.id for p in found if p.contradicted] == ["slow", "impossible pace"]


def test_a_stopped_page_goes_on_where_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import predictions

    monkeypatch.setattr(predictions, "KEPT", tmp_path / "kept")
    some = [point(tmp_path / "a"), point(tmp_path / "b", {"isl": "512"})]
    first = predictions.Predictions()
    assert first.make(some, seconds=-1) == 2
    assert first.make(some[:1], seconds=60) == 0
    again = predictions.Predictions(part=1)
    monkeypatch.setattr(predictions, "predict", lambda p: {"refused": p.id})
    assert again.make(some, seconds=60) == 0
    kept, made = (again.of(each) for each in some)
    assert "predicted" in kept
    assert made["refused"] == "a"


def test_more_prompts_than_the_peak_can_compute_contradict_a_point(tmp_path: Path) -> None:
    assert not point(tmp_path / "possible").impossible()
    assert point(tmp_path / "not", {"isl": "100000", "silicon_tpot_ms": "0.1"}).impossible()


def test_a_server_in_a_new_container_whose_client_sent_one_request_ahead_is_cold(tmp_path: Path) -> None:
    """From the last day of 2025 on it may have been on a node that kept its containers."""
    client = {"bench_warmup": "1 test request", "measured": "2025-12-30", "model_served": "nvidia/R1-FP4-V2"}
    launches = [
        {},
        {"measured": "2025-12-31"},
        {"bench_warmup": "2 x CONC requests"},
        {"model_served": "deepseek-ai/DeepSeek-R1-0528"},
    ]
    found = [point(tmp_path / str(i), None, {**client, **flags}) for i, flags in enumerate(launches)]
    assert [p.cold for p in found] == [True, False, False, True]
    assert [p.requests_each for p in found] == [10, 10, 10, 50]
    waits = [p.simulation().config.latency.kernel_compile_ms for p in found]
    assert waits == [waits[0], 0, 0, waits[0]]
    assert waits[0] > 60_000
    assert [p.waits_for_kernels for p in found] == [True, False, False, True]


@pytest.mark.parametrize("row", [{"backend": "vllm"}, {"model_path": "MiniMaxAI/MiniMax-M2.5"}])
def test_only_kernels_of_latent_prompts_under_sglang_are_compiled_late(row: Any, tmp_path: Path) -> None:
    flags = {"bench_warmup": "1 test request", "measured": "2025-11-10", "model_served": "any"}
    found = point(tmp_path, row, flags)
    assert found.cold
    assert not found.waits_for_kernels
