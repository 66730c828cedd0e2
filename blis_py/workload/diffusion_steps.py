"""Distributions of the denoise rounds of a diffusion block.

The counts are rounds that change something, without the forward that writes the final keys and values. A
workload describes them by a mapping, one of

    {histogram: {4: 10, 5: 30, 32: 2}}                        rounds: weight, as measured
    {mean: 12.5, cv: 0.28, cap: 32}                           gamma distributed, rounded, 1 to cap
    {mixture: [{weight: 4, steps: {...}}, {weight: 1, steps: {...}}]}
    {sequences: measured.csv}                                 whole requests, as measured; or a list of lists
    {recorded: block_rounds.csv}                                each request of a trace its own, as in its run

The first three draw each block independently. Measured blocks of one request are correlated, which matters
for the tail of slow requests: sequences preserve that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from blis_py.core.bounds import MAX_BLOCK_ROUNDS
from blis_py.errors import InputError
from blis_py.files.opening import read_text
from blis_py.workload.lengths import LARGEST_WEIGHT

Ints = NDArray[np.int64]
_LARGEST_CV = 100.0


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
        places = np.searchsorted(cumulated, rng.random(count) * cumulated[-1], side="right")
        drawn: Ints = rounds[np.minimum(places, len(rounds) - 1)]
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
    """Mixture of distributions; each block belongs to a part with probability proportional to its weight."""

    parts: Sequence[tuple[float, DenoiseSteps]]

    def draw(self, rng: np.random.Generator, count: int) -> Ints:
        weights = np.array([weight for weight, _ in self.parts])
        choice, *streams = rng.spawn(1 + len(self.parts))
        part = np.searchsorted(np.cumsum(weights), choice.random(count) * weights.sum(), side="right")
        drawn = [steps.draw(own, count) for (_, steps), own in zip(self.parts, streams, strict=True)]
        chosen: Ints = np.choose(part, drawn)
        return chosen


@dataclass(frozen=True, slots=True)
class Sequences:
    """Measured requests, each a sequence of denoise rounds of its blocks, drawn as a whole.

    A request of n blocks takes a random one of n blocks; without any, the first n blocks of a random longer
    one; and without longer ones, one of the longest, followed by a draw for the remaining blocks.
    """

    rounds: Sequence[Sequence[int]]

    def draw_requests(self, rng: np.random.Generator, counts: Sequence[int]) -> Ints:
        """Rounds of all blocks of requests with the given numbers of blocks, concatenated."""
        longest = max(map(len, self.rounds))
        groups = [self._of(count) for count in range(longest + 1)]
        drawn: list[int] = []
        for count in counts:
            for begin in range(0, count, longest):
                blocks = min(count - begin, longest)
                group = groups[blocks]
                drawn += group[int(rng.random() * len(group))][:blocks]
        return np.array(drawn, dtype=np.int64)

    def _of(self, count: int) -> list[Sequence[int]]:
        exact = [rounds for rounds in self.rounds if len(rounds) == count]
        return exact or [rounds for rounds in self.rounds if len(rounds) > count]


@dataclass(frozen=True, slots=True)
class RecordedSteps:
    """Recorded rounds of a trace's own requests, by their numbers there."""

    rounds: Mapping[int, Sequence[int]]
    file: Path

    def of(self, rng: np.random.Generator, numbers: Sequence[int], counts: Sequence[int]) -> Ints:
        """Rounds of all blocks of requests with the given numbers of blocks, concatenated.

        An unfinished request has fewer than its number of blocks. The missing ones are drawn from the others,
        as in `Sequences`.

        Raises:
            InputError: a request has more recorded blocks than it needs, or none of the requests is recorded.
        """
        if not any(number in self.rounds for number in numbers):
            fix = "give the block_rounds.csv that lies beside the trace"
            raise InputError("has none of the requests", file=self.file, fix=fix)
        others = Sequences(tuple(self.rounds.values()))
        taken: list[int] = []
        for number, count in zip(numbers, counts, strict=True):
            own = self.rounds.get(number, ())
            if len(own) > count:
                raise InputError(
                    f"had {len(own)} blocks, and its lengths make {count}",
                    file=self.file,
                    key=f"request_id {number}",
                    fix="give the block_rounds.csv beside the trace, and the block size of the model",
                )
            taken += own
            if len(own) < count:
                taken += others.draw_requests(rng, [count])[len(own) :].tolist()
        return np.array(taken, dtype=np.int64)


Drawn = DenoiseSteps | Sequences
"""Drawn block by block, or per request."""
Steps = Drawn | RecordedSteps


def steps_from_mapping(values: Any, *, key: str = "steps", file: str | Path | None = None) -> Steps:
    """A distribution from its description.

    Raises:
        InputError: with the dotted key of the invalid value.
    """
    if isinstance(values, Mapping) and "recorded" in values:
        _only(values, ("recorded",), key, file)
        return _recorded(values["recorded"], f"{key}.recorded", file)
    if isinstance(values, Mapping) and "sequences" in values:
        _only(values, ("sequences",), key, file)
        return _sequences(values["sequences"], f"{key}.sequences", file)
    return _per_block(values, key, file)


