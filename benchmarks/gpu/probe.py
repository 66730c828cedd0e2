"""What this machine is, and what a launch costs on it: to be known before any other figure is read.

python benchmarks/gpu/probe.py [--device cpu] [--out DIR]
"""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Callable

import torch
from gpu_machine import output
from rows import Row
from timing import begin, capture, common_options, end

TOOLS = ("nvcc", "ncu", "compute-sanitizer", "cuobjdump", "nsys", "nvidia-smi")
LAUNCHES = 400
"""About the kernels of a decode step of an 8B model."""
_REPEATS = 20


def tools() -> Row:
    """Paths of tools, and what the compiler and the driver's tool say of themselves."""
    found = {name: shutil.which(name) or "" for name in TOOLS}
    nvcc = found["nvcc"] or "/usr/local/cuda/bin/nvcc"
    return {
        "tools": found,
        "nvcc": output(nvcc, "--version").splitlines()[-2:],
        "kernel": f"{os.uname().sysname} {os.uname().release} {os.uname().machine}",
    }


def host() -> Row:
    """Processor cores, memory, and the shared memory that processes of a test run may use."""
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    shared = shutil.disk_usage("/dev/shm").total if os.path.isdir("/dev/shm") else 0
    return {"cores": os.cpu_count(), "memory_bytes": pages * size, "shm_bytes": shared}


def device_memory() -> Row:
    free, total = torch.cuda.mem_get_info()
    return {"free_bytes": free, "total_bytes": total}


def launches() -> Row:
    """Host time of one launch, of a whole graph's, and the span on the GPU around a graph that does nothing.

    That span is in every GPU time of a captured step, and what it is longer than its work.
    """
    x = torch.zeros(1, device="cuda")

    def many() -> None:
        for _ in range(LAUNCHES):
            x.add_(1)

    def one() -> None:
        x.add_(1)

    graphs = {1: capture(one), LAUNCHES: capture(many)}
    row: Row = {"launches": LAUNCHES, "launch_us": _host_us(many) / LAUNCHES}
    for count, graph in graphs.items():
        row[f"graph_{count}_host_us"] = _host_us(graph.replay)
        row[f"graph_{count}_span_us"] = _span_us(graph.replay)
    row["nothing_span_us"] = _span_us(lambda: None)
    return row


def copies() -> Row:
    """Span on the GPU, and host time, of the small copy that every step sends."""
    here = torch.zeros(8192, dtype=torch.uint8, pin_memory=True)
    there = torch.zeros(8192, dtype=torch.uint8, device="cuda")

    def send() -> None:
        there.copy_(here, non_blocking=True)

    def fetch() -> None:
        there[:256].cpu()

    return {"send_span_us": _span_us(send), "send_host_us": _host_us(send), "fetch_host_us": _host_us(fetch)}


def triton_compile() -> Row:
    """Seconds to compile and load one small kernel, from the cache if it is there."""
    from engine.kernels.norm import rms_norm

    x = torch.randn(4, 64, device="cuda", dtype=torch.bfloat16)
    began_s = time.perf_counter()
    rms_norm(x, x[0], 1e-6)
    torch.cuda.synchronize()
    return {"first_call_s": time.perf_counter() - began_s}


def _host_us(run: Callable[[], object]) -> float:
    """Median time until the call returns, the GPU being idle when it begins."""
    times = []
    for _ in range(_REPEATS):
        torch.cuda.synchronize()
        began_ns = time.perf_counter_ns()
        run()
        times.append((time.perf_counter_ns() - began_ns) / 1e3)
    return statistics.median(times)


def _span_us(run: Callable[[], object]) -> float:
    """Median time between two events around it, the GPU being idle when it begins."""
    spans = []
    for _ in range(_REPEATS):
        torch.cuda.synchronize()
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        run()
        after.record()
        after.synchronize()
        spans.append(before.elapsed_time(after) * 1e3)
    return statistics.median(spans)


def main() -> None:
    options = common_options(__doc__.splitlines()[0]).parse_args()
    rows = begin(options, "probe")
    on_gpu = (device_memory, launches, copies, triton_compile)
    for probe in (tools, host, *(on_gpu if options.device == "cuda" else ())):
        print(probe.__name__, rows.once(probe.__name__, probe), flush=True)
    end(options, rows)


if __name__ == "__main__":
    main()
