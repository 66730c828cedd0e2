"""Time that a cold server compiles kernels at their first use, learned on some points and tested on others.

    python benchmarks/accuracy/cold_servers.py ../shared/data

SGLang compiles FlashInfer's kernels of prompts that go on, for a latent cache on Blackwell, when the first
prompt is computed in pieces. The points are those of `Point.cold`, chosen without looking at a latency, whose
first wave of requests has more tokens than a step. A point's mean TTFT grows in proportion to the compiling
time, so each gives one; the median of those with 4-bit weights under version 0.5.5 is learned. The others are
of another version, or of 8-bit weights, another width, another size of the chunks and other numbers of
requests.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from blis_py import native

native.activate()  # ahead of the modules that it replaces

from point_sets import points_of  # noqa: E402
from points import Point, figures_ms  # noqa: E402


@dataclass(frozen=True)
class Wait:
    """A cold point that is predicted to wait."""

    point: Point
    warm_ms: float
    """Mean TTFT with all kernels compiled."""
    cold_ms: float
    known_ms: float
    """Compiling time of the preset, with which `cold_ms` was predicted."""

    @property
    def compile_ms(self) -> float:
        """Compiling time that its own mean TTFT shows."""
        share = (self.cold_ms - self.warm_ms) / self.known_ms
        return (self.point.measured["ttft.mean"] - self.warm_ms) / share

    @property
    def learned_on(self) -> bool:
        return self.point.precision == "fp4" and self.point.version.startswith("0.5.5")


def waits(points: list[Point]) -> Iterator[Wait]:
    """Points without the same measurement under a second name."""
    seen = set()
    for point in points:
        key = *point.alike, point.version, *(f"{value:.3g}" for value in point.measured.values())
        if not point.refused and key not in seen and point.waits_for_kernels:
            seen.add(key)
            warm_ms, cold_ms = (_ttft_ms(p) for p in (replace(point, cold=False), point))
            if cold_ms > warm_ms:
                known_ms = point.simulation().config.latency.kernel_compile_ms
                yield Wait(point, warm_ms, cold_ms, known_ms)


def _ttft_ms(point: Point) -> float:
    return figures_ms(point.simulation(), ["ttft.mean"])["ttft.mean"]


def line(title: str, of: list[Wait]) -> str:
    errors = [
        [100 * abs(ms / wait.point.measured["ttft.mean"] - 1) for ms in (wait.warm_ms, wait.cold_ms)]
        for wait in of
    ]
    warm, cold = np.mean(errors, axis=0)
    seconds = np.median([wait.compile_ms for wait in of]) / 1e3
    return f"| {title} | {len(of)} | {seconds:.1f} | {warm:.1f} | {cold:.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path)
    found = list(waits(points_of(parser.parse_args().data)))
    print("| points | number | median of the compiling times, s | TTFT, warm | TTFT, cold |")
    print("|---|---:|---:|---:|---:|")
    print(line("learned on", [wait for wait in found if wait.learned_on]))
    groups: dict[str, list[Wait]] = defaultdict(list)
    for wait in found:
        if not wait.learned_on:
            point = wait.point
            groups[f"{point.precision}, SGLang {point.version}, TP{point.gpus}"].append(wait)
    for title, same in sorted(groups.items()):
        print(line(title, same))


if __name__ == "__main__":
    main()
