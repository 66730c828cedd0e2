"""Timing on the device: CUDA events, one graph per input set, inputs rotated past the cache, medians.

On a CPU, for a look at the code path, calls are timed by the host's clock, a few times.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from gpu_machine import provenance, state
from rows import Rows

WARM_UPS = 5
_CPU_REPEATS = 2


@dataclass(frozen=True)
class Timing:
    """Seconds per call."""

    median_s: float
    samples_s: list[float]

    @classmethod
    def of(cls, samples_s: list[float]) -> Timing:
        return cls(statistics.median(samples_s), samples_s)


def common_options(description: str) -> argparse.ArgumentParser:
    """A parser with what every script of this folder takes."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--device",
        choices=("cuda", "cpu"),
        default="cuda",
        help="cpu: a look at the code path, with small cases; it measures nothing worth keeping",
    )
    parser.add_argument("--out", type=Path, help="folder for results.jsonl, to which rows are appended")
    return parser


def begin(options: argparse.Namespace, script: str) -> Rows:
    """The rows of a script that is about to measure; refuses a GPU that is not there with exit code 2."""
    if options.device == "cuda":
        require_cuda(f"benchmarks/gpu/{script}.py")
    return Rows(options.out, script, provenance(options.device))


def end(options: argparse.Namespace, rows: Rows) -> None:
    """All has been measured that could be; exit code 1 where something could not."""
    if options.device == "cuda":
        rows.after(state())
    if rows.failures:
        sys.exit(f"{rows.failures} rows could not be measured")


def require_cuda(script: str) -> None:
    """Refuse with a clear line and exit code 2 where there is nothing to measure."""
    if not torch.cuda.is_available():
        print(f"{script} measures a GPU, and there is no CUDA device here", file=sys.stderr)
        sys.exit(2)


def copies_beyond_cache(bytes_per_call: int, device: str = "cuda") -> int:
    """How many input sets to rotate so that none is still in the level-2 cache when its turn comes."""
    if device == "cpu":
        return 1
    l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    return max(1, -(-4 * l2_bytes // bytes_per_call))


def time_calls(calls: Sequence[Callable[[], object]], repeats: int = 30, device: str = "cuda") -> Timing:
    """Time the same work on several input sets, in turn.

    Each call is captured in a CUDA graph, so that the host's launches are not timed.
    """
    if device == "cpu":
        return Timing.of([_seconds(calls[0]) for _ in range(1 + _CPU_REPEATS)][1:])
    graphs = [capture(call) for call in calls]
    events = []
    for turn in range(WARM_UPS + repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graphs[turn % len(graphs)].replay()
        end.record()
        events.append((start, end))
    torch.cuda.synchronize()
    return Timing.of([start.elapsed_time(end) / 1e3 for start, end in events[WARM_UPS:]])


def capture(call: Callable[[], object], warm_ups: int = 2) -> torch.cuda.CUDAGraph:
    """The work of a call as a CUDA graph, after so many calls that warm up."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(warm_ups):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


def _seconds(call: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    call()
    return time.perf_counter() - began_s
