"""Time that further tokens of a prompt take: TTFT of the longest prompts less that of the shortest ones.

Of each configuration (engine, version, model, format, GPU, division, output length), at the lowest
concurrency with several lengths, up to `MOST_IN_FLIGHT`. What both have in common, the front end above all,
drops out; waiting for the prompts of other requests stays in, as no point has a single request in flight.
Servers that let prompts wait for others by a flag are a configuration of their own (InferenceMAX sets
`batch_wait_timeout_iters` of TensorRT-LLM for some lengths only): up to 20 decode steps are no time of a
prompt's tokens. Nor is the compiling of a cold server, which is left out.

Repeated runs of the same points differ, and so do two lengths by chance: a difference below twice its
standard error says nothing of the time of a token. Such pairs are counted, and left out in a second line. No
prediction enters either choice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from math import hypot, sqrt
from typing import NamedTuple

import numpy as np
from points import Point

MOST_IN_FLIGHT = 4
NEAR = 0.15
SURE = 2.0
"""Standard errors that a difference needs."""
_Priced = tuple[Point, float]
"""A point, and the error of its mean TTFT: predicted over measured minus 1."""


class Pair(NamedTuple):
    """Two prompt lengths of one configuration."""

    engine: str
    error: float
    """Of the difference between their TTFTs: predicted over measured minus 1."""
    sure: bool
    """Whether the measured difference is beyond what repeated runs differ by."""


def pairs(priced: Iterable[_Priced]) -> Iterator[Pair]:
    """One for each configuration whose longer prompts took longer."""
    groups: dict[tuple[object, ...], list[_Priced]] = defaultdict(list)
    for point, error in priced:
        if point.concurrency <= MOST_IN_FLIGHT and not point.waits_for_kernels:
            *same, _ = point.alike
            same.remove(point.prompt_tokens)
            waits = point.settings().get("prompt_wait_steps", 0)
            groups[point.source, point.version, waits, *same].append((point, error))
    spread = _spread(groups.values())
    for group in groups.values():
        yield from _pair(group, spread)


def _spread(groups: Iterable[Sequence[_Priced]]) -> float:
    """Standard deviation of logarithms of mean TTFTs among runs of the same point, pooled; 0 without any."""
    runs: dict[tuple[object, ...], list[float]] = defaultdict(list)
    for number, group in enumerate(groups):
        for point, _ in group:
            runs[number, *point.alike].append(np.log(point.measured["ttft.mean"]))
    squares = sum(len(logs) * np.var(logs) for logs in runs.values())
    return sqrt(squares / max(sum(len(logs) - 1 for logs in runs.values()), 1))


def _pair(group: Sequence[_Priced], spread: float) -> Iterator[Pair]:
    """
    Args:
        spread: of the logarithm of a run's mean TTFT.
    """
    by_load: dict[int, dict[int, list[_Priced]]] = defaultdict(lambda: defaultdict(list))
    for point, error in group:
        by_load[point.concurrency][point.prompt_tokens].append((point, error))
    for _, by_length in sorted(by_load.items()):
        if len(by_length) > 1:
            short, long = by_length[min(by_length)], by_length[max(by_length)]
            measured_ms = _mean_ttft_ms(long) - _mean_ttft_ms(short)
            predicted_ms = _mean_ttft_ms(long, predicted=True) - _mean_ttft_ms(short, predicted=True)
            if measured_ms > 0:
                error_ms = spread * hypot(*(_mean_ttft_ms(runs) / sqrt(len(runs)) for runs in (short, long)))
                error = predicted_ms / measured_ms - 1.0
                yield Pair(group[0][0].engine, error, measured_ms >= SURE * error_ms)
            return


def _mean_ttft_ms(runs: Sequence[_Priced], predicted: bool = False) -> float:
    ttft_ms = [point.measured["ttft.mean"] * (1.0 + error * predicted) for point, error in runs]
    return float(np.mean(ttft_ms))


def table(priced: Iterable[_Priced]) -> list[str]:
    """Lines of the accuracy page."""
    found: dict[str, list[float]] = defaultdict(list)
    for engine, error, sure in pairs(priced):
        found["all"].append(error)
        if sure:
            found["beyond twice the standard error"].append(error)
            found[engine].append(error)
    lines = ["| engine | pairs | median | bias | ≤ 15 |", "|---|---:|---:|---:|---:|"]
    for name, errors in sorted(found.items()):
        size = np.abs(errors)
        middle, bias, near = np.median(size), np.median(errors), np.mean(size <= NEAR)
        lines.append(
            f"| {name} | {len(errors)} | {100 * middle:.1f} | {100 * bias:+.1f} | {100 * near:.0f} |"
        )
    return lines
