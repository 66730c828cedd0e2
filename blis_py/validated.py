"""Predicted and measured latencies of real servers, from the results of the accuracy benchmark."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from blis_py.files.bundled import root

OPEN, CLOSED = "open loop", "closed loop"
DENSE, EXPERTS = "dense", "mixture of experts"
NEW_GPU = "new GPU"
_FILE = "real_engines.json"
_HELD_OUT = ("run left out", "new model", NEW_GPU)
_LOADS = {"five H100 runs": OPEN, "closed loops": CLOSED}
"""Truths measured on servers, by how they were loaded."""


@dataclass(frozen=True, slots=True)
class Validated:
    """One measured run, priced by a latency model that had not seen it."""

    case: str
    model: str
    gpu: str
    precision: str
    """`16-bit` or `FP8`."""
    kind: str
    load: str
    held_out: str
    ratios: Mapping[tuple[str, str], float]
    """Measured over predicted, by metric (ttft, tpot, e2e) and statistic (mean, p99)."""

    def ratio(self, metric: str, stat: str) -> float | None:
        """The ratio of a statistic; of a percentile in the tail that of the p99, else that of the mean."""
        tail = stat == "max" or (stat.startswith("p") and float(stat[1:]) >= 90)
        for each in ("p99", "mean") if tail else ("mean",):
            if (metric, each) in self.ratios:
                return self.ratios[metric, each]
        return None


@cache
def validated(latency_model: str) -> tuple[Validated, ...]:
    """All validated runs of a latency model; runs whose measurements contradict each other are left out."""
    file = root("results") / _FILE
    rows: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []
    found: dict[tuple[str, str], dict[tuple[str, str], float]] = {}
    about: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        prices, _, held_out = row["prices"].partition(", ")
        if prices != latency_model or held_out not in _HELD_OUT or row["truth"] not in _LOADS:
            continue
        if not row["consistent"] or not row["predicted"] or not row["measured"]:
            continue
        key = (row["case"], held_out)
        about[key] = row
        metric = row["metric"].lower(), row["statistic"]
        found.setdefault(key, {})[metric] = row["measured"] / row["predicted"]
    return tuple(_of(about[key], key[1], ratios) for key, ratios in found.items())


def _of(row: Mapping[str, Any], held_out: str, ratios: Mapping[tuple[str, str], float]) -> Validated:
    model, _, precision = row["model"].partition(" ")
    return Validated(
        row["case"],
        model,
        row["gpu"],
        precision or "16-bit",
        row.get("kind", DENSE),
        _LOADS[row["truth"]],
        held_out,
        ratios,
    )
