"""CPU time per request against the number of requests, the output length and the batch size.

    python benchmarks/curves.py [--quick] [--repeat N] [--picture FILE]

Prints JSON. Only the simulation is timed: no start-up, no reading, no summary.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from capacity import saturation_rate
from measure import pin
from setting import build, mean_decode_batch, timed

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COUNTS = (10_000, 20_000, 50_000, 100_000, 200_000)
OUTPUT_TOKENS = (64, 128, 256, 512, 1024, 2048)
LOADS = (0.05, 0.1, 0.2, 0.4, 0.6, 0.85)
STANDARD_OUTPUT_TOKENS = 256
STANDARD_LOAD = 0.6
STANDARD_COUNT = 10_000
INSTANCES_BY_COUNT = 4

Point = dict[str, float]


def point(
    output_tokens: int, load: float, capacity: float, count: int, repeat: int, instances: int = 1
) -> Point:
    run = timed(build(output_tokens, load * capacity * instances, count, instances), repeat=repeat)
    return {
        "requests": count,
        "instances": instances,
        "output_tokens": output_tokens,
        "load": load,
        "mean_decode_batch": mean_decode_batch(run.record),
        "cpu_s": run.cpu_s,
        "calibration_ns": run.calibration_ns,
        "turns_per_request": run.cpu_turns / count,
    }


def measure(quick: bool, repeat: int) -> dict[str, Any]:
    """The points of the three curves, and the calibration their picture is drawn at."""
    counts = (200, 400) if quick else COUNTS
    outputs = (64, 256) if quick else OUTPUT_TOKENS
    loads = (0.2, 0.4) if quick else LOADS
    count = counts[0] if quick else STANDARD_COUNT
    capacity = {output: saturation_rate(output) for output in sorted({*outputs, STANDARD_OUTPUT_TOKENS})}
    usual, usual_capacity = STANDARD_OUTPUT_TOKENS, capacity[STANDARD_OUTPUT_TOKENS]
    curves = {
        "requests": [
            point(usual, STANDARD_LOAD, usual_capacity, many, repeat, INSTANCES_BY_COUNT) for many in counts
        ],
        "output_tokens": [
            point(output, STANDARD_LOAD, capacity[output], count, repeat) for output in outputs
        ],
        "mean_decode_batch": [point(usual, load, usual_capacity, count, repeat) for load in loads],
    }
    points = [point for curve in curves.values() for point in curve]
    return {
        "calibration_ns": statistics.median(point["calibration_ns"] for point in points),
        "saturation_rate_per_s": {str(output): rate for output, rate in capacity.items()},
        "curves": curves,
    }


def draw(measured: dict[str, Any], target: Path) -> None:
    """Three panels of CPU µs per request, every point at the same calibration; zero is on every axis."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False})
    figure, panels = plt.subplots(1, 3, figsize=(12, 3.8), sharey=True, layout="constrained")
    scale = measured["calibration_ns"] / 1000
    titles = {
        "requests": ("requests", "Number of requests: flat means linear cost"),
        "output_tokens": ("output tokens per request", "Output length, at 60 % of capacity"),
        "mean_decode_batch": ("mean decode batch", "Batch size, load going from 5 % to 85 %"),
    }
    tallest = 0.0
    for axes, (name, (label, title)) in zip(panels, titles.items(), strict=True):
        xs = [point[name] for point in measured["curves"][name]]
        ys = [point["turns_per_request"] * scale for point in measured["curves"][name]]
        tallest = max(tallest, *ys)
        axes.plot(xs, ys, "o-", color="#1f77b4", label="measured")
        if name == "output_tokens":
            grid = np.geomspace(xs[0], xs[-1], 100)
            axes.plot(grid, ys[0] * grid / xs[0], "--", color="#888888", label="proportional to tokens")
            axes.legend(loc="lower right")
        _finish(axes, xs, label, title)
    panels[0].set_ylabel("CPU µs per request")
    panels[0].set_ylim(0, 1.25 * tallest)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=120)
    plt.close(figure)


def _finish(axes: Axes, xs: Iterable[float], label: str, title: str) -> None:
    axes.set_xscale("log")
    ticks = [round(x) for x in xs]
    axes.set_xticks(ticks, [f"{tick // 1000}k" if tick >= 10_000 else str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel(label)
    axes.set_title(title, fontsize=10, loc="left")
    axes.grid(axis="y", color="#e4e4e4")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two small points per curve")
    parser.add_argument("--repeat", type=int, default=3, help="the quickest of so many runs counts")
    parser.add_argument("--picture", type=Path, help="where to draw them")
    options = parser.parse_args()
    pin()
    measured = measure(options.quick, options.repeat)
    if options.picture is not None:
        draw(measured, options.picture)
    print(json.dumps(measured, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
