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


def point(folder: Path, row: dict[str, str] | None = None, flags: dict[str, str] | None = None) -> Any:
    from points import silicon

    (folder / "silicon").mkdir(parents=True)
    write(folder / "silicon" / "rows.csv.gz", {**ROW, **(row or {})})
    write(folder / "silicon" / "row_groups.csv.gz", {"row": "0", "concurrency": "4", "group": "g1"})
    with (folder / "silicon" / "server_flags.csv").open("w") as file:
        rows(file, {**FLAGS, **(flags or {})})
    return next(silicon(folder))


def write(path: Path, row: dict[str, str]) -> None:
    with gzip.open(path, "wt") as file:
        rows(file, row)


def rows(file: Any, row: dict[str, str]) -> None:
    writer = csv.DictWriter(file, row)
    writer.writeheader()
    writer.writerow(row)


def test_a_width_is_the_launched_one_and_not_the_label(tmp_path: Path) -> None:
    """The label says TP64: TP8 times EP8 on eight GPUs."""
    found = point(tmp_path)
    assert (found.gpus, found.attention_dp, found.ep) == (8, 1, 8)


def test_launch_flags_are_settings(tmp_path: Path) -> None:
    settings = point(tmp_path).settings()
    assert settings["model"] == "deepseek-v3.1-nvfp4"
    assert (settings["engine"], settings["tp"], settings["ep"]) == ("sglang", 8, 8)
    assert (settings["kv_cache_dtype"], settings["gpu_memory_utilization"]) == ("fp8", 0.85)
    assert (settings["max_num_batched_tokens"], settings["max_num_seqs"]) == (16384, 4)
    assert settings["receive_interval"] == 10


def test_waits_of_tensorrt_llm_are_settings(tmp_path: Path) -> None:
    said = 'attention-dp {"batching_wait_iters": 0, "enable_balance": true, "timeout_iters": 60}'
    flags = {"data_parallel": said, "other_flags": "y:batch_wait_timeout_iters=20"}
    settings = point(tmp_path, {"backend": "trtllm"}, flags).settings()
    assert (settings["attention_dp"], settings["attention_dp_timeout_iters"]) == (8, 60)
    assert settings["prompt_wait_steps"] == 20


@pytest.mark.parametrize(
    ("row", "flags", "reason"),
    [
        ({"mode": "disagg"}, {}, "prefill and decode on GPUs of their own"),
        ({}, {"mtp": "yes"}, "multi-token prediction ran, or may have"),
        ({}, {"mtp": "either"}, "multi-token prediction ran, or may have"),
        ({"system": "gb200"}, {}, "a disaggregated deployment under the label of one engine"),
        ({"model_path": "someone/Else"}, {}, "no configuration of else in fp4"),
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


def test_more_prompts_than_the_peak_can_compute_contradict_a_point(tmp_path: Path) -> None:
    assert not point(tmp_path / "possible").impossible()
    assert point(tmp_path / "not", {"isl": "100000", "silicon_tpot_ms": "0.1"}).impossible()
