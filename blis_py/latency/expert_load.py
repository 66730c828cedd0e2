"""Load of a layer's experts: by name, or as measured.

A measured load is even within a group of ranks, and the busiest group has `imbalance` times its tokens. Where
the experts are not distributed among groups, it is priced by the routing whose coefficient of variation is
nearest. The tables' power laws are AIConfigurator's (`sample_power_law`): loads between 1 and 0.8 of the
tokens of a step, of density x^-a, here at their quantiles.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import NamedTuple

from blis_py.errors import InputError
from blis_py.files.csv_files import header_of, table_rows
from blis_py.hardware.layout import Layout
from blis_py.latency.expert_placement import imbalance
from blis_py.models.model_shape import ModelShape

POWER_LAWS = {"skewed": 1.01, "steep": 1.2}
"""Routing -> exponent of the tables' distribution."""
ROUTINGS = ("balanced", *POWER_LAWS)
_STEP_TOKENS = 8192
"""Tokens of a step at which the power laws are compared with a measured load."""
_KEY = "--expert-load"


class ExpertLoad(NamedTuple):
    """Distribution of a step's tokens over the experts."""

    routing: str
    """Distribution whose kernel times apply."""
    imbalance: float = 1.0
    """Tokens of the busiest group of ranks over the mean."""
    text: str = ""


def expert_load(name: str, shape: ModelShape, layout: Layout) -> ExpertLoad:
    """The load by the name of a routing or in a file.

    Raises:
        InputError: the model has no experts, or the file is not a load of them.
    """
    if not shape.is_moe:
        problem = "has no effect on a model without experts"
        raise InputError(problem, key=_KEY, value=name, fix="drop it")
    if name in ROUTINGS:
        return ExpertLoad(name, text=f"{name} expert load")
    return _measured(Path(name), shape, layout)


def _measured(path: Path, shape: ModelShape, layout: Layout) -> ExpertLoad:
    """Layers have loads of their own; what they lead to is averaged over them."""
    layers = read_load(path, shape.experts, shape.experts_per_token)
    if layout.ep == 1:
        routing = nearest_routing(fmean(pstdev(tokens) / fmean(tokens) for tokens in layers), shape.experts)
        return ExpertLoad(routing, text=f"expert load of {path.name} (nearest to {routing})")
    mean = fmean(imbalance(tokens, layout.ep, layout.redundant_experts) for tokens in layers)
    busiest = f"the busiest of {layout.ep} groups has {mean:.2f} times the mean"
    return ExpertLoad("balanced", mean, f"expert load of {path.name} ({busiest})")


def nearest_routing(variation: float, experts: int) -> str:
    """The routing of the tables whose coefficient of variation is nearest."""
    return min(ROUTINGS, key=lambda name: abs(variation - routing_variation(name, experts)))


def routing_variation(routing: str, experts: int) -> float:
    """Standard deviation of the loads over their mean."""
    if routing not in POWER_LAWS:
        return 0.0
    loads = power_law(POWER_LAWS[routing], experts)
    return pstdev(loads) / fmean(loads)


def power_law(exponent: float, experts: int) -> list[float]:
    """Loads of so many experts, smallest first."""
    power = 1.0 - exponent
    most = (0.8 * _STEP_TOKENS) ** power
    return [((most - 1.0) * (i + 0.5) / experts + 1.0) ** (1.0 / power) for i in range(experts)]


def read_load(path: Path, experts: int, top_k: int) -> list[list[float]]:
    """Tokens of every expert, by layer; one layer where the file has no such column.

    Raises:
        InputError: an unreadable file, an invalid row, or another number of experts; with the line.
    """
    layers: dict[str, dict[int, float]] = {}
    for place, layer, expert, tokens in _rows(path, experts):
        if expert in layers.setdefault(layer, {}):
            raise InputError("expert given twice", file=place, value=expert, fix="add the rows up")
        layers[layer][expert] = tokens
    if not layers:
        raise InputError("has no rows", file=path, fix="give one for each expert")
    return [_whole(loads, experts, top_k, path, layer) for layer, loads in layers.items()]


def _rows(path: Path, experts: int) -> Iterator[tuple[str, str, int, float]]:
    """Place, layer, expert and tokens of each row."""
    layered = "layer" in header_of(path)
    for line, cells in table_rows(path, ["layer"] * layered + ["expert", "tokens"]):
        place, (expert, tokens) = f"{path}:{line}", cells[-2:]
        index = int(expert) if expert.isascii() and expert.strip().isdecimal() else experts
        if index >= experts:
            fix = f"the experts of this model are 0 to {experts - 1}"
            raise InputError("no such expert", file=place, key="expert", value=expert[:80], fix=fix)
        yield place, cells[0].strip() if layered else "", index, _tokens(tokens, place)


def _tokens(cell: str, place: str) -> float:
    try:
        tokens = float(cell)
    except ValueError:
        tokens = -1.0
    if not (math.isfinite(tokens) and tokens >= 0):
        fix = "give the tokens that the expert received, 0 or more"
        raise InputError("no number of tokens", file=place, key="tokens", value=cell[:80], fix=fix)
    return tokens


def _whole(loads: dict[int, float], experts: int, top_k: int, path: Path, layer: str) -> list[float]:
    """Loads in the order of experts, checked against the model."""
    where = f" in layer {layer}" if layer else ""
    if len(loads) != experts:
        missing = next(expert for expert in range(experts) if expert not in loads)
        fix = f"give one row for each, and 0 tokens for one without; expert {missing} is missing"
        raise InputError(f"{len(loads)} of the model's {experts} experts{where}", file=path, fix=fix)
    tokens = [loads[expert] for expert in range(experts)]
    if not sum(tokens):
        raise InputError(f"no expert has tokens{where}", file=path, fix="give measured tokens, or drop it")
    _check_choices(tokens, top_k, path, where)
    return tokens


def _check_choices(tokens: Sequence[float], top_k: int, path: Path, where: str) -> None:
    """Refuse more tokens of an expert than choose `top_k` different ones.

    Raises:
        InputError: an expert has them.
    """
    if max(tokens) * top_k > sum(tokens) * (1 + 1e-9):
        problem = f"expert {tokens.index(max(tokens))} has more than 1/{top_k} of the tokens{where}"
        fix = f"each token chooses {top_k} different experts: give tokens of all of them"
        raise InputError(problem, file=path, fix=fix)
