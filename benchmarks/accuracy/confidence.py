"""Whether what `blis plan` calls certain to 90 % holds in nine of ten cases.

    python benchmarks/accuracy/confidence.py

For every validated run of a server, errors are drawn as a plan draws them, from the runs of all other servers
(engine, model, precision, GPU, TP). The limit that 90 % of the draws keep is what a plan would promise; the
share of the runs whose measured latency kept it is the coverage. Reads `results/real_engines.json` and
`results/accuracy.json` through the interface of the program, simulates nothing, and writes
`results/confidence.json`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from blis_py.planning.uncertainty import Regime, errors_in
from blis_py.planning.validated import NEW_GPU, Validated, validated

RESULTS = Path(__file__).resolve().parents[1] / "results" / "confidence.json"
PROMISED, DRAWS = 0.9, 400
MIN, MAX = 0.80, 0.97
"""What a promise of 90 % may come to."""


def promised(regime: Regime, others: Sequence[Validated], metric: str) -> float:
    """The limit on measured over predicted means that holds in `PROMISED` of the draws."""
    errors = errors_in(regime, others, DRAWS, [(metric, "mean")])
    drawn = [each.step * each.residual.get((metric, "mean"), 1.0) for each in errors.draws]
    return float(np.quantile(drawn, PROMISED))


def _regime(run: Validated) -> Regime:
    return Regime(run.engine, run.gpu, run.precision, run.kind, run.load)


def _kept(
    server: tuple[object, ...], runs: Sequence[Validated], known: Sequence[Validated], metric: str
) -> list[bool]:
    """Which runs of a server keep the limit promised for the mean of a metric; those that measured it."""
    others = [other for other in known if other.server != server]
    limits: dict[Regime, float] = {}
    held = []
    for run in runs:
        if (measured := run.ratio(metric, "mean")) is not None:
            regime = _regime(run)
            if regime not in limits:
                limits[regime] = promised(regime, others, metric)
            held.append(bool(measured <= limits[regime]))
    return held


def coverage(latency_model: str = "trained") -> dict[str, dict[str, float]]:
    """Share of kept promises by metric: of all runs, and the mean over servers."""
    known = validated(latency_model)
    servers: dict[tuple[object, ...], list[Validated]] = defaultdict(list)
    for run in known:
        if run.held_out != NEW_GPU:
            servers[run.server].append(run)
    found = {}
    for metric in ("ttft", "tpot", "e2e"):
        by_server = {server: _kept(server, own, known, metric) for server, own in servers.items()}
        by_server = {server: held for server, held in by_server.items() if held}
        runs = [held for own in by_server.values() for held in own]
        found[metric] = {
            "coverage": float(np.mean(runs)),
            "runs": len(runs),
            "of_servers": float(np.mean([np.mean(own) for own in by_server.values()])),
            "servers": len(by_server),
        }
    return found


def main() -> None:
    found = coverage()
    for metric, row in found.items():
        print(
            f"{metric}: {row['coverage']:.0%} of {row['runs']} runs keep what holds in {PROMISED:.0%} of "
            f"the draws; {row['of_servers']:.0%} in the mean over {row['servers']} servers"
        )
    RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
