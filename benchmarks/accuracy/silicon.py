"""How well closed-loop benchmarks of real vLLM servers are predicted: dense models in 16 bits and in FP8.

    python benchmarks/accuracy/real_engines.py ../shared/data

Each operating point is a run of `vllm bench serve` with a concurrency: the mean TTFT and TPOT of ten times as
many requests as are in flight. What was set is known only in part: lengths are drawn evenly from
[0.8 L, L], `max_num_seqs` is the concurrency, 8,192 tokens a step, no prefix cache, an FP8 KV cache where
weights are FP8. No step time was learned on a point. Under *new model* and *new GPU* the coefficients of
`trained` are those that were learned without that model or GPU (benchmarks/results/trained.json).
"""

from __future__ import annotations

import csv
import gzip
import json
import tempfile
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blis_py.api import Simulation, build
from blis_py.core.features import StepFeatures
from blis_py.files.bundled import root
from blis_py.hardware.gpu import load_gpu
from blis_py.latency import build as build_latency
from blis_py.latency.base import LatencyModel
from blis_py.latency.trained import Coefficients, Trained, Training
from blis_py.models.model_shape import ModelShape, load_model
from blis_py.requests.table import RequestTable
from blis_py.setup.step_times import server_terms

RESULTS = Path(__file__).resolve().parents[1] / "results"
MODELS = {
    "Qwen/Qwen3-32B": "qwen3-32b",
    "meta-llama/Llama-3.1-70B": "llama-3.1-70b",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "llama-3.1-8b",
}
"""Dense models of the points, by the bundled configuration in 16 bits."""
FP8 = {
    "quant_method": "modelopt",
    "quant_algo": "FP8",
    "kv_cache_quant_algo": "FP8",
    "exclude_modules": ["lm_head"],
}
"""What the published FP8 checkpoints of these models say, and the KV cache that the benchmark set."""


@dataclass(frozen=True)
class Point:
    """An operating point."""

    id: str
    model: str
    fp8: bool
    version: str
    """Of vLLM; empty where the source does not state it."""
    gpu: str
    tp: int
    prompt_tokens: int
    output_tokens: int
    concurrency: int
    ttft_ms: float
    tpot_ms: float

    @property
    def group(self) -> tuple[str, str, str, int]:
        return self.model, "FP8" if self.fp8 else "16-bit", self.gpu, self.tp

    @property
    def engine(self) -> str:
        """The preset of its vLLM."""
        if not self.version:
            return "vllm"
        number = _number(self.version)
        return "vllm-0.10" if number < (0, 14) else f"vllm-{number[0]}.{number[1]}"

    def prompts_busy(self, latency: LatencyModel) -> float:
        """The share of time that computing prompts alone keeps the GPUs busy, if as many requests are in
        flight as the point says: above 1 the point contradicts the price of a prompt."""
        mean = round(0.9 * self.prompt_tokens)
        pairs = mean * (mean + 1) // 2
        alone = StepFeatures(prefill_seqs=1, prefill_tokens=mean, prefill_pairs=pairs, emitted_rows=1)
        e2e_ms = self.ttft_ms + self.tpot_ms * (0.9 * self.output_tokens - 1)
        return self.concurrency / e2e_ms * latency.step(alone).gpu_ns / 1e6


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


def points(data: Path) -> list[Point]:
    """The points of dense models in 16 bits and FP8, served by vLLM as one engine."""
    with gzip.open(data / "silicon" / "rows.csv.gz", "rt") as file:
        rows = [
            row
            for row in csv.DictReader(file)
            if (row["backend"], row["mode"]) == ("vllm", "agg")
            and row["model_path"] in MODELS
            and row["precision"] in ("", "fp8")
        ]
    return [
        Point(
            id=row["id"],
            model=MODELS[row["model_path"]],
            fp8=row["precision"] == "fp8",
            version=row["backend_version"],
            gpu=row["system"].partition("_")[0],
            tp=round(float(row["tp_size"])),
            prompt_tokens=int(row["isl"]),
            output_tokens=int(row["osl"]),
            concurrency=round(float(row["batch_size"])),
            ttft_ms=float(row["silicon_ttft_ms"]),
            tpot_ms=float(row["silicon_tpot_ms"]),
        )
        for row in rows
    ]


