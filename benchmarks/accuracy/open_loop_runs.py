"""How well recorded servers under open load are predicted, with nothing of the runs themselves.

    python benchmarks/accuracy/open_loop_runs.py ../shared/data/open_loop_runs [--only llama4] [--write]

`--write` keeps the errors in `benchmarks/results/open_loops.json`, from which plans draw.

Each run: 252 ShareGPT requests at a rate, as their client saw them (LMBench). Llama-3.1-70B in 16 bits on
A100, one replica and two; Llama-4-Scout in FP8 by channel on H100, whose prompts its prefix cache held from
earlier runs: they are sent here once before. The servers were vLLM 0.8.5, whose nearest preset is vLLM 0.10.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blis_py.api import build
from blis_py.metrics.record import RunRecord
from blis_py.requests.table import RequestTable

RESULTS = Path(__file__).resolve().parents[1] / "results" / "open_loops.json"
METRICS = ("TTFT mean", "TPOT mean", "E2E mean")
_LATER_NS = 10**13
"""Arrival of the first measured request of a server with a warm prefix cache."""
_SECONDS_BETWEEN = 1.0
"""Between two of the requests that warm it."""
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Server:
    """What is known of a recorded server."""

    settings: Mapping[str, Any]
    """Keywords of `blis.build`."""
    warm: bool = False
    """Whether its prefix cache holds all prompts."""


_LLAMA_70B = {"model": "llama-3.1-70b", "gpu": "a100-80", "tp": 2, "max_model_len": 20_000}
_SCOUT = {"model": "llama-4-scout-fp8", "gpu": "h100", "tp": 4, "max_model_len": 10_000}
SERVERS = {
    "exp0_vllm70b": Server(_LLAMA_70B),
    "exp2_a100": Server({**_LLAMA_70B, "num_instances": 2}),
    "exp4_llama4": Server(_SCOUT, warm=True),
}
_SHARED = {"engine": "vllm-0.10", "gpu_memory_utilization": 0.95, "timeout": None}


@dataclass(frozen=True)
class Run:
    """A recorded run."""

    name: str
    server: Server
    arrival_s: Floats
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    ttft_ms: Floats
    e2e_ms: Floats

    def table(self) -> RequestTable:
        """Its requests, behind those that warm the prefix cache."""
        count = len(self.arrival_s)
        rows, sizes = np.arange(count), (self.prompt_tokens, self.output_tokens)
        arrival_ns = np.round(self.arrival_s * 1e9).astype(np.int64)
        if self.server.warm:
            earlier_ns = np.round(rows * _SECONDS_BETWEEN * 1e9).astype(np.int64)
            arrival_ns = np.concatenate((earlier_ns, arrival_ns + _LATER_NS))
            sizes = (np.tile(sizes[0], 2), np.concatenate((np.ones_like(sizes[1]), sizes[1])))
            rows = np.tile(rows, 2)
        contents = [((f"prompt {row}", int(tokens)),) for row, tokens in enumerate(self.prompt_tokens)]
        return RequestTable.build(arrival_ns, *sizes, content=rows, contents=contents)


@cache
def runs(folder: Path) -> dict[str, Run]:
    """By name: the server's, and the requests per second behind it."""
    with gzip.open(folder / "requests.csv.gz", "rt") as file:
        rows: dict[str, list[dict[str, str]]] = {}
        for row in csv.DictReader(file):
            rows.setdefault(row["run"], []).append(row)
    return {name: _run(name, of) for name, of in sorted(rows.items())}


def _run(name: str, rows: list[dict[str, str]]) -> Run:
    def column(key: str) -> Floats:
        return np.array([float(row[key]) for row in rows])

    prompts, answers = (column(key).astype(np.int64) for key in ("prompt_tokens", "output_tokens"))
    server, arrival_s = SERVERS[name.rpartition("_")[0]], column("arrival_s")
    return Run(name, server, arrival_s, prompts, answers, column("ttft_ms"), column("e2e_ms"))


def predict(run: Run) -> RunRecord:
    """The run as simulated."""
    built = build(**_SHARED, **run.server.settings, num_requests=1)
    return replace(built, table=run.table()).simulate(False, None)[0]


def errors(run: Run) -> dict[str, float]:
    """Predicted over measured, minus one, of each metric's mean."""
    record = predict(run)
    rows = slice(len(record.table) - len(run.arrival_s), None)
    ttft_ms, e2e_ms = (
        (ends - record.table.arrival_ns)[rows] / 1e6 for ends in (record.first_token_ns, record.finish_ns)
    )
    several = run.output_tokens > 1
    pairs = zip(
        (ttft_ms, _tpot(ttft_ms, e2e_ms, run, several), e2e_ms),
        (run.ttft_ms, _tpot(run.ttft_ms, run.e2e_ms, run, several), run.e2e_ms),
        strict=True,
    )
    return {
        name: float(ours.mean() / theirs.mean() - 1)
        for name, (ours, theirs) in zip(METRICS, pairs, strict=True)
    }


def _tpot(ttft_ms: Floats, e2e_ms: Floats, run: Run, several: NDArray[np.bool_]) -> Floats:
    tpot_ms: Floats = (e2e_ms - ttft_ms)[several] / (run.output_tokens[several] - 1)
    return tpot_ms


def write(folder: Path, kept: Mapping[str, Mapping[str, float]]) -> None:
    """Errors of all runs, with their servers. Those whose requests wait twice as long for their first token
    as at the lowest rate are near saturation."""
    rows, least_ms = [], {}
    for name, run in runs(folder).items():
        server = name.rpartition("_")[0]
        least_ms[server] = min(least_ms.get(server, np.inf), float(run.ttft_ms.mean()))
    for name, run in runs(folder).items():
        known = {key: run.server.settings[key] for key in ("model", "gpu", "tp")}
        near = bool(run.ttft_ms.mean() > 2 * least_ms[name.rpartition("_")[0]])
        rows.append({"case": name, **known, "near_saturation": near, "errors": kept[name]})
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="runs with this in their name")
    parser.add_argument("--write", action="store_true", help="keep the errors of all runs")
    options = parser.parse_args()
    kept = {}
    print(f"{'run':22}" + "".join(f"{name:>11}" for name in METRICS))
    for name, run in runs(options.folder).items():
        if options.only in name:
            found = errors(run)
            print(f"{name:22}" + "".join(f"{found[metric]:>+11.1%}" for metric in METRICS), flush=True)
            kept[name] = {metric: round(error, 4) for metric, error in found.items()}
    if options.write:
        write(options.folder, kept)


if __name__ == "__main__":
    main()
