"""Disaggregated operating points become fleets by their recipes, or have a reason."""

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
    "backend": "trtllm",
    "backend_version": "0.8.1",
    "model_path": "deepseek-ai/DeepSeek-R1",
    "system": "gb200",
    "precision": "fp4",
    "mode": "disagg",
    "isl": "1024",
    "osl": "1024",
    "gemm_quant_mode": "nvfp4",
    **{f"{side}_{name}": "" for side in ("prefill", "decode") for name in ("num_workers", "tp_size")},
    **{f"{side}_attention_dp_size": "" for side in ("prefill", "decode")},
    "silicon_ttft_ms": "200",
    "silicon_tpot_ms": "8",
}
FLAGS = {
    "group": "g1",
    "backend": "trtllm",
    "system": "gb200",
    "precision": "fp4",
    "mode": "disagg",
    "isl": "1024",
    "osl": "1024",
    "concurrency": "4",
    "status": "read",
    "mtp": "no",
    "prefill_workers": "2",
    "prefill_tp": "4",
    "prefill_ep": "4",
    "prefill_dp_attention": "True",
    "decode_workers": "1",
    "decode_tp": "8",
    "decode_ep": "8",
    "decode_dp_attention": "False",
    "mem_util": "prefill 0.6 | decode 0.9",
    "token_budget": "prefill 8320 | decode 512",
    "max_seqs": "prefill 2 | decode 64",
    "kv_cache_dtype": "fp8",
    "async_scheduling": "prefill off | decode default (overlap on)",
    "moe_backend": "prefill CUTLASS | decode WIDEEP use_low_precision_moe_combine=True",
    "data_parallel": "",
    "other_flags": "",
    "env": "",
}


def point(folder: Path, row: dict[str, str] | None = None, *flags: dict[str, str]) -> Any:
    from disaggregated_points import silicon

    (folder / "silicon").mkdir(parents=True)
    for name, content in (
        ("rows", {**ROW, **(row or {})}),
        ("row_groups", {"row": "0", "concurrency": "4", "group": "g1"}),
    ):
        with gzip.open(folder / "silicon" / f"{name}.csv.gz", "wt") as file:
            write(file, content)
    with (folder / "silicon" / "server_flags.csv").open("w") as file:
        write(file, *({**FLAGS, **each} for each in flags or ({},)))
    return next(silicon(folder))


def write(file: Any, *rows: dict[str, str]) -> None:
    writer = csv.DictWriter(file, rows[0])
    writer.writeheader()
    writer.writerows(rows)


def test_each_side_has_its_layout_and_its_flags(tmp_path: Path) -> None:
    found = point(tmp_path)
    assert found.layout == "2 × TP1 DP4 EP4 + 1 × TP8 EP8"
    assert found.gpus == 16
    settings = found.settings()
    prefill, decode = settings["pools"]
    assert (prefill["count"], prefill["tp"], prefill["attention_dp"], prefill["ep"]) == (2, 4, 4, 4)
    assert prefill["scheduler"]["max_num_batched_tokens"] == 8320
    assert prefill["scheduler"]["async_scheduling"] is False
    assert prefill["latency"] == {"moe_backend": "cutlass"}
    assert decode["scheduler"]["max_num_seqs"] == 64
    assert decode["scheduler"]["gpu_memory_utilization"] == 0.9
    assert "latency" not in decode, "kernels that were not measured"
    assert (settings["handoff"], settings["pd_link"], settings["concurrency"]) == ("trtllm", "nvlink", 4)


def test_the_link_is_that_between_the_instances(tmp_path: Path) -> None:
    assert point(tmp_path / "a", None, {"env": "UCX_CUDA_IPC_ENABLE_MNNVL=n"}).link == "ndr400"
    assert point(tmp_path / "b", {"system": "h200_sxm"}).link == "ndr400"


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ([{"mtp": "yes"}], "multi-token prediction ran, or may have"),
        ([{"prefill_workers": ""}], "launch settings are not published"),
        ([{}, {"decode_workers": "3"}], "several layouts fit its label"),
    ],
)
def test_what_cannot_be_expressed_has_a_reason(
    flags: list[dict[str, str]], reason: str, tmp_path: Path
) -> None:
    from points import NotExpressed

    found = point(tmp_path, None, *flags)
    assert found.refused == reason
    with pytest.raises(NotExpressed, match=reason):
        found.predict()


def test_generated_servers_pad_decodes_to_cuda_graphs_and_prefill_without_overlap(tmp_path: Path) -> None:
    generated = {"status": "read (settings of the config file)", "async_scheduling": "", "moe_backend": ""}
    prefill, decode = point(tmp_path, None, generated).settings()["pools"]
    assert decode["latency"] == {"cuda_graph_padding": True, "cuda_graph_max_size": 64}
    assert prefill["scheduler"]["async_scheduling"] is False
    assert "async_scheduling" not in decode["scheduler"]


def test_published_graph_sizes_take_the_place_of_the_engines_own(tmp_path: Path) -> None:
    listed = {"cuda_graph": "prefill off | decode [1, 2, 512, 1024]", "moe_backend": ""}
    prefill, decode = point(tmp_path, None, listed).settings()["pools"]
    assert decode["latency"] == {"cuda_graph_sizes": [1, 2, 512, 1024]}
    assert "latency" not in prefill


