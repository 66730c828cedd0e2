"""How well real vLLM runs on H100 are predicted, with synchronous and with asynchronous scheduling.

    python benchmarks/accuracy/h100_runs.py ../shared/data/vllm_h100_runs [--model trained] [--out FILE]
    python benchmarks/accuracy/h100_runs.py ../shared/data/vllm_h100_runs --profile DIR

Five runs of vLLM 0.15.1, which schedules asynchronously: Llama-2-7B TP1 three times, CodeLlama-34B TP2 and
Llama-2-70B TP4, each with 7,200 to 16,800 requests as their clients saw them. Nothing is fitted to a run.
Without a front end, what the server adds before and behind the engine is part of the error; with one, it is a
constant learned on the other runs. A fitted profile is used on the runs of its model and TP degree.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blis_py.cluster.simulation import simulate
from blis_py.core.config import SchedulerConfig
from blis_py.latency import build
from blis_py.latency.base import LatencyModel
from blis_py.latency.fitted_profile import read_profile
from blis_py.latency.hardware import load_gpu
from blis_py.latency.model_shape import load_model
from blis_py.latency.trained import Trained, Training
from blis_py.metrics.record import RunRecord
from blis_py.requests.table import RequestTable

Floats = NDArray[np.float64]
METRICS = ("TTFT", "TPOT", "E2E")


@dataclass(frozen=True)
class Run:
    """A recorded run."""

    name: str
    facts: dict[str, Any]
    table: RequestTable
    ttft_ms: Floats
    e2e_ms: Floats

    @property
    def tpot_ms(self) -> Floats:
        return tpot(self.ttft_ms, self.e2e_ms, self.table.output_tokens)


def tpot(ttft: Floats, e2e: Floats, tokens: NDArray[np.int64]) -> Floats:
    several = tokens > 1
    return (e2e[several] - ttft[several]) / (tokens[several] - 1)


def names(folder: Path) -> list[str]:
    return list(json.loads((folder / "runs.json").read_text()))


def read(folder: Path, name: str) -> Run:
    """Requests in order of arrival. Those that sent the same prompt share all of it."""
    with gzip.open(folder / f"{name}.csv.gz", "rt") as file:
        rows = list(csv.DictReader(file))

    def column(key: str) -> NDArray[np.int64]:
        return np.array([int(row[key]) for row in rows])

    prompts = {(row["prompt_slot"], int(row["prompt_tokens"])): None for row in rows}
    place = {prompt: index for index, prompt in enumerate(prompts)}
    table = RequestTable.build(
        column("arrival_us") * 1000,
        column("prompt_tokens"),
        column("output_tokens"),
        content=np.array([place[row["prompt_slot"], int(row["prompt_tokens"])] for row in rows]),
        contents=[((f"prompt {slot}", tokens),) for slot, tokens in prompts],
    )
    order = np.argsort(table.arrival_ns, kind="stable")
    seen = [np.array([float(row[key]) for row in rows])[order] for key in ("ttft_ms", "e2e_ms")]
    facts = json.loads((folder / "runs.json").read_text())[name]
    return Run(name, facts, table.take(order), *seen)


def predict(
    run: Run,
    model: str = "trained",
    async_scheduling: bool = True,
    profile: Path | None = None,
    training: Training | None = None,
) -> RunRecord:
    """The run as simulated, with the limits and the KV blocks that its server reported.

    Args:
        training: coefficients of `trained` to use instead of the bundled ones.
    """
    facts = run.facts
    shape, gpu = load_model(facts["model"]), load_gpu("h100")
    config = SchedulerConfig(
        num_kv_blocks=facts["num_kv_blocks"],
        block_size=facts["block_size"],
        max_model_len=shape.max_position_embeddings,
        max_num_seqs=facts["max_num_seqs"],
        max_num_batched_tokens=facts["max_num_batched_tokens"],
        async_scheduling=async_scheduling,
    )
    latency: LatencyModel
    if training is None:
        latency = build(model, shape=shape, gpu=gpu, tp=facts["tp"], profile=profile)
    else:
        latency = Trained(shape, gpu, facts["tp"], training)
    return simulate(run.table, scheduler=config, latency=latency)


def errors(run: Run, record: RunRecord, front_end_ms: float = 0.0) -> dict[str, float]:
    """Predicted over measured, minus one, of each metric's mean and 99th percentile."""
    return {name: ours / theirs - 1 for name, (ours, theirs) in figures(run, record, front_end_ms).items()}


