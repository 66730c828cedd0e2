"""CPU time of a run whose instance divides experts and replicates attention, over that of dense counterparts.

    python benchmarks/ranks.py [--requests N] [--pairs N] [--out FILE]

A closed loop of the same requests on eight GPUs: experts in a group of eight (EP), and attention on eight
ranks besides (EP + DP), each against the same model divided by tensor parallelism alone, and against a dense
model, all priced operator by operator. Both of a pair run right after each other, in turn first and second,
so that the machine's speed at the moment divides out; the ratio is the median over the pairs. Timed is what
a user waits for: tables of step times, simulation, summary. Prints a table and writes JSON.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from measure import pin
from provenance import provenance

from blis_py import native

native.activate()  # as the commands do, before anything of it is imported

from blis_py import api  # noqa: E402
from blis_py.metrics import summarise  # noqa: E402

SERVERS: dict[str, dict[str, Any]] = {
    "EP": {"model": "deepseek-r1", "ep": 8},
    "EP + DP": {"model": "deepseek-r1", "ep": 8, "attention_dp": 8},
}
COUNTERPARTS: dict[str, dict[str, Any]] = {
    "TP alone": {"model": "deepseek-r1"},
    "dense model": {"model": "llama-3.1-70b-fp8"},
}
COMMON: dict[str, Any] = {
    "engine": "sglang",
    "gpu": "h200",
    "tp": 8,
    "concurrency": 64,
    "prompt_tokens": 1000,
    "output_tokens": 300,
    "timeout": None,
}
MOST = 1.3
"""What such a run may cost."""
RESULTS = Path(__file__).parent / "results" / "ranks.json"


def cpu_s(settings: dict[str, Any], requests: int) -> float:
    """CPU seconds of a run."""
    gc.collect()
    began = time.process_time()
    summarise(api.build(**COMMON, **settings, num_requests=requests).run(record_steps=False).record)
    return time.process_time() - began


def pair(
    server: dict[str, Any], counterpart: dict[str, Any], requests: int, turn: int
) -> tuple[float, float]:
    """CPU seconds of both; in odd turns the counterpart runs first."""
    if turn % 2:
        dense_s = cpu_s(counterpart, requests)
        return cpu_s(server, requests), dense_s
    return cpu_s(server, requests), cpu_s(counterpart, requests)


def measure(requests: int, pairs: int) -> list[dict[str, Any]]:
    """A row for each server and counterpart."""
    for settings in (*SERVERS.values(), *COUNTERPARTS.values()):
        cpu_s(settings, 8)  # imports, surfaces of kernels
    rows = []
    for name, server in SERVERS.items():
        for other, counterpart in COUNTERPARTS.items():
            of_both = [pair(server, counterpart, requests, turn) for turn in range(pairs)]
            ratios = [one / dense for one, dense in of_both]
            rows.append(
                {
                    "server": name,
                    "counterpart": other,
                    "cpu_s": statistics.median(one for one, _ in of_both),
                    "counterpart_cpu_s": statistics.median(dense for _, dense in of_both),
                    "ratio": statistics.median(ratios),
                    "ratios": ratios,
                }
            )
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown."""
    header = ("server", "counterpart", "CPU s", "counterpart, CPU s", f"ratio (at most {MOST})")
    cells = [
        (
            row["server"],
            row["counterpart"],
            f"{row['cpu_s']:.2f}",
            f"{row['counterpart_cpu_s']:.2f}",
            f"{row['ratio']:.2f}",
        )
        for row in rows
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, ["---"] * len(header), *cells))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    core = pin()
    rows = measure(options.requests, options.pairs)
    found = {
        "most": MOST,
        "common": COMMON,
        "servers": SERVERS,
        "counterparts": COUNTERPARTS,
        "requests": options.requests,
        "rows": rows,
        "provenance": provenance(core),
    }
    options.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
