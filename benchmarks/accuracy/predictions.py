"""Predictions of operating points, kept by a hash of the code and profiles that make them.

A run may end after some seconds and go on in the next one; parts may run beside each other. Files stand in
`build/accuracy`, one for each hash and part, and are worth nothing once the code has changed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml
from points import NotExpressed, Point, figures_ms, under_terms

from blis_py.errors import InputError
from blis_py.hardware.gpu import load_gpu
from blis_py.hardware.layout import Layout
from blis_py.latency.base import LatencyModel, unbounded
from blis_py.latency.engine_terms import EngineTerms, group_of, kind_of, terms_of
from blis_py.latency.learned import kind_of as kind_of_trained
from blis_py.latency.operators import Operators
from blis_py.latency.trained import bundled_training

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "build" / "accuracy"
WITHOUT = ROOT / "benchmarks" / "results" / "terms_without.yaml"
METRICS, STATISTICS = ("ttft", "tpot", "e2el"), ("mean", "median", "p99")
_PARTS = (
    "api.py",
    "cluster",
    "config",
    "core",
    "latency",
    "launch",
    "metrics",
    "models",
    "requests",
    "setup",
)
Prediction = dict[str, Any]
"""`predicted` (ms by metric and statistic), `without` (the same by the terms that other families show),
`learned`; or `refused`."""


class Predictions:
    """Kept predictions of the present code.

    Args:
        part: which of several that run beside each other, from 0.
    """

    def __init__(self, part: int = 0) -> None:
        self._name = code_hash()
        self._file = KEPT / f"{self._name}-{part}.jsonl"
        self._known: dict[str, Prediction] = {}
        for path in sorted(KEPT.glob(f"{self._name}-*.jsonl")):
            for line in path.read_text().splitlines():
                entry = json.loads(line)
                self._known[entry["key"]] = entry

    def of(self, point: Point) -> Prediction | None:
        return {"refused": point.refused} if point.refused else self._known.get(key_of(point))

    def make(self, points: Iterable[Point], seconds: float) -> int:
        """Predict those that are missing, for so long; returns how many are still missing."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        end = time.monotonic() + seconds
        left = [point for point in points if self.of(point) is None]
        with self._file.open("a") as file:
            for number, point in enumerate(left):
                if time.monotonic() > end:
                    return len(left) - number
                if self.of(point) is None:
                    entry = {"key": key_of(point), **predict(point)}
                    self._known[entry["key"]] = entry
                    file.write(json.dumps(entry) + "\n")
                    file.flush()
        return 0


@cache
def code_hash() -> str:
    """Of all code and profiles that decide about every prediction."""
    found = sha256()
    for part in (*(f"blis_py/{part}" for part in _PARTS), "profiles", "benchmarks/accuracy"):
        path = ROOT / part
        files: Iterator[Path] = iter([path]) if path.is_file() else path.rglob("*.*")
        for file in sorted(file for file in files if file.suffix in (".py", ".yaml", ".json")):
            if file.name != "terms.yaml" and ("benchmarks" not in part or file.name.startswith("point")):
                found.update(file.read_bytes())
    return found.hexdigest()[:16]


def key_of(point: Point) -> str:
    """Of everything that decides about its prediction, the terms of its engine included."""
    try:
        said = _run_of(point)
        said += [terms_of(point.engine, load_gpu(point.gpu), point.shape()), _without(point)]
    except NotExpressed as reason:
        said = [str(reason)]
    return _hash(said)


def _run_of(point: Point) -> list[Any]:
    return [point.settings(), point.prompt_tokens, point.output_tokens, point.drawn]


def _hash(said: list[Any]) -> str:
    return sha256(json.dumps(said, default=str).encode()).hexdigest()[:20]


def predict(point: Point) -> Prediction:
    wanted = [f"{metric}.{statistic}" for metric in METRICS for statistic in STATISTICS]
    try:
        run = point.simulation()
        found: Prediction = {
            "predicted": _rounded(figures_ms(run, wanted)),
            "learned": _learned(point, run.latency),
        }
    except (NotExpressed, InputError) as error:
        return {"refused": reason_of(error)}
    found["learned"] = _learned(point, run.latency)
    terms = _without(point) if isinstance(unbounded(run.latency), Operators) else None
    if terms is not None:
        found["without"] = _rounded(figures_ms(under_terms(run, terms), ["ttft.mean", "tpot.mean"]))
    return found


def reason_of(error: Exception) -> str:
    problem = error.problem if isinstance(error, InputError) else str(error)
    return "does not fit into the GPUs' memory" if "does not fit" in problem else problem


def _rounded(ms: dict[str, float]) -> dict[str, float]:
    return {name: float(f"{value:.6g}") for name, value in ms.items()}


def _without(point: Point) -> EngineTerms | None:
    """The terms that the other model families of its group show."""
    group = group_of(point.engine, load_gpu(point.gpu), point.shape())
    values = _terms_without().get(group, {}).get(point.family)
    return None if values is None else EngineTerms(**values)


@cache
def _terms_without() -> dict[str, dict[str, dict[str, float]]]:
    found: dict[str, Any] = yaml.safe_load(WITHOUT.read_text()) if WITHOUT.exists() else {}
    return found.get("without", {})


def _learned(point: Point, latency: LatencyModel) -> bool:
    """Whether its kind of model, format, GPU and division were learned on together."""
    shape, gpu = point.shape(), load_gpu(point.gpu)
    latency = unbounded(latency)
    if not isinstance(latency, Operators):
        learned = bundled_training().learned.tp
        return point.gpus in learned.get(kind_of_trained(shape), {}).get(gpu.name, ())
    layout = Layout(point.gpus, point.attention_dp, point.ep)
    return f"{kind_of(shape)} on {gpu.name} {layout}" in latency.learned_on
