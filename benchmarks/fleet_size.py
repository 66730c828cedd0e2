"""CPU time of a run of so many requests against the number of instances: flat per instance means linear cost.

    python benchmarks/fleet_size.py [--instances N...] [--requests N] [--repeat N] [--out FILE]

Prints a table and writes JSON. Timed are the simulation, with its instances made at the GPU's datasheet
memory, the summary, which has the inter-token latencies of each instance, and its JSON text.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from measure import calibrate, pin
from provenance import provenance
from setting import build

from blis_py.metrics import summarise

INSTANCES = (500, 1000, 2000, 4000, 8000)
REQUESTS = 10_000
OUTPUT_TOKENS = 128
RATE_PER_S = 2000.0
PARTS = ("simulation", "summary", "json")
RESULTS = Path(__file__).parent / "results" / "fleet_size.json"

Row = dict[str, float]


def row(instances: int, requests: int) -> Row:
    """CPU seconds of each part."""
    simulation = build(OUTPUT_TOKENS, RATE_PER_S, requests, instances)
    gc.collect()
    times = [time.process_time()]
    result = simulation.run(record_steps=False)
    times.append(time.process_time())
    numbers = summarise(result.record)
    times.append(time.process_time())
    json.dumps(numbers, indent=2)
    times.append(time.process_time())
    spent = {name: after - before for name, before, after in zip(PARTS, times, times[1:], strict=False)}
    return {"instances": instances, "requests": requests, **spent, "all": times[-1] - times[0]}


def measure(sizes: Sequence[int], requests: int, repeat: int) -> list[Row]:
    """A row for each size, the quickest of some, and what each instance more than before cost."""
    row(sizes[0], requests)  # imports
    rows: list[Row] = []
    for size in sizes:
        rows.append(min((row(size, requests) for _ in range(repeat)), key=lambda each: each["all"]))
        if len(rows) > 1:
            more = rows[-1]["instances"] - rows[-2]["instances"]
            rows[-1]["ms_per_instance"] = 1000 * (rows[-1]["all"] - rows[-2]["all"]) / more
    return rows


def table(rows: Sequence[Row]) -> str:
    """Markdown."""
    header = ("instances", *(f"{name}, CPU s" for name in (*PARTS, "all")), "ms for each instance more")
    cells = [
        (
            f"{each['instances']:,}",
            *(f"{each[name]:.2f}" for name in (*PARTS, "all")),
            f"{each['ms_per_instance']:.2f}" if "ms_per_instance" in each else "",
        )
        for each in rows
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, ["---"] * len(header), *cells))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--instances", type=int, nargs="+", default=INSTANCES)
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--repeat", type=int, default=3, help="the quickest of so many runs counts")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    core = pin()
    before = calibrate()
    rows = measure(options.instances, options.requests, options.repeat)
    found = {"rows": rows, "calibration_ns": (before + calibrate()) / 2, "provenance": provenance(core)}
    options.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
