"""How well closed loops that others published in passing are predicted (pull requests, issues): one figure
each, of bundled models.

    python benchmarks/accuracy/closed_points.py ../shared/data/open_loop_runs
"""

from __future__ import annotations

import argparse
import csv
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from points import figures_ms

from blis_py.api import Simulation, build
from blis_py.requests.table import RequestTable

_FLAGS = "blis_flags (what the source says of server and client)"
_MEASURED = {"ttft_ms": "ttft.mean", "tpot_ms": "tpot.mean"}
_SERVER = ("engine", "model", "gpu")
_NUMBERS = ("tp", "ep", "concurrency", "num-requests")


def errors(folder: Path) -> Iterator[tuple[str, dict[str, float]]]:
    """Name of each point, and predicted over measured, minus one, of the means it has."""
    with (folder / "closed_points.csv").open() as file:
        for row in csv.DictReader(file):
            words = shlex.split(row[_FLAGS])
            flags = dict(zip(words[::2], words[1::2], strict=True))
            measured = {name: float(row[key]) for key, name in _MEASURED.items() if row[key]}
            if "--model" in flags and measured:
                found = figures_ms(simulation(flags), measured)
                yield row["id"], {name: found[name] / value - 1 for name, value in measured.items()}


def simulation(flags: dict[str, str]) -> Simulation:
    """Requests of the stated lengths, all there from the beginning: a closed loop admits them."""
    settings: dict[str, Any] = {key: flags[f"--{key}"] for key in _SERVER}
    settings |= {key.replace("-", "_"): int(flags[f"--{key}"]) for key in _NUMBERS if f"--{key}" in flags}
    count = settings["num_requests"]
    lengths = (np.full(count, int(flags[f"--random-{side}-len"])) for side in ("input", "output"))
    table = RequestTable.build(np.zeros(count, dtype=np.int64), *lengths)
    return replace(build(**settings, prefix_cache="none", timeout=None), table=table)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    for name, found in errors(parser.parse_args().folder):
        print(
            f"{name:32}" + "".join(f"  {metric} {error:+.1%}" for metric, error in found.items()), flush=True
        )


if __name__ == "__main__":
    main()