def simulation(point: Point, same_answers: bool = False, step_tokens: int = 8192) -> Simulation:
    """The point's server and its requests.

    Args:
        same_answers: all answers have the nominal length, only prompts are drawn.
        step_tokens: most tokens of a step.
    """
    given: dict[str, Any] = (
        {"model_config": _fp8_config(point.model)} if point.fp8 else {"model": point.model}
    )
    built = build(
        engine=point.engine,
        gpu=point.gpu,
        tp=point.tp,
        concurrency=point.concurrency,
        num_requests=10 * point.concurrency,
        max_num_seqs=point.concurrency,
        max_num_batched_tokens=step_tokens,
        prefix_cache="none",
        timeout=None,
        **given,
    )
    return replace(built, table=_requests(point, same_answers))


def shape_of(point: Point) -> ModelShape:
    return load_model(_fp8_config(point.model) if point.fp8 else point.model)


@cache
def _fp8_config(model: str) -> str:
    config = json.loads((root("profiles") / "models" / f"{model}.json").read_text())
    folder = Path(tempfile.mkdtemp(prefix="fp8-")) / f"{model}-fp8"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": FP8}))
    return str(folder)


def _requests(point: Point, same_answers: bool) -> RequestTable:
    random, count = np.random.default_rng(0), 10 * point.concurrency

    def lengths(most: int) -> NDArray[np.int64]:
        return random.integers(-(-4 * most // 5), most, count, endpoint=True)

    prompts, answers = lengths(point.prompt_tokens), lengths(point.output_tokens)
    if same_answers:
        answers[:] = point.output_tokens
    return RequestTable.build(np.zeros(count, dtype=np.int64), prompts, answers)


def predict(run: Simulation) -> tuple[float, float]:
    """Mean TTFT and TPOT, ms."""
    record, _ = run.simulate(False, None)
    ttft_ns = record.first_token_ns - record.table.arrival_ns
    tpot_ns = (record.last_token_ns - record.first_token_ns) / (record.emitted_tokens - 1)
    return float(ttft_ns.mean()) / 1e6, float(tpot_ns.mean()) / 1e6


def held_out(run: Simulation, point: Point, what: str) -> Simulation:
    """The same with coefficients learned without the point's model (or GPU)."""
    shape = shape_of(point)
    left_out = without(what, point.model if what == "model" else point.gpu)
    server = server_terms(run.config)
    model = Trained(shape, load_gpu(point.gpu), point.tp, Training(left_out, ("others",)), server)
    model.frontend = run.latency.frontend
    return run.with_pool(latency=model)


@cache
def without(what: str, name: str) -> Coefficients:
    """Learned without a model, a GPU, or a run and the real steps of its model, by the committed run of
    train.py."""
    return Coefficients(**json.loads((RESULTS / "trained.json").read_text())[f"without_{what}"][name])


KERNELS = {
    "h100": "kernels_h200_h100/h100_sxm_vllm_0.24.0",
    "h200": "kernels_h200_h100/h200_sxm_vllm_0.24.0",
    "b200": "kernels_more/b200_sxm_vllm_0.24.0",
}


def with_kernels(run: Simulation, point: Point, data: Path) -> Simulation:
    """The same, priced by the operators measured on that GPU."""
    shape = shape_of(point)
    folder = data / KERNELS[point.gpu]
    model = build_latency(
        "kernel-tables", shape=shape, gpu=load_gpu(point.gpu), tp=point.tp, kernel_profile=folder
    )
    model.frontend = run.latency.frontend
    return run.with_pool(latency=model)
