"""A single score for a run, as in BLIS's `--fitness-weights`: a weighted sum of figures from 0 to 1."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from blis_py.errors import InputError
from blis_py.metrics.distribution import Distribution
from blis_py.metrics.latencies import latencies
from blis_py.metrics.record import RunRecord

_STATS: dict[str, Callable[[Distribution], float]] = {
    "mean": lambda times: times.mean(),
    "p50": lambda times: times.percentile(50),
    "p99": lambda times: times.percentile(99),
}
_REQUESTS_PER_S, _TOKENS_PER_S, _MS = 100.0, 10_000.0, 1e6
"""Values that score one half; latencies are in ns here."""
COMPONENTS = ("throughput", "tokens_per_sec", *(f"{stat}_{of}" for of in ("ttft", "e2e") for stat in _STATS))


def parse_weights(text: str) -> dict[str, float]:
    """Weights from text such as `throughput:0.5,p99_ttft:0.3,mean_e2e:0.2`.

    Raises:
        InputError: not NAME:WEIGHT, an unknown name, a name given twice, a negative weight.
    """
    key = "--fitness-weights"
    weights: dict[str, float] = {}
    for part in text.split(","):
        name, colon, number = (piece.strip() for piece in part.partition(":"))
        if not colon or name not in COMPONENTS or name in weights:
            raise InputError(
                "not a weight", key=key, value=part, fix=f"write NAME:WEIGHT with {', '.join(COMPONENTS)}"
            )
        try:
            weights[name] = float(number)
        except ValueError:
            weights[name] = -1.0
        if not 0 <= weights[name] < float("inf"):
            raise InputError("must be a number, not negative", key=key, value=part)
    return weights


def fitness(record: RunRecord, weights: Mapping[str, float]) -> dict[str, float]:
    """The components that have a weight, by name, and their weighted sum as `score`.

    Rates x score x / (x + 100) for requests and x / (x + 10,000) for tokens per second, latencies t score 1 /
    (1 + t) in ms, and 0 if undefined.
    """
    columns = latencies(record)
    ends = [one.step_ends.last_ns for one in record.instances if one.steps]
    span_s = max(ends, default=0) / 1e9
    done = columns.completed
    rates = {
        "throughput": (int(done.sum()), _REQUESTS_PER_S),
        "tokens_per_sec": (int(record.emitted_tokens[done].sum()), _TOKENS_PER_S),
    }
    scores = {}
    for name in sorted(weights):
        if name in rates:
            count, half = rates[name]
            rate = count / span_s if span_s else 0.0
            scores[name] = rate / (rate + half)
            continue
        stat, _, latency = name.partition("_")
        column = columns.column(latency)
        known = column[~np.isnan(column)]
        scores[name] = 1 / (1 + _STATS[stat](Distribution.of(known)) / _MS) if len(known) else 0.0
    return {"score": sum(weights[name] * value for name, value in scores.items()), **scores}
