"""Timing on the device: CUDA events, one graph per input set, inputs rotated past the cache, medians."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

WARM_UPS = 5


@dataclass(frozen=True)
class Timing:
    """Seconds per call."""

    median_s: float
    samples_s: list[float]


def require_cuda(script: str) -> None:
    """Refuse with a clear line and exit code 2 where there is nothing to measure."""
    if not torch.cuda.is_available():
        print(f"{script} measures a GPU, and there is no CUDA device here", file=sys.stderr)
        sys.exit(2)


def copies_beyond_cache(bytes_per_call: int) -> int:
    """How many input sets to rotate so that none is still in the level-2 cache when its turn comes."""
    l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    return max(1, -(-4 * l2_bytes // bytes_per_call))


def time_calls(calls: Sequence[Callable[[], object]], repeats: int = 30) -> Timing:
    """Time the same work on several input sets, in turn.

    Each call is captured in a CUDA graph, so that the host's launches are not timed.
    """
    graphs = [_capture(call) for call in calls]
    events = []
    for turn in range(WARM_UPS + repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graphs[turn % len(graphs)].replay()
        end.record()
        events.append((start, end))
    torch.cuda.synchronize()
    samples = [start.elapsed_time(end) / 1e3 for start, end in events[WARM_UPS:]]
    return Timing(statistics.median(samples), samples)


def _capture(call: Callable[[], object]) -> torch.cuda.CUDAGraph:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph
