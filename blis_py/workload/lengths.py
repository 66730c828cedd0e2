"""Distributions of token counts.

A new distribution is one function, one line in `SAMPLERS` and one in `REQUIRED`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from blis_py.core.bounds import MAX_TOKENS
from blis_py.errors import InputError
from blis_py.requests.table import Ints
from blis_py.workload.truncated import truncated_law

Floats = NDArray[np.float64]
Params = Mapping[str, float]
LARGEST_WEIGHT = 1e15
"""Largest weight, so that sums do not lose the small ones."""


class Lengths(NamedTuple):
    """A distribution of token counts; `type` is a key of `SAMPLERS`.

    `params` hold what `REQUIRED` lists, and for any type but `empirical` optionally `min` and `max`.
    """

    type: str
    params: Params


def gaussian(params: Params, rng: np.random.Generator, count: int) -> Floats:
    """Normal(mean, std_dev)."""
    return rng.normal(float(params["mean"]), float(params["std_dev"]), count)


def truncated(params: Params, rng: np.random.Generator, count: int) -> Floats:
    """Normal between `min` and `max`, with the requested mean and, if possible, standard deviation."""
    mean, stdev = params["mean"], params["std_dev"]
    return truncated_law(mean, stdev, int(params["min"]), int(params["max"])).draw(rng, count)


def uniform(params: Params, rng: np.random.Generator, count: int) -> Floats:
    """Every whole number from `min` to `max` alike."""
    low = np.floor(params["min"] + 0.5)
    drawn: Floats = low + np.floor(rng.random(count) * (np.floor(params["max"] + 0.5) - low + 1))
    return drawn


def exponential(params: Params, rng: np.random.Generator, count: int) -> Floats:
    """Exponential with the given mean."""
    with np.errstate(over="ignore"):
        return params["mean"] * rng.standard_exponential(count)


def lognormal(params: Params, rng: np.random.Generator, count: int) -> Floats:
    """exp(Normal(mu, sigma)); the median is exp(mu)."""
    return rng.lognormal(float(params["mu"]), float(params["sigma"]), count)


def pareto_lognormal(params: Params, rng: np.random.Generator, count: int) -> Floats:
    """With probability `mix_weight` Pareto(alpha, from xm up), else lognormal(mu, sigma)."""
    choice, tail, body = rng.spawn(3)  # one stream each, so that a longer sample extends a shorter one
    with np.errstate(over="ignore"):
        pareto = params["xm"] * (1.0 - tail.random(count)) ** (-1.0 / params["alpha"])
    return np.where(choice.random(count) < params["mix_weight"], pareto, lognormal(params, body, count))


def constant(params: Params, rng: np.random.Generator, count: int) -> Floats:
    """The constant `value`."""
    return np.full(count, float(params["value"]))


def empirical(params: Params, rng: np.random.Generator, count: int) -> Floats:
    """Each token count (key) with its weight (value); weights need not sum to 1."""
    values, weights = np.array(sorted((float(tokens), weight) for tokens, weight in params.items())).T
    cumulated = np.cumsum(weights)
    places = np.searchsorted(cumulated, rng.random(count) * cumulated[-1], side="right")
    drawn: Floats = values[np.minimum(places, len(values) - 1)]
    return drawn


SAMPLERS: dict[str, Callable[[Params, np.random.Generator, int], Floats]] = {
    "gaussian": gaussian,
    "truncated": truncated,
    "uniform": uniform,
    "exponential": exponential,
    "lognormal": lognormal,
    "pareto_lognormal": pareto_lognormal,
    "constant": constant,
    "empirical": empirical,
}
REQUIRED: dict[str, tuple[str, ...]] = {
    "gaussian": ("mean", "std_dev"),
    "truncated": ("mean", "std_dev", "min", "max"),
    "uniform": ("min", "max"),
    "exponential": ("mean",),
    "lognormal": ("mu", "sigma"),
    "pareto_lognormal": ("alpha", "xm", "mu", "sigma", "mix_weight"),
    "constant": ("value",),
    "empirical": (),
}
CLAMPS = ("min", "max")
LOWER_BOUNDS: dict[str, tuple[float, bool]] = {
    "mean": (0, False),
    "std_dev": (0, True),
    "sigma": (0, True),
    "alpha": (0, False),
    "xm": (0, False),
    "mix_weight": (0, True),
    "value": (1, True),
    "min": (0, True),
    "max": (1, True),
}
"""Parameter -> (bound, whether the bound itself is allowed)."""


def sample(lengths: Lengths, rng: np.random.Generator, count: int, least: int = 1) -> Ints:
    """`count` token counts: clamped to [min, max], rounded (halves up), at least `least`.

    The first numbers of a longer sample are those of a shorter one.
    """
    drawn = SAMPLERS[lengths.type](lengths.params, rng, count)
    if lengths.type != "empirical":
        low, high = lengths.params.get("min", float(least)), lengths.params.get("max", float(MAX_TOKENS))
        drawn = np.clip(drawn, low, min(high, MAX_TOKENS))
    return np.asarray(np.maximum(np.floor(drawn + 0.5), least), dtype=np.int64)


def check(lengths: Lengths, *, key: str, file: str | Path | None = None) -> None:
    """Refuse missing, unknown or out-of-range parameters; `key` is the distribution's location.

    Raises:
        InputError: naming the parameter.
    """

    def refuse(problem: str, param: str, fix: str | None = None) -> InputError:
        value = lengths.params.get(param)
        return InputError(problem, file=file, key=f"{key}.params.{param}", value=value, fix=fix)

    if lengths.type == "empirical":
        _check_empirical(lengths.params, refuse, f"{key}.params", file)
        return
    required = REQUIRED[lengths.type]
    allowed = tuple(dict.fromkeys(required + CLAMPS))
    for param in required:
        if param not in lengths.params:
            raise refuse("missing parameter", param, f"{lengths.type} needs {', '.join(required)}")
    for param, value in lengths.params.items():
        if param not in allowed:
            raise refuse("unknown parameter", param, f"{lengths.type} takes {', '.join(allowed)}")
        bound, inclusive = LOWER_BOUNDS.get(param, (-math.inf, False))
        if not math.isfinite(value):
            raise refuse("must be a finite number", param)
        if value < bound or (value == bound and not inclusive):
            raise refuse(f"must be {'at least' if inclusive else 'more than'} {bound:g}", param)
    low, high = lengths.params.get("min", 0), lengths.params.get("max", math.inf)
    if low > high:
        raise refuse(f"is above max ({high:g})", "min", "swap them")
    if lengths.params.get("mix_weight", 0) > 1:
        raise refuse("must be at most 1", "mix_weight", "it is the probability of the Pareto tail")
    if lengths.params.get("value", 1) != int(lengths.params.get("value", 1)):
        raise refuse("must be a whole number of tokens", "value")


def _check_empirical(
    params: Params, refuse: Callable[[str, str, str | None], InputError], key: str, file: str | Path | None
) -> None:
    for tokens, weight in params.items():
        plain = tokens.isascii() and tokens.isdecimal() and len(tokens) < 20
        if not plain or not 1 <= int(tokens) <= MAX_TOKENS:
            problem = f"a key must be a token count from 1 to {MAX_TOKENS:,}"
            raise refuse(problem, tokens, "write `tokens: weight`")
        if not 0 <= weight <= LARGEST_WEIGHT:
            raise refuse(f"a weight must be a number from 0 to {LARGEST_WEIGHT:g}", tokens, None)
    if sum(params.values()) <= 0:
        raise InputError(
            "an empirical distribution needs weights above 0",
            file=file,
            key=key,
            fix="write `tokens: weight`",
        )
