"""Errors of predictions for servers that nothing was learned on: those of sources, model families and GPUs
that were left out in turn.

They are read from `left_out.json` of the accuracy benchmark. Runs of one server are alike, so that every
server has the same weight, however many runs of it there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from blis_py.errors import InputError
from blis_py.files.profiles import squeeze
from blis_py.models.model_shape import ModelShape, load_model
from blis_py.planning.validated import SATURATED, Validated, read_result

FILE = "left_out.json"
SERVERS = 12
"""Fewest servers whose errors stand for those of others."""
_ALIKE = (("kind", "precision"), ("kind",), ())
"""Features that runs share with the one that is predicted; where these are of too few servers, the next.
Formats tell more of an error than engines do."""
_NAMED = 3


class LearnedServer(NamedTuple):
    """A server that step times were learned on."""

    engine: str
    model: str
    precision: str
    gpu: str


@cache
def unlearned(latency_model: str) -> tuple[Validated, ...]:
    """Runs predicted without their source, model family or GPU; none of models that were not tried so."""
    if latency_model != "trained":
        return ()
    return tuple(Validated(**{**row, "ratios": _ratios(row["ratios"])}) for row in _table()["unlearned"])


def is_learned(engine: str, shape: ModelShape, precision: str, gpu: str) -> bool:
    """Whether step times were learned on servers of that engine, model, format and GPU."""
    own = engine, precision, squeeze(gpu)
    alike = {one.model for one in _learned() if (one.engine, one.precision, squeeze(one.gpu)) == own}
    return any(_sizes(shape) == sizes for model in alike if (sizes := _sizes_of(model)))


def alike(kind: str, precision: str, load: str, runs: Sequence[Validated]) -> list[Validated]:
    """The runs from whose errors those of another server are drawn: of the same kind of model and format as
    far as there are `SERVERS`; near saturation, where errors of step times add up to queues, all that were
    near it, too."""
    own = {"kind": kind, "precision": precision}
    for names in _ALIKE:
        found = [run for run in runs if all(getattr(run, name) == own[name] for name in names)]
        if len({run.server for run in found}) >= SERVERS:
            break
    near = [run for run in runs if run.load == SATURATED and run not in found]
    return [*found, *near] if load == SATURATED else found


def picked(runs: Sequence[Validated], count: int, rng: np.random.Generator) -> list[Validated]:
    """Draws of runs: each server about equally often, one of its runs at random."""
    of: dict[tuple[object, ...], list[Validated]] = {}
    for run in runs:
        of.setdefault(run.server, []).append(run)
    servers = list(of.values())
    rounds = [rng.permutation(len(servers)) for _ in range(-(-count // len(servers)))]
    drawn = np.concatenate(rounds)[:count].tolist()
    return [servers[at][rng.integers(len(servers[at]))] for at in drawn]


def half_width(runs: Sequence[Validated], metric: str, stat: str, level: float) -> float | None:
    """Size of ln(measured / predicted) that holds in a share of the servers; None if none measured it. Of a
    server whose E2E was not measured, its TPOT counts."""
    of: dict[tuple[object, ...], list[float]] = {}
    for run in runs:
        ratio = run.ratio(metric, stat) or (run.ratio("tpot", stat) if metric == "e2e" else None)
        if ratio is not None:
            of.setdefault(run.server, []).append(abs(float(np.log(ratio))))
    if not of:
        return None
    sizes = np.concatenate([np.array(own) for own in of.values()])
    weights = np.concatenate([np.full(len(own), 1 / len(own)) for own in of.values()]) / len(of)
    order = np.argsort(sizes)
    return float(np.interp(level, np.cumsum(weights[order]), sizes[order]))


def note(runs: Sequence[Validated], what: str) -> str:
    """Source of the errors, and what nothing was learned on."""
    kinds = dict.fromkeys(f"{run.precision} {run.kind}" for run in runs)
    of = ", ".join(kinds) if len(kinds) <= _NAMED else "any kind"
    servers = len({run.server for run in runs})
    return f"{len(runs)} measured runs of {servers} servers left out in turn ({of}; not validated for {what})"


def _ratios(by_name: Mapping[str, float]) -> dict[tuple[str, str], float]:
    """By metric and statistic, from `metric.statistic`."""
    return {
        (metric, stat): ratio for name, ratio in by_name.items() for metric, _, stat in [name.partition(".")]
    }


@cache
def _learned() -> tuple[LearnedServer, ...]:
    return tuple(LearnedServer(*row) for row in _table()["learned"])


@cache
def _sizes_of(model: str) -> tuple[int, ...] | None:
    try:
        return _sizes(load_model(model))
    except InputError:
        return None


def _sizes(shape: ModelShape) -> tuple[int, ...]:
    """Sizes of a model that its other formats and versions share."""
    return shape.layers, shape.hidden, shape.heads, shape.kv_heads, shape.intermediate, shape.experts


@cache
def _table() -> dict[str, Any]:
    found: dict[str, Any] = read_result(FILE, {"unlearned": [], "learned": []})
    return found
