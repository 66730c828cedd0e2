"""Request by request against the peer's published results of the bench trace `a_1k_rate10`.

    python benchmarks/parity.py

Replays the trace through `blis replay` with the peer's own flags and prints, per metric, how far the worst
request is off. Exit code 1 if a request is off by more than 0.1 % and more than 50 µs, 2 without the trace.
"""

from __future__ import annotations

import csv
import gzip
import json
import math
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from measure import ROOT, run

TRACE = "../shared/data/bench_traces/a_1k_rate10"
METRICS = ("ttft_ms", "itl_ms", "e2e_ms", "scheduling_delay_ms")
"""`itl_ms` is the mean of a request, as the peer reports it."""
TOLERATED_MS = 0.05
TOLERATED_SHARE = 0.001

Row = dict[str, float]
Requests = dict[str, Row]
"""Request id -> metric -> ms."""


@dataclass(frozen=True, slots=True)
class Worst:
    """The largest differences of one metric, and how many requests are beyond what is tolerated."""

    metric: str
    absolute_ms: float
    relative: float
    request_id: str
    """The request with the largest absolute difference."""
    beyond: int


def main() -> int:
    files = [f"{TRACE}{end}" for end in (".yaml", ".csv.gz", ".peer.csv.gz")]
    for file in files:
        if not (ROOT / file).exists():
            print(f"{file} is not there", file=sys.stderr)
            return 2
    ours, theirs = replayed(files[0], files[1]), published(ROOT / files[2])
    if ours.keys() != theirs.keys():
        print(f"{len(ours.keys() ^ theirs.keys())} requests are in one result only", file=sys.stderr)
        return 1
    found = [worst(metric, ours, theirs) for metric in METRICS]
    print("\n".join(table(found, len(theirs))))
    return int(any(metric.beyond for metric in found))


def replayed(header: str, data: str) -> Requests:
    with tempfile.TemporaryDirectory() as folder:
        metrics = Path(folder) / "metrics.json"
        command = [sys.executable, "-m", "blis_py", "replay", "--trace-header", header, "--trace-data", data]
        command += ["--model", "qwen/qwen3-14b", "--hardware", "H100", "--tp", "1", "--num-instances", "1"]
        run([*command, "--total-kv-blocks", "15909", "--metrics-path", str(metrics)])
        requests = json.loads(metrics.read_text(encoding="utf-8"))["requests"]
    return {row["requestID"]: {metric: float(row[metric]) for metric in METRICS} for row in requests}


def published(file: Path) -> Requests:
    with gzip.open(file, "rt", encoding="utf-8", newline="") as rows:
        return {
            row["request_id"]: {metric: float(row[metric]) for metric in METRICS}
            for row in csv.DictReader(rows)
        }


def worst(metric: str, ours: Requests, theirs: Requests) -> Worst:
    off_ms = {name: abs(ours[name][metric] - row[metric]) for name, row in theirs.items()}
    share = {name: _relative(off, theirs[name][metric]) for name, off in off_ms.items()}
    beyond = sum(off > TOLERATED_MS and share[name] > TOLERATED_SHARE for name, off in off_ms.items())
    furthest = max(off_ms, key=lambda name: off_ms[name])
    return Worst(metric, off_ms[furthest], max(share.values()), furthest, beyond)


def _relative(off: float, reference: float) -> float:
    if off == 0:
        return 0.0
    return off / reference if reference else math.inf


def table(found: Iterable[Worst], requests: int) -> list[str]:
    lines = [
        f"| {requests:,} requests | most off, µs | most off, % | by request | beyond tolerance |",
        "| --- | --- | --- | --- | --- |",
    ]
    for metric in found:
        figures = f"{metric.absolute_ms * 1000:.6g} | {metric.relative * 100:.6g}"
        lines.append(f"| {metric.metric} | {figures} | {metric.request_id} | {metric.beyond} |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
