"""CPU time of a run whose instance has an expert group, over that of the same servers without one.

    python benchmarks/ranks.py [--requests N] [--pairs N] [--out FILE]

A closed loop on instances that divide all matrices (TP), against the same with experts in a group (EP), and
with attention replicated on its ranks besides (EP + DP), whose queues are the ranks' own. Both runs of a pair
follow each other, in turn first and second, so that the machine's speed at the moment divides out; the ratio
is the median over the pairs. Timed is what a user waits for: tables of step times, simulation, summary.
Prints a table and writes JSON.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from measure import pin
from provenance import provenance

from blis_py import native

native.activate()  # as the commands do, before anything of it is imported

from blis_py import api  # noqa: E402
from blis_py.metrics import summarise  # noqa: E402

SERVERS: dict[str, dict[str, Any]] = {
    "DeepSeek-V3.1 NVFP4, TensorRT-LLM on B200": {
        "engine": "trtllm",
        "model": "deepseek-v3.1-nvfp4",
        "gpu": "b200",
        "tp": 8,
        "cuda_graph_padding": True,
    },
    "DeepSeek-R1, SGLang on H200": {"engine": "sglang", "model": "deepseek-r1", "gpu": "h200", "tp": 8},
    "Qwen3-235B FP8, vLLM on H200": {
        "engine": "vllm",
        "model": "qwen3-235b-a22b-fp8",
        "gpu": "h200",
        "tp": 4,
    },
}
LOAD: dict[str, Any] = {"concurrency": 64, "prompt_tokens": 1000, "output_tokens": 300, "timeout": None}
MOST = 1.3
"""What a run with a group may cost."""
RESULTS = Path(__file__).parent / "results" / "ranks.json"

Settings = dict[str, Any]


def groups_of(server: Settings) -> dict[str, Settings]:
    """The server with its experts in a group of all GPUs."""
    grouped = {**server, "ep": server["tp"]}
    return {"EP": grouped, "EP + DP": {**grouped, "attention_dp": server["tp"]}}


def cpu_s(settings: Settings, requests: int) -> float:
    """CPU seconds of a run."""
    gc.collect()
    began = time.process_time()
    summarise(api.build(**LOAD, **settings, num_requests=requests).run(record_steps=False).record)
    return time.process_time() - began


def pair(one: Settings, other: Settings, requests: int, turn: int) -> tuple[float, float]:
    """CPU seconds of both; in odd turns the other one runs first."""
    if turn % 2:
        other_s = cpu_s(other, requests)
        return cpu_s(one, requests), other_s
    return cpu_s(one, requests), cpu_s(other, requests)


def measure(servers: dict[str, Settings], requests: int, pairs: int) -> list[dict[str, Any]]:
    """A row for each server and group."""
    rows = []
    for name, server in servers.items():
        for group, grouped in groups_of(server).items():
            pair(grouped, server, 8, 0)  # imports, surfaces of kernels
            of_both = [pair(grouped, server, requests, turn) for turn in range(pairs)]
            ratios = [one / other for one, other in of_both]
            rows.append(
                {
                    "server": name,
                    "group": group,
                    "cpu_s": statistics.median(one for one, _ in of_both),
                    "without_cpu_s": statistics.median(other for _, other in of_both),
                    "ratio": statistics.median(ratios),
                    "ratios": ratios,
                }
            )
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown."""
    header = ("server", "group", "CPU s", "without it, CPU s", f"ratio (at most {MOST})")
    cells = [
        (
            row["server"],
            row["group"],
            f"{row['cpu_s']:.2f}",
            f"{row['without_cpu_s']:.2f}",
            f"{row['ratio']:.2f}",
        )
        for row in rows
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, ["---"] * len(header), *cells))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    core = pin()
    found = {
        "most": MOST,
        "load": LOAD,
        "servers": SERVERS,
        "requests": options.requests,
        "rows": measure(SERVERS, options.requests, options.pairs),
        "provenance": provenance(core),
    }
    options.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(table(found["rows"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
