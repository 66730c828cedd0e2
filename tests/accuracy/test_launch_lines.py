"""Rows of the page are run by a launch script of their engine, read like any user's."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from blis_py.launch.reader import Launch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks" / "accuracy"))


def read(engine: str, row: dict[str, str], **more: int) -> Launch:
    return launched(engine, row, **more).published()


def launched(engine: str, row: dict[str, str], release: str = "", **more: int) -> Any:
    from launch_lines import LaunchedRow

    width: dict[str, Any] = {"tp": 8, "attention_dp": 1, "ep": 1, "concurrency": 64, **more}
    return LaunchedRow(engine, release, "deepseek-ai/DeepSeek-R1", row, prompt_tokens=1024, **width)


@pytest.mark.parametrize(
    ("engine", "row", "key", "value"),
    [
        (
            "vllm",
            {"cuda_graph": "2048", "env": "VLLM_MXFP4_USE_MARLIN=1"},
            "latency.cuda_graph_max_size",
            2048,
        ),
        ("vllm", {"env": "VLLM_MXFP4_USE_MARLIN=1"}, "latency.moe_backend", "marlin"),
        ("vllm", {"async_scheduling": "on"}, "scheduler.async_scheduling", True),
        (
            "vllm",
            {"other_flags": 'compilation-config={"fuse_allreduce_rms":true}'},
            "latency.fused_norms",
            True,
        ),
        ("sglang", {"max_seqs": "CONC"}, "scheduler.max_num_seqs", 64),
        ("sglang", {"moe_backend": "deepep low_latency"}, "latency.moe_backend", "deepep"),
        ("sglang", {"cuda_graph": "prefill off | decode [1, 2, 8]"}, "latency.cuda_graph_sizes", [1, 2, 8]),
        ("trtllm", {"cuda_graph": "max_batch_size CONC padded"}, "latency.cuda_graph_padding", True),
        ("trtllm", {"token_budget": "8192", "max_seqs": "default (2048)"}, "scheduler.max_num_seqs", 2048),
        ("trtllm", {"other_flags": "y:batch_wait_timeout_iters=20"}, "scheduler.prompt_wait_steps", 20),
    ],
)
def test_a_column_of_the_table_is_the_flag_of_its_server(
    engine: str, row: dict[str, str], key: str, value: Any
) -> None:
    launch = read(engine, row)
    assert launch.values[key] == value
    assert not launch.unknown


def test_limits_of_replicas_are_those_of_the_server() -> None:
    row = {"token_budget": "16384", "max_seqs": "256"}
    of_sglang = read("sglang", row, attention_dp=8, ep=8).values
    assert of_sglang["scheduler.max_num_batched_tokens"] == 2048
    assert of_sglang["scheduler.max_num_seqs"] == 32
    row = {"max_seqs": "CONC", "data_parallel": 'attention-dp {"enable_balance": true}'}
    of_trtllm = read("trtllm", row, attention_dp=8, ep=8).values
    assert (of_trtllm["scheduler.max_num_seqs"], of_trtllm["attention_dp_timeout_iters"]) == (8, 50)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_the_division_among_gpus_survives_the_script(engine: str) -> None:
    for ranks in (1, 8):
        found = read(engine, {}, attention_dp=ranks, ep=8).values
        assert (found["tp"], found["attention_dp"], found["ep"]) == (8, ranks, 8)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_the_release_is_read_from_the_script(engine: str) -> None:
    release = {"vllm": "0.19.0", "sglang": "0.5.6.post2", "trtllm": "1.0.0rc3"}[engine]
    for ranks in (1, 8):
        row = launched(engine, {}, release, attention_dp=ranks, ep=8)
        for found in (row.published(), row.generated()):
            assert found.values["model"] == "deepseek-ai/DeepSeek-R1"
            assert found.values["engine"] == f"{engine}-{release}"
            assert [found.values[key] for key in ("tp", "attention_dp", "ep")] == [8, ranks, 8]
            assert [*found.unknown, *found.unmodelled, *found.notes] == []


def number(text: str) -> float | None:
    found = re.fullmatch(r"(?:default \()?([\d.]+)\)?", text or "")
    return float(found[1]) if found else None


def said(point: Any) -> dict[str, Any]:
    """What a row of the public tables says of its server, by configuration key."""
    row, ranks = point.flags, point.attention_dp
    divided = ranks if point.engine == "sglang" else 1
    found = {
        "scheduler.gpu_memory_utilization": number(row["mem_util"]),
        "scheduler.max_num_batched_tokens": number(row["token_budget"]),
        "scheduler.max_num_seqs": number(row["max_seqs"]),
        "scheduler.receive_interval": number(row.get("scheduler_recv_interval", "")),
        "kv_cache_dtype": "fp8" if row["kv_cache_dtype"].startswith("fp8") else None,
    }
    for key in ("scheduler.max_num_batched_tokens", "scheduler.max_num_seqs"):
        found[key] = None if found[key] is None else found[key] // divided
    if row["max_seqs"] == "CONC":
        found["scheduler.max_num_seqs"] = max(point.concurrency // ranks, 1)
    widths = {"tp": point.gpus, "attention_dp": ranks, "ep": point.ep}
    return {**{key: value for key, value in found.items() if value is not None}, **widths}


def test_rows_of_both_public_tables_come_out_as_they_say() -> None:
    from point_sets import points_of

    data = ROOT.parent / "shared" / "data"
    if not (data / "silicon" / "server_flags.csv").exists():
        pytest.skip("the tables of launch flags are not here")
    seen: set[tuple[str, str]] = set()
    engines: set[str] = set()
    for point in points_of(data):
        group = (point.source, point.flags.get("group", ""))
        if point.refused or not point.drawn or not group[1] or group in seen:
            continue
        seen.add(group)
        engines.add(point.engine)
        row = point.launched(point.flags, point.gpus, point.attention_dp, point.ep)
        launch, wanted = row.published(), said(point)
        assert {key: launch.values.get(key) for key in wanted} == wanted, group
        assert not launch.unknown, group
    assert len(seen) > 100
    assert engines == {"vllm", "sglang", "trtllm"}
