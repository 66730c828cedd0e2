"""Parts of `truth.py`: recorded runs and pages, and how far the program is from each, in figures.

A figure is predicted over measured minus one, or the mean of such errors without their signs. Its modules
simulate; here they are called, and results get names.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import closed_points
import h100_runs
import numpy as np
import open_loop_runs
import transfer
import vllm_runs
from outcomes import Outcome, outcome_of, sampled
from point_sets import points_of
from points import Point
from predictions import Predictions, predict

from blis_py.hardware.gpu import load_gpu
from blis_py.latency import build
from blis_py.models.model_shape import load_model

Figures = dict[str, float]
ROOT = Path(__file__).resolve().parents[2]
_MEANS = ("TTFT mean", "TPOT mean", "E2E mean")
_MOST_IN_FLIGHT = 64
"""Of the points that are sampled."""
_OF_GROUP = (0.0, 0.5, 1.0)
"""Places of the sampled points of a group, from the cheapest to the dearest."""
_FEW_REQUESTS = 600


@dataclass(frozen=True)
class Part:
    """Some recorded runs or points.

    noise: a figure that is further from zero by at most so much is not worse: what a tie between two events
        that goes the other way changes, and what the mean of so many measured requests is worth.
    limits: beyond this a figure is worse, whatever it was; by the end of its name.
    """

    figures: Callable[[Path], Figures]
    noise: float
    fast: bool = True
    limits: tuple[tuple[str, float], ...] = ()

    def limit_of(self, name: str) -> float:
        return next((limit for end, limit in self.limits if name.endswith(end)), float("inf"))


def h100(data: Path) -> Figures:
    """Each run with the front end that the others show."""
    folder = data / "vllm_h100_runs"
    runs = [h100_runs.read(folder, name) for name in h100_runs.names(folder)]
    records = [h100_runs.predict(run) for run in runs]
    ends = h100_runs.front_ends(runs, records)
    found: Figures = {}
    for run, record, end in zip(runs, records, ends, strict=True):
        for name, error in h100_runs.errors(run, record, end).items():
            found[f"{run.name} {name}"] = error
    return found


def rtx(data: Path) -> Figures:
    """By the kernels of each card, and by `trained`."""
    folder, found = data / "vllm_runs", {}
    for card, gpu in vllm_runs.GPUS.items():
        shape = load_model(vllm_runs.MODEL)
        trained = build("trained", shape=shape, gpu=load_gpu(gpu))
        for by, latency in (("kernel-tables", None), ("trained", trained)):
            for name, error in vllm_runs.errors(folder, card, latency).items():
                found[f"{card} {by} {name} mean"] = error.mean
                found[f"{card} {by} {name} p99"] = error.p99
    return found


def open_loops(data: Path) -> Figures:
    folder = data / "open_loop_runs"
    named = ((name, open_loop_runs.errors(run)) for name, run in open_loop_runs.runs(folder).items())
    return _flat((*named, *closed_points.errors(folder)))


def _flat(named: Iterable[tuple[str, Figures]]) -> Figures:
    return {f"{name} {metric}": error for name, of in named for metric, error in of.items()}


# --- benchmarks --------------------------------------------------------------------------------------


def sample(data: Path) -> Figures:
    """Some points of each group of both benchmarks, from few tokens to many."""
    return _by_group(outcome_of(point, predict(point)) for point in _sampled(points_of(data)))


def _sampled(points: Iterable[Point]) -> Iterator[Point]:
    groups: dict[str, list[Point]] = defaultdict(list)
    for point in points:
        if not point.refused and not point.contradicted and point.concurrency <= _MOST_IN_FLIGHT:
            groups[_group(point)].append(point)
    for of in groups.values():
        of.sort(key=lambda p: (p.concurrency * p.output_tokens, p.prompt_tokens, p.id))
        yield from (of[place] for place in sorted({round(at * (len(of) - 1)) for at in _OF_GROUP}))


def _group(p: Point) -> str:
    return f"{p.source} {p.engine} {p.family} {p.precision or '16 bits'} {p.gpu}"


def _by_group(outcomes: Iterable[Outcome]) -> Figures:
    """Mean absolute errors of the points that contradict neither themselves nor another run."""
    errors: dict[str, list[float]] = defaultdict(list)
    for outcome in outcomes:
        for name in ("ttft.mean", "tpot.mean"):
            if outcome.sound:
                errors[f"{_group(outcome.point)} {name}"].append(abs(outcome.errors[name]))
    return {name: float(np.mean(of)) for name, of in errors.items()}


def page(data: Path) -> Figures:
    """All points, by the machinery of the accuracy page: what was predicted by this code is kept."""
    points, predictions = list(sampled(points_of(data), 1)), Predictions()
    predictions.make(points, float("inf"))
    found = ((point, predictions.of(point)) for point in points)
    return _by_group(outcome_of(point, kept) for point, kept in found if kept)


# --- fits and the engine -----------------------------------------------------------------------------


def few_fits(data: Path) -> Figures:
    """One pair of runs, of a few requests."""
    return _fits(data, ("7b",), _FEW_REQUESTS, 1)


def fits(data: Path) -> Figures:
    """All pairs of `transfer.py`."""
    return _fits(data, ("7b", "several", "slices", "load"), 1500, None)


def _fits(data: Path, kinds: tuple[str, ...], requests: int, most: int | None) -> Figures:
    pairs = [pair for pair in transfer.pairs(data / "vllm_h100_runs", requests) if pair[0] in kinds]
    hindsight, found = transfer.Hindsight(), {}
    for pair in pairs[:most]:
        row = transfer.row(*pair, hindsight)
        found[f"{row['fitted_to']}: {row['asked']}"] = row["error_after"]
    return found


def engine(_: Path) -> Figures:
    """Runs of our own engine. They are recorded once, in `build/truth`, and predicted again from then on: a
    quiet machine is needed for the first time alone."""
    folder = ROOT / "build" / "truth"
    out, profiles, kept = (folder / name for name in ("engine_runs.json", "profiles", "runs"))
    profiles.mkdir(parents=True, exist_ok=True)
    script = [sys.executable, str(Path(__file__).with_name("engine_runs.py")), "--profile", "--rounds", "10"]
    where = ["--profiles", str(profiles), "--keep", str(kept), "--out", str(out)]
    subprocess.run([*script, *where], check=True, stdout=subprocess.DEVNULL)
    return of_engine_runs(out)


def of_engine_runs(results: Path) -> Figures:
    """Figures of what `engine_runs.py` wrote."""
    runs = json.loads(results.read_text())["runs"]
    return _flat((f"{run['model']} {run['case']}", run["errors"]) for run in runs)


_H100_LIMITS = (("E2E mean", 0.03), ("TTFT mean", 0.06))
PARTS = {
    "h100": Part(h100, 0.003, limits=_H100_LIMITS),
    "rtx": Part(rtx, 0.005),
    "open loops": Part(open_loops, 0.01),
    "sample": Part(sample, 0.01),
    "few fits": Part(few_fits, 0.003),
    "page": Part(page, 0.01, fast=False),
    "fits": Part(fits, 0.003, fast=False),
    "engine": Part(engine, 0.02, fast=False),
}
