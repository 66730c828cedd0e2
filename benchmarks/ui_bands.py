"""Coverage of the bands that the page's samples come with: does the whole run lie in them?

    python benchmarks/ui_bands.py --runs 50 --seed 1 [--out FILE [--seconds 240]]

Random configurations (lengths, bursts, bundled workloads, GPUs, instances, schedulers), from 40 % to 150 % of
what a burst of requests is served at, so that many are near saturation and some beyond it. `--out` keeps a
line of JSON per configuration, and does not run again what is there; `--seconds` begins none later.
`--results` keeps the coverage by seed (benchmarks/results/ui_bands.json).
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from blis_py import native

native.activate()

import blis_py as blis  # noqa: E402
from blis_py.errors import InputError  # noqa: E402
from blis_py.ui import sample as sampling  # noqa: E402

_SPECS = ("chat", "code", "mixed-slo", "bursty", "rag", "batch")
_UTILISATIONS = (0.4, 0.7, 0.9, 1.0, 1.1, 1.25, 1.5)
_PROBE = 600
"""Requests of the run that measures what a cluster can serve."""


def configurations(seed: int) -> Iterator[dict[str, Any]]:
    """Random settings of runs."""
    rng = random.Random(seed)
    while True:
        settings: dict[str, Any] = {
            "model": rng.choice(("llama-3.1-8b", "qwen3-14b")),
            "gpu": rng.choice(("h100", "a100-80", "h200")),
            "num_instances": rng.choice((1, 2, 4, 8)),
            "scheduler": rng.choice(("fcfs", "priority-fcfs", "sjf")),
            "routing_policy": rng.choice(("round-robin", "least-loaded", "weighted")),
            "num_requests": rng.choice((4000, 6000, 10_000)),
            "seed": rng.randrange(10_000),
        }
        if rng.random() < 0.5:
            settings["workload_spec"] = rng.choice(_SPECS)
        else:
            settings |= {
                "prompt_tokens": rng.choice((128, 512, 2000)),
                "output_tokens": rng.choice((32, 128, 512)),
            }
            settings |= {"arrival": "gamma", "cv": rng.choice((1.0, 2.0, 4.0))}
        yield settings | {"utilisation": rng.choice(_UTILISATIONS)}


def measured(settings: dict[str, Any]) -> dict[str, Any]:
    """Sample, bands and whole run of one configuration."""
    settings = dict(settings)
    utilisation = settings.pop("utilisation")
    probe = blis.run(**{**settings, "num_requests": _PROBE, "rate": 10_000.0, "drain": True}).summary
    settings["rate"] = utilisation * probe["cluster"]["throughput"]["requests_per_s"]
    simulation = blis.build(**settings)
    if not sampling.divisible(simulation):
        raise InputError("too few requests")
    run = sampling.runner(None)
    windows: list[Any] = []

    def kept(part: Any) -> Any:
        windows.append(run(part))
        return windows[-1]

    part = sampling.sample(simulation, kept)
    whole = simulation.run(record_steps=False).summary
    figures = {}
    for path, (low, high) in part.bands.items():
        value = sampling.at(whole, path)
        own = [sampling.at(each.summary, path) for each in windows]
        figures[path] = {"whole": value, "windows": own, "low": low, "high": high, "in": low <= value <= high}
    return {
        "settings": {**settings, "utilisation": utilisation},
        "requests": len(simulation.table),
        "growth": [sampling.growth(each) for each in windows],
        "verdict": whole["load"]["verdict"],
        "busy": whole["cluster"]["busy_pct"],
        "figures": figures,
    }


def main() -> None:
    """Print how many of the runs lie in the band of each figure, and in all bands."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    options = parser.parse_args()
    until_s = time.monotonic() + options.seconds
    lines = options.out.read_text().splitlines() if options.out and options.out.exists() else []
    tried = [json.loads(line) for line in lines]
    for index, settings in enumerate(islice(configurations(options.seed), 2 * options.runs)):
        if sum("figures" in row for row in tried) == options.runs or time.monotonic() > until_s:
            break
        if index < len(tried):
            continue
        try:
            tried.append(measured(settings))
        except InputError as error:
            tried.append({"settings": settings, "refused": str(error)})
        if options.out:
            with options.out.open("a") as file:
                file.write(json.dumps(rounded(tried[-1])) + "\n")
    found = {"seed": options.seed, **coverage([row for row in tried if "figures" in row])}
    print(json.dumps(found, indent=1))
    if options.results:
        known = json.loads(options.results.read_text()) if options.results.exists() else []
        others = [one for one in known if one["seed"] != options.seed]
        options.results.write_text(json.dumps([*others, found], indent=1) + "\n")


def rounded(value: Any) -> Any:
    """Fractions to six digits."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def coverage(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How many of the runs lie in each band, and in all of them; widths are upper ends over lower ones."""
    found: dict[str, Any] = {"configurations": len(rows), "figures": {}}
    for path in sampling.BANDED:
        own = [row["figures"][path] for row in rows if path in row["figures"]]
        widths = sorted(one["high"] / one["low"] for one in own)
        quartiles = [round(widths[len(own) * quarter // 4], 2) for quarter in (1, 2, 3)]
        found["figures"][path] = {"inside": sum(one["in"] for one in own), "width_quartiles": quartiles}
    near = [row for row in rows if row["busy"] > 85 and row["verdict"] != "saturated"]
    saturated = [row for row in rows if row["verdict"] == "saturated"]
    for name, kind in (("all", rows), ("above 85 % busy", near), ("saturated", saturated)):
        inside = sum(all(one["in"] for one in row["figures"].values()) for row in kind)
        found[name] = {"configurations": len(kind), "in every band": inside}
    return found


if __name__ == "__main__":
    main()
