"""Whether what `blis plan` calls certain to 90 % holds in nine of ten cases.

    python benchmarks/accuracy/confidence.py

For every validated run of a server, errors are drawn as a plan draws them, from the runs of all other servers
(engine, model, precision, GPU, TP). The limit that 90 % of the draws keep is what a plan would promise; the
share of the runs whose measured latency kept it is the coverage, and that of the runs whose error is within
the one that `blis calibrate` calls known the coverage of both sides. For servers that nothing was learned on,
the errors are drawn from the runs of all other sources, model families, or GPUs. Reads results of other
scripts through the interface of the program, simulates nothing, and writes `results/confidence.json`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from blis_py.planning.uncertainty import Errors, Regime, errors_in, errors_of_unlearned
from blis_py.planning.unlearned import unlearned
from blis_py.planning.validated import NEW_GPU, Validated, validated

RESULTS = Path(__file__).resolve().parents[1] / "results" / "confidence.json"
PROMISED, DRAWS = 0.9, 400
MIN, MAX = 0.80, 0.97
"""What a promise of 90 % may come to."""
METRICS = ("ttft", "tpot", "e2e")
LEFT_OUT: dict[str, Callable[[Validated], object]] = {
    "source": lambda run: run.source,
    "family": lambda run: run.model,
    "GPU": lambda run: run.gpu,
}
_NEW_GPU = "GPU not learned on"
Drawing = Callable[[Regime, Sequence[Validated], int, Sequence[tuple[str, str]]], Errors]


class Kept(NamedTuple):
    """Whether a run keeps the limit that is promised for a mean, and the error that is known."""

    limit: bool
    both_sides: bool


class Promise(NamedTuple):
    """The largest measured over predicted, and the largest error, that hold in `PROMISED` of the draws."""

    limit: float
    error: float


def promised(drawing: Drawing, regime: Regime, others: Sequence[Validated], metric: str) -> Promise:
    errors = drawing(regime, others, DRAWS, [(metric, "mean")])
    drawn = np.array([each.step * each.residual.get((metric, "mean"), 1.0) for each in errors.draws])
    return Promise(float(np.quantile(drawn, PROMISED)), float(np.quantile(np.abs(1 / drawn - 1), PROMISED)))


def _regime(run: Validated) -> Regime:
    return Regime(run.engine, run.gpu, run.precision, run.kind, run.load)


def _kept(
    drawing: Drawing, runs: Iterable[Validated], others: Sequence[Validated], metric: str
) -> list[Kept]:
    """What the runs keep that measured the metric."""
    promises: dict[Regime, Promise] = {}
    held = []
    for run in runs:
        if (measured := run.ratio(metric, "mean")) is not None:
            regime = _regime(run)
            if regime not in promises:
                promises[regime] = promised(drawing, regime, others, metric)
            limit, error = promises[regime]
            held.append(Kept(bool(measured <= limit), bool(abs(1 / measured - 1) <= error)))
    return held


def coverage(latency_model: str = "trained") -> dict[str, dict[str, float]]:
    """Share of kept promises by metric: of all runs, and the mean over servers."""
    known = validated(latency_model)
    servers: dict[object, list[Validated]] = defaultdict(list)
    for run in known:
        if run.held_out != NEW_GPU:
            servers[run.server].append(run)
    found = {}
    for metric in METRICS:
        by_server = [
            [
                kept.limit
                for kept in _kept(errors_in, own, _without(server, known, lambda r: r.server), metric)
            ]
            for server, own in servers.items()
        ]
        by_server = [held for held in by_server if held]
        found[metric] = {
            "coverage": float(np.mean(np.concatenate(by_server))),
            "runs": sum(map(len, by_server)),
            "of_servers": float(np.mean([np.mean(held) for held in by_server])),
            "servers": len(by_server),
        }
    return found


def of_left_out(latency_model: str = "trained") -> dict[str, dict[str, dict[str, float]]]:
    """The same of servers that nothing was learned on, by what is left out and metric."""
    known = unlearned(latency_model)
    return {what: {metric: _of_parts(what, known, metric) for metric in METRICS} for what in LEFT_OUT}


def _of_parts(what: str, known: Sequence[Validated], metric: str) -> dict[str, float]:
    part_of = LEFT_OUT[what]
    judged = [run for run in known if what != "GPU" or run.held_out == _NEW_GPU]
    held: dict[object, list[Kept]] = {}
    for part in sorted({str(part_of(run)) for run in judged}):
        own = [run for run in judged if part_of(run) == part]
        held[part] = _kept(errors_of_unlearned, own, _without(part, known, part_of), metric)
    every = [each for own in held.values() for each in own]
    return {
        "coverage": float(np.mean([each.limit for each in every])),
        "both_sides": float(np.mean([each.both_sides for each in every])),
        "runs": len(every),
        "parts": sum(bool(own) for own in held.values()),
    }


def _without(
    part: object, runs: Sequence[Validated], part_of: Callable[[Validated], object]
) -> list[Validated]:
    return [run for run in runs if part_of(run) != part]


def main() -> None:
    found = coverage()
    for metric, row in found.items():
        print(
            f"{metric}: {row['coverage']:.0%} of {row['runs']} runs keep what holds in {PROMISED:.0%} of "
            f"the draws; {row['of_servers']:.0%} in the mean over {row['servers']} servers"
        )
    left_out = of_left_out()
    for what, by_metric in left_out.items():
        for metric, row in by_metric.items():
            print(
                f"{what} left out, {metric}: {row['coverage']:.0%} of {row['runs']} runs keep the limit, "
                f"{row['both_sides']:.0%} the error"
            )
    RESULTS.write_text(json.dumps({**found, "left_out": left_out}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