def test_ranks_are_chosen_as_the_server_was_set_to(tmp_path: Path) -> None:
    in_turn = "prefill load-balance-method=round_robin | decode prefill-round-robin-balance"
    flags = {"backend": "sglang", "other_flags": in_turn}
    prefill, decode = point(tmp_path, {"backend": "sglang"}, flags).settings()["pools"]
    assert prefill["scheduler"]["rank_choice"] == "round-robin"
    assert "rank_choice" not in decode["scheduler"]


def test_a_decode_instance_of_trtllm_receives_as_many_tokens_as_its_published_buffer_holds(
    tmp_path: Path,
) -> None:
    assert "max_tokens_in_buffer" not in point(tmp_path / "default").settings()
    transceiver = 'prefill {"max_tokens_in_buffer": 32768} | decode {"max_tokens_in_buffer": 16384}'
    assert point(tmp_path, {}, {"kv_transfer": transceiver}).settings()["max_tokens_in_buffer"] == 16384


SCRIPTED = {
    "backend": "sglang",
    "status": "script only",
    "precision": "fp8",
    "isl": "8192",
    "config_key": "dsr1-fp8-gb200-dynamo-sglang",
    "other_flags": "DECODE_NODES=1 PREFILL_NODES=1 SCRIPT_MODE=8k1k-low-latency",
    **{f"{side}_{name}": "1" for side in ("prefill", "decode") for name in ("workers", "tp", "ep")},
    **dict.fromkeys(("mem_util", "token_budget", "max_seqs", "kv_cache_dtype", "moe_backend"), ""),
    **{f"{side}_dp_attention": "" for side in ("prefill", "decode")},
    "async_scheduling": "",
}
"""A row of which the name of the job's script is known."""


def test_a_script_that_was_named_gives_its_settings_and_the_width_stays_that_of_the_row(
    tmp_path: Path,
) -> None:
    row = {"backend": "sglang", "precision": "fp8", "isl": "8192"}
    found = point(tmp_path / "a", row, SCRIPTED)
    assert found.layout == "1 × TP4 + 1 × TP4"
    prefill, decode = found.settings()["pools"]
    assert prefill["scheduler"]["max_num_batched_tokens"] == 24576
    assert prefill["scheduler"]["num_kv_blocks"] == 32768 // 16
    assert prefill["scheduler"]["rank_choice"] == "round-robin"
    assert decode["scheduler"]["max_num_batched_tokens"] == 8192
    assert "num_kv_blocks" not in decode["scheduler"]
    assert prefill["latency"]["fused_norms"] is decode["latency"]["fused_norms"] is True
    unknown = {**SCRIPTED, "other_flags": "DECODE_NODES=1 PREFILL_NODES=1 SCRIPT_MODE=2p"}
    assert "scheduler" not in point(tmp_path / "b", row, unknown).settings()["pools"][0]


def test_a_run_has_as_many_rounds_as_the_client_that_held_it(tmp_path: Path) -> None:
    assert point(tmp_path / "a").settings()["num_requests"] == 10 * 4
    job = {"config_key": "dsr1-fp4-gb200-dynamo-trt"}
    generated = {**job, "status": "read (settings of the config file)", "async_scheduling": ""}
    assert point(tmp_path / "b", {}, generated).settings()["num_requests"] == 8 * 4
    assert point(tmp_path / "c", {}, job).settings()["num_requests"] == 10 * 4, "by a later client"
    row = {"backend": "sglang", "precision": "fp8", "isl": "8192"}
    assert point(tmp_path / "d", row, SCRIPTED).of.requests().arrival_ns.size == 5 * 4


def test_limits_of_sglang_are_divided_among_its_replicas(tmp_path: Path) -> None:
    found = point(tmp_path, {"backend": "sglang"}, {"backend": "sglang"})
    prefill, _ = found.settings()["pools"]
    assert prefill["scheduler"]["max_num_batched_tokens"] == 8320 // 4


def test_a_group_that_does_not_divide_the_experts_has_copies(tmp_path: Path) -> None:
    found = point(tmp_path, None, {"decode_tp": "48", "decode_ep": "48", "decode_dp_attention": "True"})
    assert found.settings()["pools"][1]["redundant_experts"] == 32


def test_throughput_that_was_not_published_follows_from_the_means(tmp_path: Path) -> None:
    found = point(tmp_path)
    seconds = (200 + 8 * (0.9 * 1024 - 1)) / 1e3
    assert found.measured["throughput"] == pytest.approx(4 * 2 * 0.9 * 1024 / seconds / 16)


def test_the_section_takes_its_place_in_the_page() -> None:
    from disaggregated_page import TITLE, put

    page = put(f"# Accuracy\n\n## Coverage\n\nx\n\n{TITLE}\n\nold\n\n## History\n\nh\n")
    assert page.count(TITLE) == 1
    assert "\nold\n" not in page
    assert page.index("## Coverage") < page.index(TITLE) < page.index("## History")