def figures(run: Run, record: RunRecord, front_end_ms: float = 0.0) -> dict[str, tuple[float, float]]:
    """Predicted and measured, ms."""
    ttft = (record.first_token_ns - record.table.arrival_ns) / 1e6 + front_end_ms
    e2e = (record.finish_ns - record.table.arrival_ns) / 1e6 + front_end_ms
    ours = dict(zip(METRICS, (ttft, tpot(ttft, e2e, record.emitted_tokens), e2e), strict=True))
    theirs = dict(zip(METRICS, (run.ttft_ms, run.tpot_ms, run.e2e_ms), strict=True))
    found = {}
    for name in METRICS:
        pair = ours[name], theirs[name]
        found[f"{name} mean"] = (float(pair[0].mean()), float(pair[1].mean()))
        found[f"{name} p99"] = (float(np.percentile(pair[0], 99)), float(np.percentile(pair[1], 99)))
    return found


def unexplained_ms(run: Run, record: RunRecord) -> float:
    """Of the mean TTFT: what the server adds before and behind the engine, if the engine is right."""
    return float(run.ttft_ms.mean() - (record.first_token_ns - record.table.arrival_ns).mean() / 1e6)


def front_ends(runs: list[Run], records: list[RunRecord]) -> list[float]:
    """A constant front end for each run, learned on the others, ms."""
    missing = [unexplained_ms(run, record) for run, record in zip(runs, records, strict=True)]
    return [(sum(missing) - own) / (len(runs) - 1) for own in missing]


def with_front_end(runs: list[Run], records: list[RunRecord]) -> dict[str, dict[str, float]]:
    """Errors with the front end of the other runs."""
    missing = [unexplained_ms(run, record) for run, record in zip(runs, records, strict=True)]
    listed = ", ".join(f"{value:.1f}" for value in missing)
    print(f"\nunexplained of the mean TTFT, ms: {listed}; mean {np.mean(missing):.1f}")
    delays = front_ends(runs, records)
    return {run.name: errors(run, record, ms) for run, record, ms in zip(runs, records, delays, strict=True)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", nargs="+", default=["trained", "trained-physics", "roofline"])
    parser.add_argument("--profile", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    runs = [read(options.folder, name) for name in names(options.folder)]
    if options.profile is not None:
        options.model, runs = ["fitted"], [run for run in runs if _measured(run, options.profile)]
    table: dict[str, dict[str, dict[str, float]]] = {}
    for model in options.model:
        for mode in ("synchronous", "asynchronous"):
            key = f"{model}, {mode}"
            records = [predict(run, model, mode == "asynchronous", options.profile) for run in runs]
            table[key] = {run.name: errors(run, record) for run, record in zip(runs, records, strict=True)}
            show(key, table[key])
            if model == "trained" and mode == "asynchronous" and len(runs) > 1:
                key = "trained, asynchronous, front end of the other runs"
                table[key] = with_front_end(runs, records)
                show(key, table[key])
    if options.out is not None:
        rounded = {
            key: {run: {name: round(error, 4) for name, error in of.items()} for run, of in rows.items()}
            for key, rows in table.items()
        }
        options.out.write_text(json.dumps(rounded, indent=1) + "\n", encoding="utf-8")


def _measured(run: Run, profile: Path) -> bool:
    found = read_profile(profile)
    return (found.meta["model"], found.tp) == (run.facts["model"], run.facts["tp"])


def show(key: str, rows: dict[str, dict[str, float]]) -> None:
    """A line for each run, and the mean of the absolute errors."""
    columns = list(next(iter(rows.values())))
    print(f"\n{key:34}" + "".join(f"{name:>11}" for name in columns))
    for run, found in rows.items():
        print(f"  {run:32}" + "".join(f"{found[name]:>+11.1%}" for name in columns))
    means = [float(np.mean([abs(found[name]) for found in rows.values()])) for name in columns]
    print(f"  {'mean absolute error':32}" + "".join(f"{value:>11.1%}" for value in means), flush=True)


if __name__ == "__main__":
    main()
