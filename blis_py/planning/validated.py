"""Predicted and measured latencies of real servers, from the results of the accuracy benchmark."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from blis_py.files.bundled import root

OPEN, CLOSED, SATURATED = "open loop", "closed loop", "open loop near saturation"
DENSE, EXPERTS = "dense", "mixture of experts"
NEW_GPU, LEARNED, NOT_LEARNED = "new GPU", "learned on", "not learned on"
_HELD_OUT_FILE, _POINTS_FILE = "real_engines.json", "accuracy.json"
_OPEN_LOOPS_FILE = "open_loops.json"
_DENSE_MODELS = ("llama-3", "llama-2")
"""Models of those runs that have no experts."""
_VLLM = "vllm"
_HELD_OUT = ("run left out", "new model", NEW_GPU)
_CONFIGURATION = re.compile(
    r"(?P<engine>vllm|sglang|trtllm), (?P<model>\S+) (?P<form>16 bits|fp8|fp4) "
    r"on (?P<gpu>\w+) TP(?P<tp>\d+).*"
)
_FORMATS = {"16 bits": "16-bit", "fp8": "FP8", "fp4": "FP4"}
_DENSE_FAMILIES = ("llama", "qwen3-32b")
"""Models of the points that have no experts."""
_LOADS = {"five H100 runs": OPEN, "closed loops": CLOSED}
"""Truths measured on servers, by how they were loaded."""


@dataclass(frozen=True, slots=True)
class Validated:
    """One measured run, and how far its prediction was off."""

    case: str
    model: str
    gpu: str
    tp: int
    precision: str
    """`16-bit`, `FP8` or `FP4`."""
    kind: str
    load: str
    """Open loop, closed loop, or open loop near saturation."""
    held_out: str
    """Part of the run that the latency model had not seen; `LEARNED` if it was learned on the like of it."""
    ratios: Mapping[tuple[str, str], float]
    """Measured over predicted, by metric (ttft, tpot, e2e) and statistic (mean, p99)."""
    engine: str = _VLLM
    source: str = ""
    layout: str = ""
    """Source and whole layout of the server, where these tell servers apart."""

    @property
    def server(self) -> tuple[object, ...]:
        """Engine, model, precision, GPU and TP: what runs of one group have in common."""
        return self.engine, self.model, self.precision, self.gpu, self.tp, self.source, self.layout

    def ratio(self, metric: str, stat: str) -> float | None:
        """The ratio of a statistic; of a percentile in the tail that of the p99, else that of the mean."""
        tail = stat == "max" or (stat.startswith("p") and float(stat[1:]) >= 90)
        for each in ("p99", "mean") if tail else ("mean",):
            if (metric, each) in self.ratios:
                return self.ratios[metric, each]
        return None


@cache
def validated(latency_model: str) -> tuple[Validated, ...]:
    """All validated runs of a latency model; runs whose measurements contradict each other are left out.

    Dense models under vLLM are those of `real_engines.json`, which the latency model had not seen, and the
    recorded runs of other sources in `open_loops.json`; all others the points of `accuracy.json`, of which it
    was learned on many.
    """
    return (*_held_out(latency_model), *((*_points(), *_recorded()) if latency_model == "trained" else ()))


def _held_out(latency_model: str) -> Iterator[Validated]:
    ratio_of: dict[tuple[str, str], dict[tuple[str, str], float]] = {}
    about: dict[tuple[str, str], dict[str, Any]] = {}
    for row in read_result(_HELD_OUT_FILE, []):
        prices, _, held_out = row["prices"].partition(", ")
        if prices != latency_model or held_out not in _HELD_OUT or row["truth"] not in _LOADS:
            continue
        if not row["consistent"] or not row["predicted"] or not row["measured"]:
            continue
        key = (row["case"], held_out)
        about[key] = row
        metric = row["metric"].lower(), row["statistic"]
        ratio_of.setdefault(key, {})[metric] = row["measured"] / row["predicted"]
    return (_of(about[key], key[1], ratios) for key, ratios in ratio_of.items())


def _points() -> Iterator[Validated]:
    for point in read_result(_POINTS_FILE, {"points": []})["points"]:
        match = _CONFIGURATION.fullmatch(point["configuration"])
        if match is None or not point.get("errors") or point["contradictory"]:
            continue
        engine, model = match["engine"], match["model"]
        kind = DENSE if model.startswith(_DENSE_FAMILIES) else EXPERTS
        if engine == _VLLM and kind == DENSE:
            continue
        ratios = {}
        for name, error in point["errors"].items():
            metric, _, stat = name.replace("e2el", "e2e").partition(".")
            ratios[metric, stat] = 1 / (1 + error)
        yield Validated(
            point["id"],
            model,
            match["gpu"],
            int(match["tp"]),
            _FORMATS[match["form"]],
            kind,
            CLOSED,
            LEARNED if point["learned"] else NOT_LEARNED,
            ratios,
            engine,
        )


def _recorded() -> Iterator[Validated]:
    for row in read_result(_OPEN_LOOPS_FILE, []):
        ratios = {}
        for name, error in row["errors"].items():
            metric, _, stat = name.lower().partition(" ")
            ratios[metric, stat] = 1 / (1 + error)
        narrow = row["model"].endswith("-fp8")
        yield Validated(
            row["case"],
            row["model"].removesuffix("-fp8"),
            row["gpu"],
            row["tp"],
            "FP8" if narrow else "16-bit",
            DENSE if row["model"].startswith(_DENSE_MODELS) else EXPERTS,
            SATURATED if row["near_saturation"] else OPEN,
            NOT_LEARNED,
            ratios,
        )


def read_result(name: str, otherwise: Any) -> Any:
    """A file of the accuracy benchmark's results; `otherwise` where there is none."""
    file = root("results") / name
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else otherwise


def _of(row: Mapping[str, Any], held_out: str, ratios: Mapping[tuple[str, str], float]) -> Validated:
    model, _, precision = row["model"].partition(" ")
    return Validated(
        row["case"],
        model,
        row["gpu"],
        row["tp"],
        precision or "16-bit",
        row.get("kind", DENSE),
        SATURATED if row.get("near_saturation") else _LOADS[row["truth"]],
        held_out,
        ratios,
    )
