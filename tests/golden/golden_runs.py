"""The runs that are pinned, and how to pin them anew: `python tests/golden/golden_runs.py`.

A golden run changes only when the simulated behaviour changes on purpose. The first 400 requests of
each bundled workload go to two instances with a small KV pool, so that chunks, queues, prefix hits
and preemptions all take part.
"""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import blis_py as blis

HERE = Path(__file__).parent
ENGINES = ("blis", "vllm")
WORKLOADS = sorted((HERE.parents[1] / "workloads").glob("*.yaml"))

DIFFUSION: dict[str, Any] = {
    "model": "llada2.0-mini",
    "latency_model": "roofline",
    "block_size": 32,
    "num_kv_blocks": 24,
    "max_num_seqs": 16,
    "max_model_len": 768,
}
"""Instead, for block diffusion."""


def golden_run(workload: Path, engine: str) -> dict[str, Any]:
    """What a pinned run consists of: its counts, its latencies, the fate of single requests."""
    settings: dict[str, Any] = {
        "engine": engine,
        "model": "llama-3.1-8b",
        "gpu": "h100",
        "num_instances": 2,
        "num_kv_blocks": 3000,
        "scheduler": "priority-fcfs",
        "preemption_policy": "priority",
        "workload": str(workload),
        "num_requests": 400,
        "max_model_len": 40_000,
    }
    result = blis.run(**settings | (DIFFUSION if workload.stem.startswith("diffusion") else {}))
    record, cluster = result.record, result.summary["cluster"]
    sample = range(0, len(record.table), 40)
    return {
        "cluster": {key: cluster[key] for key in sorted(cluster)},
        "classes": result.summary["classes"],
        "requests": {
            record.table.id_of(row): {
                "outcome": int(record.outcome[row]),
                "instance": int(record.instance[row]),
                "scheduled_ns": int(record.scheduled_ns[row]),
                "first_token_ns": int(record.first_token_ns[row]),
                "finish_ns": int(record.finish_ns[row]),
                "preemptions": int(record.preemptions[row]),
                "cached_tokens": int(record.cached_tokens[row]),
            }
            for row in sample
        },
    }


def pinned(workload: Path, engine: str) -> Path:
    return HERE / engine / f"{workload.stem}.json"


if __name__ == "__main__":
    for path, engine in product(WORKLOADS, ENGINES):
        pinned(path, engine).write_text(json.dumps(golden_run(path, engine), indent=1, sort_keys=True) + "\n")
        print(pinned(path, engine))
