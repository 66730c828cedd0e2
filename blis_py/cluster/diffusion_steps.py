"""How many denoise rounds a diffusion block takes: distributions to draw from.

The counts are rounds that change something; the forward that writes the final keys and values comes on
top. A workload describes them by a mapping, one of

    {histogram: {4: 10, 5: 30, 32: 2}}                        rounds: weight, as measured
    {mean: 12.5, cv: 0.28, cap: 32}                           gamma distributed, rounded, 1 to cap
    {mixture: [{weight: 4, steps: {...}}, {weight: 1, steps: {...}}]}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from blis_py.core.request import Request
from blis_py.errors import InputError
from blis_py.workload.streams import stream

Ints = NDArray[np.int64]


class DenoiseSteps(Protocol):
    """A distribution of denoise rounds per block, each at least 1."""

    def draw(self, rng: np.random.Generator, count: int) -> Ints: ...


@dataclass(frozen=True, slots=True)
class Histogram:
    """Rounds -> weight; weights need not sum to 1."""

    weights: Mapping[int, float]

    def draw(self, rng: np.random.Generator, count: int) -> Ints:
        rounds = np.array(sorted(self.weights), dtype=np.int64)
        cumulated = np.cumsum([self.weights[int(value)] for value in rounds])
        found = np.searchsorted(cumulated, rng.random(count) * cumulated[-1], side="right")
        drawn: Ints = rounds[found]
        return drawn


@dataclass(frozen=True, slots=True)
class MeanAndSpread:
    """Gamma distributed with a mean and a coefficient of variation, rounded, between 1 and `cap`."""

    mean: float
    cv: float
    cap: int = 32

    def draw(self, rng: np.random.Generator, count: int) -> Ints:
        if self.cv == 0:
            values = np.full(count, self.mean)
        else:
            shape = self.cv**-2
            values = rng.gamma(shape, self.mean / shape, count)
        return np.clip(np.floor(values + 0.5), 1, self.cap).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Mixture:
    """Each block belongs to one of the parts, with a probability in proportion to its weight."""

    parts: Sequence[tuple[float, DenoiseSteps]]

    def draw(self, rng: np.random.Generator, count: int) -> Ints:
        weights = np.array([weight for weight, _ in self.parts])
        choice, *streams = rng.spawn(1 + len(self.parts))
        part = np.searchsorted(np.cumsum(weights), choice.random(count) * weights.sum(), side="right")
        drawn = [steps.draw(own, count) for (_, steps), own in zip(self.parts, streams, strict=True)]
        chosen: Ints = np.choose(part, drawn)
        return chosen


def steps_from_mapping(values: Any, *, key: str = "steps", file: str | Path | None = None) -> DenoiseSteps:
    """A distribution from its description.

    Raises:
        InputError: with the dotted key of what cannot be.
    """
    if not isinstance(values, Mapping) or not (set(values) & {"histogram", "mean", "mixture"}):
        raise InputError("must have histogram, mean and cv, or mixture", file=file, key=key)
    if "histogram" in values:
        _only(values, ("histogram",), key, file)
        return _histogram(values["histogram"], f"{key}.histogram", file)
    if "mixture" in values:
        _only(values, ("mixture",), key, file)
        return _mixture(values["mixture"], f"{key}.mixture", file)
    _only(values, ("mean", "cv", "cap"), key, file)
    cap = _number(values, "cap", key, file, 32)
    mean, cv = _number(values, "mean", key, file), _number(values, "cv", key, file)
    if not 1 <= mean <= cap:
        raise InputError(f"must be between 1 and the cap ({cap:g})", file=file, key=f"{key}.mean", value=mean)
    if cap != int(cap):
        raise InputError("must be a whole number of rounds", file=file, key=f"{key}.cap", value=cap)
    return MeanAndSpread(mean, cv, int(cap))


def _only(values: Mapping[str, Any], allowed: tuple[str, ...], key: str, file: str | Path | None) -> None:
    for name in values:
        if name not in allowed:
            fix = f"use {', '.join(allowed)}"
            raise InputError("unknown key", file=file, key=f"{key}.{name}", fix=fix)


def _number(
    values: Mapping[str, Any], name: str, key: str, file: str | Path | None, default: float | None = None
) -> float:
    value = values.get(name, default)
    if value is None:
        raise InputError("missing key", file=file, key=f"{key}.{name}", fix="add it")
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not isfinite(value) or value < 0:
        raise InputError("must be a number of at least 0", file=file, key=f"{key}.{name}", value=value)
    return float(value)


def _histogram(values: Any, key: str, file: str | Path | None) -> Histogram:
    if not isinstance(values, Mapping):
        raise InputError("must map rounds to weights", file=file, key=key)
    weights: dict[int, float] = {}
    for name in values:
        if not str(name).isdecimal() or int(name) < 1:
            problem = "a key must be a number of rounds of at least 1"
            raise InputError(problem, file=file, key=f"{key}.{name}")
        weights[int(name)] = _number(values, name, key, file)
    if sum(weights.values()) <= 0:
        raise InputError("needs weights above 0", file=file, key=key, fix="write `rounds: weight`")
    return Histogram(weights)


def _mixture(values: Any, key: str, file: str | Path | None) -> Mixture:
    if not isinstance(values, Sequence) or isinstance(values, str) or not values:
        raise InputError("must be a list of {weight, steps}", file=file, key=key)
    parts = []
    for index, part in enumerate(values):
        where = f"{key}[{index}]"
        if not isinstance(part, Mapping):
            raise InputError("must be {weight, steps}", file=file, key=where)
        _only(part, ("weight", "steps"), where, file)
        steps = steps_from_mapping(part.get("steps"), key=f"{where}.steps", file=file)
        parts.append((_number(part, "weight", where, file), steps))
    if sum(weight for weight, _ in parts) <= 0:
        raise InputError("needs weights above 0", file=file, key=key)
    return Mixture(parts)


def draw_rounds(
    requests: Sequence[Request], steps: DenoiseSteps, *, block_tokens: int, seed: int, commit_rounds: int = 1
) -> list[list[int]]:
    """Rounds (forwards) that each block of each request takes, from a random stream of its own.

    They depend on the requests and the seed alone, not on how the requests are scheduled.

    Args:
        requests: with `output_tokens`, or else `max_tokens`, given.
        commit_rounds: forwards after the last round that changes something: 1, or 0 where the last
            counted round itself found nothing to change.
    """
    counts = []
    for request in requests:
        output = request.output_tokens or request.max_tokens
        if request.max_tokens:
            output = min(output, request.max_tokens)
        counts.append(-(-(request.prompt_tokens % block_tokens + output) // block_tokens))
    drawn = (steps.draw(stream(seed, "diffusion", "steps"), sum(counts)) + commit_rounds).tolist()
    rounds, start = [], 0
    for count in counts:
        rounds.append(drawn[start : start + count])
        start += count
    return rounds
