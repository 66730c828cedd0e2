"""KV transfers and TTFT by prompt length, against two published tables of Mooncake.

    python benchmarks/accuracy/transfers.py

Writes benchmarks/results/transfers.json. Transfers: a base and a bandwidth are learned on every other size of
a table and tested on the sizes between. TTFT: one request in flight on one prefill and one decode instance of
8 GPUs, known by their datasheet alone; so its shape over the prompt length and the share of the hand-over are
compared, not its level.

Source of the figures: kvcache-ai/Mooncake 3b5a594, docs/source/performance (Apache-2.0).
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import blis_py as blis

RESULTS = Path(__file__).resolve().parents[1] / "results" / "transfers.json"
PROMPTS = [128 << step for step in range(9)]
LINE_GBPS = 25.0
"""Of a GPU: both machines have about 200 GB/s of adapters for 8 GPUs."""


@dataclass(frozen=True)
class Published:
    """A table: transfers by size, TTFT by prompt length."""

    name: str
    gpu: str
    """Datasheet."""
    settings: dict[str, Any]
    megabytes: list[float]
    transfer_ms: list[float]
    ttft_ms: list[float]


H20 = """\
name: H20-3e
source: datasheet
memory_gib: 141
hbm_gb_per_s: 4800
link_gb_per_s: 450
link_gpus: 8
link_source: NVLink 4 (datasheet)
dense_tflops: {fp16: 148, fp8: 296, int8: 296}
"""
H800 = """\
name: H800
source: datasheet
memory_gib: 80
hbm_gb_per_s: 3350
link_gb_per_s: 200
link_gpus: 8
link_source: NVLink 4, 400 GB/s both directions together (datasheet)
dense_tflops: {fp16: 989.5, fp8: 1979, int8: 1979}
"""
TABLES = (
    Published(
        "H20-3e, Qwen3-235B TP8, SGLang",
        H20,
        {"model": "qwen3-235b-a22b", "engine": "sglang", "handoff": "sglang", "pd_overlap": "none"},
        [49, 99, 197, 394, 789, 1580, 3150, 6310, 12620],
        [2.07, 2.58, 2.98, 3.96, 6.43, 10.95, 20.31, 39.14, 76.78],
        [129, 126, 134, 126, 172, 304, 591, 1305, 3260],
    ),
    Published(
        "H800, Qwen3-8B TP8, vLLM 0.11.2",
        H800,
        {"model": "qwen3-8b", "engine": "vllm-0.10", "handoff": "vllm"},
        [20, 38, 74, 146, 290, 578, 1130, 2250, 4500],
        [0.54, 0.61, 0.92, 1.50, 2.51, 4.75, 8.84, 16.43, 31.65],
        [46, 48, 60, 67, 85, 124, 212, 388, 750],
    ),
)


def learned(table: Published, half: int) -> tuple[float, float]:
    """Base in ms and GB/s by least squares of relative errors, on every other size."""
    size, took = np.array(table.megabytes[half::2]), np.array(table.transfer_ms[half::2])
    weighed = np.stack([np.ones(len(size)), size], axis=1) / took[:, None]
    base, per_mb = np.linalg.lstsq(weighed, np.ones(len(size)), rcond=None)[0]
    return float(base), float(1 / per_mb)


def tested(table: Published, half: int) -> list[float]:
    """Errors on the other sizes."""
    base, gbps = learned(table, half)
    size, took = np.array(table.megabytes[1 - half :: 2]), np.array(table.transfer_ms[1 - half :: 2])
    return [round(float(error), 4) for error in (base + size / gbps) / took - 1]


def served(table: Published, prompt: int, gpu: Path) -> tuple[float, float, float]:
    """TTFT and transfer in ms, and MB of one prompt."""
    base, gbps = learned(table, 0)
    run = blis.run(
        gpu=str(gpu),
        tp=8,
        prefill_instances=1,
        decode_instances=1,
        latency_model="trained",
        concurrency=1,
        num_requests=4,
        prefix_cache="none",
        max_num_batched_tokens=32768,
        max_model_len=40960,
        pd_transfer_base_latency=base,
        pd_transfer_bandwidth=LINE_GBPS,
        pd_link_efficiency=gbps / (8 * LINE_GBPS),
        **lengths(prompt=prompt, output=2),
        **table.settings,
    )
    handovers, cluster = run.summary["handovers"], run.summary["cluster"]
    return cluster["ttft_ms"]["mean"], handovers["handover_wire_ms"], 250 * handovers["handover_gb"]


def lengths(**tokens: int) -> dict[str, int]:
    """Constant lengths."""
    return {f"{what}_tokens{end}": n for what, n in tokens.items() for end in ("", "_min", "_max")} | {
        f"{what}_tokens_stdev": 0 for what in tokens
    }


def compared(table: Published, folder: Path) -> dict[str, Any]:
    """TTFT by prompt length: predicted over measured beside the median, and shares of the transfer."""
    gpu = folder / "gpu.yaml"
    gpu.write_text(table.gpu)
    rows = [served(table, prompt, gpu) for prompt in PROMPTS]
    ratios = [ttft / real for (ttft, _, _), real in zip(rows, table.ttft_ms, strict=True)]
    usual = float(np.median(ratios))
    base, gbps = learned(table, 0)
    return {
        "table": table.name,
        "base_ms": round(base, 3),
        "gbps": round(gbps, 1),
        "errors_of_the_other_sizes": tested(table, 0),
        "with_the_halves_exchanged": tested(table, 1),
        "ttft_over_measured": round(usual, 3),
        "by_prompt": {
            prompt: {
                "mb": round(mb, 1),
                "ttft_ms": round(ttft, 1),
                "ttft_shape": round(ratio / usual - 1, 3),
                "transfer_share": round(wire / ttft, 4),
                "transfer_share_measured": round(took / real, 4),
            }
            for prompt, (ttft, wire, mb), ratio, took, real in zip(
                PROMPTS, rows, ratios, table.transfer_ms, table.ttft_ms, strict=True
            )
        },
    }


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = [compared(table, Path(folder)) for table in TABLES]
    RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for table in found:
        print(json.dumps({name: value for name, value in table.items() if name != "by_prompt"}))
        for prompt, row in table["by_prompt"].items():
            print(f"{prompt:6} {json.dumps(row)}")


if __name__ == "__main__":
    main()
