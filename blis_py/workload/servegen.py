"""ServeGen: the clients of a production service, by their rate, burstiness and lengths over a day.

A folder of https://github.com/alibaba/ServeGen has two files for each client:

    chunk-N-trace.csv      start (s of the day), requests/s, CV of the gaps, their law, its shape and scale
    chunk-N-dataset.json   start (s of the day) -> weights of prompt and output lengths from then on
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blis_py.core.bounds import MAX_TOKENS
from blis_py.errors import InputError
from blis_py.files.json_files import load_object
from blis_py.files.opening import reading
from blis_py.files.paths import is_folder

_TRACE = re.compile(r"chunk-(\d+)-trace\.csv")
_LAWS = {
    "gamma": "gamma",
    "weibull": "weibull",
    "": "poisson",
    "exponential": "poisson",
    "poisson": "poisson",
}
_SIDES = ("input_tokens", "output_tokens")

Weights = dict[str, float]
"""Weights of token counts."""


@dataclass(frozen=True, slots=True)
class Sends:
    """A client's arrivals in one window.

    Attributes:
        start_s: from the start of the day.
        rate: requests per second.
        cv: of the gaps.
        law: of the gaps: gamma, weibull or poisson.
    """

    start_s: float
    rate: float
    cv: float
    law: str


@dataclass(frozen=True, slots=True)
class Chunk:
    """A client of a ServeGen folder.

    Attributes:
        sends: the windows with arrivals, in order.
        lengths: weights of prompt and output lengths from each second of the day on, in order.
    """

    number: int
    sends: tuple[Sends, ...]
    lengths: tuple[tuple[float, tuple[Weights, Weights]], ...]

    def lengths_at(self, time_s: float) -> tuple[Weights, Weights]:
        """Lengths at that time or, before the first entry, those of the first."""
        place = bisect_right([start for start, _ in self.lengths], time_s) - 1
        return self.lengths[max(place, 0)][1]


def is_servegen(path: Path) -> bool:
    """Whether this is a ServeGen folder."""
    return is_folder(path) and any(_TRACE.fullmatch(one.name) for one in path.iterdir())


def read_chunks(folder: Path) -> list[Chunk]:
    """The clients of a folder that have arrivals and known lengths.

    Raises:
        InputError: a missing file, or a bad cell; with file and line.
    """
    files = sorted((int(m[1]), one) for one in folder.iterdir() if (m := _TRACE.fullmatch(one.name)))
    chunks = []
    for number, trace in files:
        sends = tuple(sorted(_sends(trace), key=lambda one: one.start_s))
        lengths = tuple(_lengths(folder / f"chunk-{number}-dataset.json")) if sends else ()
        if lengths:
            chunks.append(Chunk(number, sends, lengths))
    return chunks


def _sends(trace: Path) -> Iterator[Sends]:
    """Windows with a rate."""
    with reading(trace) as text:
        for line, row in enumerate(text, 1):
            cells = row.strip().split(",")
            if cells == [""] or (line == 1 and not _is_number(cells[0])):
                continue
            where = f"{trace}:{line}"
            if len(cells) < 4:
                raise InputError("not a window of ServeGen", file=where, fix="start,rate,cv,law,shape,scale")
            start_s, rate, cv = (
                _number(cell, where, name) for cell, name in zip(cells, ("start", "rate", "cv"), strict=False)
            )
            law = _LAWS.get(cells[3].strip().lower())
            if law is None:
                fix = "Gamma, Weibull or empty"
                raise InputError("unknown law of gaps", file=where, key="pattern", value=cells[3], fix=fix)
            if rate > 0:
                yield Sends(start_s, rate, cv, law)


def _lengths(dataset: Path) -> list[tuple[float, tuple[Weights, Weights]]]:
    """Windows with lengths; empty ones, without requests, are left out."""
    rows = []
    for start, window in load_object(dataset).items():
        where = f"{dataset}: {start}"
        if not isinstance(window, Mapping) or not _is_number(start):
            raise InputError("not a window of lengths", file=where, fix="{second: {input_tokens: ..., ...}}")
        prompt, output = (_weights(window.get(side), where, side) for side in _SIDES)
        if prompt and output:
            rows.append((float(start), (prompt, output)))
    return sorted(rows, key=lambda one: one[0])


def _weights(histogram: Any, where: str, key: str) -> Weights:
    """Weights from `"{45: 0.01, 46: 0.02}"` or the same as JSON; a length of 0 counts as 1."""
    if histogram is None:
        return {}
    if isinstance(histogram, str):
        items = histogram.strip().strip("{}").split(",")
        pairs = (item.partition(":")[::2] for item in items if item.strip())
    elif isinstance(histogram, Mapping):
        pairs = ((str(tokens), str(weight)) for tokens, weight in histogram.items())
    else:
        raise InputError("must be weights of lengths", file=where, key=key, value=histogram)
    weights: Weights = {}
    for tokens, weight in pairs:
        length, share = _number(tokens.strip(" '\""), where, key), _number(weight, where, key)
        if length > MAX_TOKENS:
            raise InputError("far too long", file=where, key=key, value=tokens)
        if share > 0:
            name = str(max(round(length), 1))
            weights[name] = weights.get(name, 0.0) + share
    return weights


def compact(weights: Weights, most: int) -> Weights:
    """Approximation with at most `most` lengths: quantile groups of equal weight, each replaced by its
    mean."""
    if len(weights) <= most:
        return weights
    total, passed = math.fsum(weights.values()), 0.0
    compacted: Weights = {}
    part: list[tuple[int, float]] = []
    for tokens, weight in sorted((int(tokens), weight) for tokens, weight in weights.items()):
        part.append((tokens, weight))
        passed += weight
        if passed >= total * (len(compacted) + 1) / most * (1 - 1e-12):
            _add_mean(compacted, part)
            part = []
    _add_mean(compacted, part)
    return compacted


def _add_mean(compacted: Weights, part: Sequence[tuple[int, float]]) -> None:
    weight = math.fsum(weight for _, weight in part)
    if weight:
        mean = str(round(math.fsum(tokens * own for tokens, own in part) / weight))
        compacted[mean] = compacted.get(mean, 0.0) + weight


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _number(text: str, where: str, key: str) -> float:
    """A finite, non-negative number."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise InputError("must be a number, not negative", file=where, key=key, value=text)
    return number
