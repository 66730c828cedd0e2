"""How well real vLLM runs on H100 are predicted, with synchronous and with asynchronous scheduling.

    python benchmarks/accuracy/h100_runs.py ../shared/data/vllm_h100_runs [--model trained] [--out FILE]
    python benchmarks/accuracy/h100_runs.py ../shared/data/vllm_h100_runs --profile DIR

Five runs of vLLM 0.15.1, which schedules asynchronously: Llama-2-7B TP1 three times, CodeLlama-34B TP2 and
Llama-2-70B TP4, each with 7,200 to 16,800 requests as their clients saw them. Nothing is fitted to a run.
Without a front end, what the server adds before and behind the engine is part of the error; with one, it is a
constant, and so much for each sequence served at the time, learned on the other runs, beside the measured
time of a tokenizer (`benchmarks/tokenization.py`): prompts of 559 to 806 tokens are too alike to show that. A
fitted profile is used on the runs of its model and TP degree.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from blis_py.cluster.simulation import simulate
from blis_py.cluster.topology import Cluster
from blis_py.config.engine import load_engine
from blis_py.core.config import SchedulerConfig
from blis_py.hardware.gpu import load_gpu
from blis_py.latency import build
from blis_py.latency.base import LatencyModel
from blis_py.latency.fitted_profile import read_profile
from blis_py.latency.trained import Trained, Training
from blis_py.metrics.record import RunRecord
from blis_py.models.model_shape import load_model
from blis_py.requests.table import RequestTable

Floats = NDArray[np.float64]
TOKEN_MS = float(load_engine("vllm").settings["frontend_ms"][3])
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
        blocks_await_outcome=async_scheduling,
    )
    latency: LatencyModel
    if training is None:
        latency = build(model, shape=shape, gpu=gpu, tp=facts["tp"], profile=profile)
    else:
        latency = Trained(shape, gpu, facts["tp"], training)
    return simulate(run.table, Cluster.of(scheduler=config, latency=latency))


class FrontEnd(NamedTuple):
    """What a server adds to a request's latency around its engine, ms."""

    ms: float
    seq_ms: float
    """For each sequence that gets a token together with its first."""
    token_ms: float = 0.0
    """For each token of its prompt."""

    def late_ms(self, run: Run, record: RunRecord) -> Floats:
        """Of each request."""
        late: Floats = self.ms + self.token_ms * run.table.prompt_tokens
        return late + self.seq_ms * served_together(record)


NO_FRONT_END = FrontEnd(0.0, 0.0)


def errors(run: Run, record: RunRecord, front_end: FrontEnd = NO_FRONT_END) -> dict[str, float]:
    """Predicted over measured, minus one, of each metric's mean and 99th percentile."""
    return {name: ours / theirs - 1 for name, (ours, theirs) in figures(run, record, front_end).items()}


def figures(
    run: Run, record: RunRecord, front_end: FrontEnd = NO_FRONT_END
) -> dict[str, tuple[float, float]]:
    """Predicted and measured, ms."""
    late_ms = front_end.late_ms(run, record)
    ttft = (record.first_token_ns - record.table.arrival_ns) / 1e6 + late_ms
    e2e = (record.finish_ns - record.table.arrival_ns) / 1e6 + late_ms
    ours = dict(zip(METRICS, (ttft, tpot(ttft, e2e, record.emitted_tokens), e2e), strict=True))
    theirs = dict(zip(METRICS, (run.ttft_ms, run.tpot_ms, run.e2e_ms), strict=True))
    found = {}
    for name in METRICS:
        pair = ours[name], theirs[name]
        found[f"{name} mean"] = (float(pair[0].mean()), float(pair[1].mean()))
        found[f"{name} p99"] = (float(np.percentile(pair[0], 99)), float(np.percentile(pair[1], 99)))
    return found


