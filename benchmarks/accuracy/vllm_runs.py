"""How well measured kernels predict real vLLM runs they were not fitted to.

    python benchmarks/accuracy/vllm_runs.py ../shared/data/vllm_runs

Each run: 300 requests on one GPU, replayed with the kernel times measured on that GPU (`kernel-tables`).
Nothing is fitted to a run. TTFT, TPOT and E2E count from the moment the engine had the request, as the
runs report them; the simulated requests arrive at that moment. The engine is vLLM 0.19, which schedules
asynchronously; in both runs it is soon overloaded, so that planning ahead shows in the first requests only.
"""

from __future__ import annotations

import csv
import gzip
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from blis_py.cluster.simulation import simulate
from blis_py.cluster.topology import Cluster
from blis_py.core.config import SchedulerConfig
from blis_py.hardware.capacity import kv_capacity
from blis_py.hardware.gpu import load_gpu
from blis_py.latency import build
from blis_py.latency.base import LatencyModel
from blis_py.metrics.record import RunRecord
from blis_py.models.model_shape import load_model
from blis_py.requests.table import RequestTable

MODEL = "Llama-3.1-8B"
EARLY = 40
"""Requests that come before the engine is overloaded."""
GPUS = {"RTX4090": "rtx-4090", "RTXPRO6000": "rtx-pro-6000"}

Times = dict[str, NDArray[np.float64]]


@dataclass(frozen=True)
class Error:
    """Predicted over measured, minus one."""

    mean: float
    p50: float
    p90: float
    p99: float


def measured(folder: Path, gpu: str) -> list[dict[str, str]]:
    """Rows of the real run."""
    with (folder / f"{gpu}__{MODEL}" / "requests.csv").open() as file:
        return list(csv.DictReader(file))


def requests(folder: Path, gpu: str) -> RequestTable:
    """The run's requests as the engine got them: lengths, prefix blocks, time of arrival."""
    rows = measured(folder, gpu)
    arrival_ns = np.array(
        [round((float(r["client_arrival_s"]) + float(r["client_to_queue_s"])) * 1e9) for r in rows]
    )
    with gzip.open(folder / f"{gpu}__{MODEL}" / "prefix_blocks16.jsonl.gz", "rt") as file:
        blocks = {item["request_id"]: item["hash_ids"] for item in map(json.loads, file)}
    table = RequestTable.build(
        arrival_ns,
        np.array([int(r["input_tokens"]) for r in rows]),
        np.array([int(r["output_tokens"]) for r in rows]),
        content=np.arange(len(rows)),
        contents=[tuple((block, 16) for block in blocks[int(r["request_id"])]) for r in rows],
        request_id=[r["request_id"] for r in rows],
    )
    return table.sorted_by_arrival()


def predict(
    folder: Path, gpu: str, latency: LatencyModel | None = None, async_scheduling: bool = True
) -> RunRecord:
    """The run as simulated, with the engine's own limits where it recorded them; step times from the
    kernels measured on that GPU unless another model is given."""
    meta = json.loads((folder / f"{gpu}__{MODEL}" / "meta.json").read_text())
    shape, spec = load_model(MODEL), load_gpu(GPUS[gpu])
    blocks = meta.get("kv_cache", {}).get("num_gpu_blocks") or kv_capacity(shape, spec).blocks
    engine = meta["engine_kwargs"]
    profile = folder / "kernel_profiles" / f"{gpu}__{MODEL}__tp1"
    cluster = Cluster.of(
        scheduler=SchedulerConfig(
            num_kv_blocks=blocks,
            max_model_len=engine["max_model_len"] or shape.max_position_embeddings,
            max_num_seqs=engine["max_num_seqs"],
            max_num_batched_tokens=engine["max_num_batched_tokens"],
            async_scheduling=async_scheduling,
        ),
        latency=latency or build("kernel-tables", shape=shape, gpu=spec, kernel_profile=profile),
    )
    return simulate(requests(folder, gpu), cluster)


def errors(
    folder: Path, gpu: str, latency: LatencyModel | None = None, async_scheduling: bool = True
) -> dict[str, Error]:
    """Error of each latency's mean and percentiles, and of the first tokens before the queue has grown."""
    record = predict(folder, gpu, latency, async_scheduling)
    ours, theirs = _ours(record), _theirs(measured(folder, gpu))
    found = {name: _error(ours[name], theirs[name]) for name in ours}
    first = {str(request): row for row, request in enumerate(record.table.ids())}
    rows = sorted(first, key=lambda request: int(record.table.arrival_ns[first[request]]))[:EARLY]
    by_id = {r["request_id"]: float(r["ttft_s"]) for r in measured(folder, gpu)}
    return found | {
        f"first {EARLY} TTFT": _error(
            ours["TTFT"][[first[request] for request in rows]], np.array([by_id[r] for r in rows])
        )
    }


def _ours(record: RunRecord) -> Times:
    ttft = (record.first_token_ns - record.table.arrival_ns) / 1e9
    e2e = (record.last_token_ns - record.table.arrival_ns) / 1e9
    return {"TTFT": ttft, "TPOT": (e2e - ttft) / np.maximum(record.emitted_tokens - 1, 1), "E2E": e2e}


def measured_ms(folder: Path, gpu: str, metric: str, statistic: str) -> float:
    """A figure of the real run."""
    values = _theirs(measured(folder, gpu))[metric]
    return float(values.mean() if statistic == "mean" else np.percentile(values, 99)) * 1e3


def _theirs(rows: list[dict[str, str]]) -> Times:
    return {
        name: np.array([float(r[f"{name.lower()}_s"]) for r in rows if r[f"{name.lower()}_s"]])
        for name in ("TTFT", "TPOT", "E2E")
    }


def _error(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> Error:
    def at(share: float) -> float:
        return float(np.percentile(ours, share) / np.percentile(theirs, share) - 1)

    return Error(float(ours.mean() / theirs.mean() - 1), at(50), at(90), at(99))


def main(folder: Path) -> None:
    heads = "".join(f"{name:>8}" for name in ("mean", "p50", "p90", "p99"))
    print(f"{'run':12} {'scheduling':13} {'latency':14}{heads}")
    for gpu in GPUS:
        for mode in ("synchronous", "asynchronous"):
            for name, error in errors(folder, gpu, async_scheduling=mode == "asynchronous").items():
                cells = (error.mean, error.p50, error.p90, error.p99)
                print(f"{gpu:12} {mode:13} {name:14}" + "".join(f"{cell:>+8.1%}" for cell in cells))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python benchmarks/accuracy/vllm_runs.py FOLDER")
    main(Path(sys.argv[1]))
