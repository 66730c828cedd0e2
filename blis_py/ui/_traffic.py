"""Workload specs with other lengths and another shape of the rate, as the page derives them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from blis_py.errors import InputError
from blis_py.workload.presets import Sizes

SHAPES = ("as given", "steady", "a day", "a spike")
_SCALED = {"mean", "std_dev", "min", "max", "xm", "value"}
"""Parameters of length distributions that are numbers of tokens; `mu` is the logarithm of one."""
_DISTRIBUTIONS = {"prompt": "input_distribution", "output": "output_distribution"}
_STEPS = 48
_TIMING = ("diurnal", "spike", "drain", "lifecycle")


def plain_spec(load: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """The spec of a workload that flags describe by rate and lengths."""

    def lengths(name: str) -> dict[str, Any]:
        sizes = Sizes(*(load[f"{name}_tokens{part}"] for part in ("", "_stdev", "_min", "_max"))).effective()
        params = {"mean": sizes.tokens, "std_dev": sizes.stdev, "min": sizes.min, "max": sizes.max}
        return {"type": "gaussian", "params": params}

    rate, requests = load["rate"] or 1.0, load["num_requests"] or 100
    client = {
        "id": "all",
        "rate_fraction": 1.0,
        "streaming": True,
        "arrival": {"process": "poisson"},
        "input_distribution": lengths("prompt"),
        "output_distribution": lengths("output"),
    }
    horizon_us = round(requests / rate * 1e6)
    return {"version": "2", "seed": seed, "aggregate_rate": rate, "horizon": horizon_us, "clients": [client]}


def derived(
    spec: Mapping[str, Any], prompt: float, output: float, shape: str, rate: float | None
) -> tuple[dict[str, Any], str | None]:
    """A spec with scaled lengths and another shape of the rate; and the content of its file of rates, if any.

    Args:
        prompt, output: factors on the lengths.
        shape: one of `SHAPES`; the mean rate stays.
        rate: requests per second, instead of the spec's own.

    Raises:
        InputError: the spec has no lengths or rate of its own to change.
    """
    changed = deepcopy(dict(spec))
    sources = [*(changed.get("clients") or []), *(changed.get("cohorts") or [])]
    if not sources:
        raise InputError("has no clients whose lengths or rate could change", key="workload.spec")
    for factor, name in ((prompt, _DISTRIBUTIONS["prompt"]), (output, _DISTRIBUTIONS["output"])):
        for client in sources:
            if factor != 1 and name in client:
                client[name] = scaled(client[name], factor)
    if rate is not None:
        changed["aggregate_rate"] = rate
    if shape == SHAPES[0]:
        return changed, None
    for client in sources:
        for key in _TIMING:
            client.pop(key, None)
    if shape == SHAPES[1]:
        changed.pop("rate_profile", None)
        return changed, None
    horizon_us = changed.get("horizon")
    if not horizon_us:
        raise InputError("has no horizon over which its rate could change", key="workload.spec")
    changed["rate_profile"] = "rates.csv"
    mean = float(changed.pop("aggregate_rate", 1.0))
    return changed, rates(shape, mean, horizon_us / 1e6)


def scaled(lengths: Mapping[str, Any], factor: float) -> dict[str, Any]:
    """A distribution of lengths, times a factor.

    Raises:
        InputError: the lengths are in a file of their own.
    """
    params = lengths.get("params") or {}
    if lengths["type"] == "empirical":
        if not params:
            raise InputError("lengths in a file of their own cannot be scaled", key="workload.spec")
        weights: dict[int, float] = {}
        for tokens, weight in params.items():
            length = max(1, round(int(tokens) * factor))
            weights[length] = weights.get(length, 0) + weight
        return {**lengths, "params": weights}
    changed = {key: max(1.0, value * factor) if key in _SCALED else value for key, value in params.items()}
    whole = {key: round(value) if key in ("min", "max") else value for key, value in changed.items()}
    if "mu" in whole:
        whole["mu"] += math.log(factor)
    return {**lengths, "params": whole}


def rates(shape: str, mean: float, seconds: float) -> str:
    """A file of rates: seconds from the start, requests per second."""
    factors = [_factor(shape, (step + 0.5) / _STEPS) for step in range(_STEPS)]
    scale = mean * _STEPS / sum(factors)
    rows = [f"{step * seconds / _STEPS:.3f},{factor * scale:.6g}" for step, factor in enumerate(factors)]
    return "\n".join(["seconds,rate", *rows, f"{seconds:.3f},0", ""])


def _factor(shape: str, at: float) -> float:
    """Rate over its mean at a share of the time: a cosine from a fifth to the peak, or a spike three times as
    high for a tenth of the time."""
    if shape == SHAPES[2]:
        return 0.6 - 0.4 * math.cos(2 * math.pi * at)
    return 3.0 if 0.45 <= at < 0.55 else 1.0