def served_together(record: RunRecord) -> NDArray[np.intp]:
    """For each request of the one instance, how many get a token in the step that brings its first."""
    emission = record.visits.emission
    begun = np.searchsorted(np.sort(emission.first_step), emission.first_step, side="right")
    ended = np.searchsorted(np.sort(emission.last_step), emission.first_step, side="left")
    return begun - ended


def front_end_of(runs: list[Run], records: list[RunRecord]) -> FrontEnd:
    """Learned on what the server adds to the TTFT, if the engine is right: a line in the sequences served at
    the time, of least squares, every run counting the same.

    Its points are the medians of ten seconds each, so that single pauses of a server or its clients do not
    matter, after the first twenty, in which it warms up, and while no request is queued: in a queue the error
    of the steps grows beyond all the rest.
    """
    lines, wanted = [], []
    for run, record in zip(runs, records, strict=True):
        points = _calm(run, record)
        weight = 1 / np.sqrt(len(points))
        lines.append(np.column_stack((np.ones(len(points)), points[:, 0])) * weight)
        wanted.append(points[:, 1] * weight)
    ms, seq_ms = np.linalg.lstsq(np.concatenate(lines), np.concatenate(wanted), rcond=None)[0]
    return FrontEnd(float(ms), float(seq_ms), TOKEN_MS)


_SPAN_S, _WARM_UP_S = 10.0, 20.0
_PAUSE_MS = 8.0
_QUEUEING = 1.8
"""Times what most requests of a quiet time take to their first token."""


def _calm(run: Run, record: RunRecord) -> Floats:
    """Of every ten seconds without a queue: sequences, and ms of TTFT that neither engine nor tokenizer
    explains."""
    ttft_ms = (record.first_token_ns - record.table.arrival_ns) / 1e6 + TOKEN_MS * run.table.prompt_tokens
    seqs, missing_ms = served_together(record), run.ttft_ms - ttft_ms
    points = np.array(
        [(seqs[s].mean(), np.median(missing_ms[s]), np.percentile(ttft_ms[s], 90)) for s in _spans(run)]
    )
    return points[points[:, 2] < _QUEUEING * np.percentile(points[:, 2], 20)][:, :2]


def _spans(run: Run) -> list[NDArray[np.intp]]:
    """The requests of every ten seconds after the warm-up."""
    span = (run.table.arrival_ns / (_SPAN_S * 1e9)).astype(np.int64)
    spans = [np.flatnonzero(span == s) for s in range(round(_WARM_UP_S / _SPAN_S), int(span.max()) + 1)]
    return [rows for rows in spans if len(rows) > 10]


def stragglers(run: Run, record: RunRecord) -> NDArray[np.intp]:
    """Requests whose first token came much later than those of others of the same ten seconds, for no reason
    that the engine's record shows: the server or the client paused."""
    missing_ms = run.ttft_ms - (record.first_token_ns - record.table.arrival_ns) / 1e6
    return np.concatenate([s[missing_ms[s] > np.median(missing_ms[s]) + _PAUSE_MS] for s in _spans(run)])


def front_ends(runs: list[Run], records: list[RunRecord]) -> list[FrontEnd]:
    """For each run, the front end learned on the others."""
    pairs = list(zip(runs, records, strict=True))
    others = [[pair for pair in pairs if pair[0] is not run] for run in runs]
    return [front_end_of([run for run, _ in of], [record for _, record in of]) for of in others]


def with_front_end(runs: list[Run], records: list[RunRecord]) -> dict[str, dict[str, float]]:
    """Errors with the front end of the other runs."""
    own, found = front_end_of(runs, records), front_ends(runs, records)
    lines = [f"{ms:.1f} + {1e3 * seq_ms:.0f} us" for ms, seq_ms, _ in (*found, own)]
    print(
        f"\nfront end, ms and for each sequence, without each run: {', '.join(lines[:-1])}; all {lines[-1]}"
    )
    return {run.name: errors(run, record, end) for run, record, end in zip(runs, records, found, strict=True)}


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