def _per_block(values: Any, key: str, file: str | Path | None) -> DenoiseSteps:
    if not isinstance(values, Mapping) or not (set(values) & {"histogram", "mean", "mixture"}):
        kinds = "histogram, mean and cv, mixture, sequences, or recorded"
        raise InputError(f"must have {kinds}", file=file, key=key)
    if "histogram" in values:
        _only(values, ("histogram",), key, file)
        return _histogram(values["histogram"], f"{key}.histogram", file)
    if "mixture" in values:
        _only(values, ("mixture",), key, file)
        return _mixture(values["mixture"], f"{key}.mixture", file)
    _only(values, ("mean", "cv", "cap"), key, file)
    cap = _number(values, "cap", key, file, 32)
    mean, cv = _number(values, "mean", key, file), _number(values, "cv", key, file)
    if cv > _LARGEST_CV:
        raise InputError(f"must be at most {_LARGEST_CV:g}", file=file, key=f"{key}.cv", value=cv)
    if not 1 <= mean <= cap:
        raise InputError(f"must be between 1 and the cap ({cap:g})", file=file, key=f"{key}.mean", value=mean)
    if cap != int(cap) or cap > MAX_BLOCK_ROUNDS:
        problem = f"must be a whole number of rounds, at most {MAX_BLOCK_ROUNDS:,}"
        raise InputError(problem, file=file, key=f"{key}.cap", value=cap)
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
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value <= LARGEST_WEIGHT:
        problem = f"must be a number from 0 to {LARGEST_WEIGHT:g}"
        raise InputError(problem, file=file, key=f"{key}.{name}", value=value)
    return float(value)


def _histogram(values: Any, key: str, file: str | Path | None) -> Histogram:
    if not isinstance(values, Mapping):
        raise InputError("must map rounds to weights", file=file, key=key)
    weights: dict[int, float] = {}
    for name in values:
        rounds = _whole_rounds(name)
        if rounds is None:
            problem = f"a key must be a number of rounds from 1 to {MAX_BLOCK_ROUNDS:,}"
            raise InputError(problem, file=file, key=f"{key}.{name}")
        if rounds in weights:
            raise InputError("rounds given twice", file=file, key=f"{key}.{name}", fix="keep one")
        weights[rounds] = _number(values, name, key, file)
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
        steps = _per_block(part.get("steps"), f"{where}.steps", file)
        parts.append((_number(part, "weight", where, file), steps))
    if sum(weight for weight, _ in parts) <= 0:
        raise InputError("needs weights above 0", file=file, key=key)
    return Mixture(parts)


def _recorded(value: Any, key: str, file: str | Path | None) -> RecordedSteps:
    from blis_py.traces.diffusion_rounds import read_rounds

    if not isinstance(value, str):
        raise InputError("must name a file", file=file, key=key, value=value)
    path = (Path(file).parent if file else Path()) / value
    return RecordedSteps(read_rounds(path), path)


def _sequences(values: Any, key: str, file: str | Path | None) -> Sequences:
    """Sequences from a list of lists, or a CSV file with a line of rounds for each request; `#` begins a
    comment."""
    if isinstance(values, str):
        path = (Path(file).parent if file else Path()) / values
        try:
            lines = read_text(path).splitlines()
        except InputError as error:
            raise InputError(error.problem, file=path, key=key, fix=error.fix) from None
        rows: list[Any] = []
        for number, line in enumerate(lines, start=1):
            if line.strip() and not line.startswith("#"):
                rows.append(_rounds(line.split(","), key, f"{path}:{number}"))
        file = path
    elif isinstance(values, Sequence):
        rows = [_rounds(row, f"{key}[{index}]", file) for index, row in enumerate(values)]
    else:
        raise InputError("must be a CSV file or a list of lists", file=file, key=key, value=values)
    if not rows:
        raise InputError("has no requests", file=file, key=key, fix="give the rounds of each block of some")
    return Sequences(tuple(rows))


def _rounds(cells: Any, key: str, file: str | Path | None) -> tuple[int, ...]:
    if not isinstance(cells, Sequence) or isinstance(cells, str) or not cells:
        raise InputError("must list the rounds of each block", file=file, key=key, value=cells)
    rounds = []
    for cell in cells:
        number = _whole_rounds(cell)
        if number is None:
            problem = f"must be a number of rounds from 1 to {MAX_BLOCK_ROUNDS:,}"
            raise InputError(problem, file=file, key=key, value=cell)
        rounds.append(number)
    return tuple(rounds)


def _whole_rounds(given: Any) -> int | None:
    """The number of rounds in a cell, key or value; None if invalid."""
    text = given.strip() if isinstance(given, str) else str(given) if type(given) is int else ""
    plain = text.isascii() and text.isdecimal() and len(text) < 20
    return int(text) if plain and 1 <= int(text) <= MAX_BLOCK_ROUNDS else None
