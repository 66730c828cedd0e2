"""What this GPU's memory and tensor cores give at best: the denominators of every other GPU figure.

python benchmarks/gpu/bandwidth.py [--out DIR]
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import torch
from provenance import provenance
from timing import Timing, require_cuda, time_calls

BUFFER_BYTES = 2 << 30
GEMM_SIZE = 8192


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="folder for bandwidth.json")
    options = parser.parse_args()
    require_cuda("benchmarks/gpu/bandwidth.py")
    copy, read, gemm = time_copy(), time_read(), time_gemm()
    rows = [
        {"name": "copy", "gigabytes_per_s": 2 * BUFFER_BYTES / copy.median_s / 1e9, **asdict(copy)},
        {"name": "read", "gigabytes_per_s": BUFFER_BYTES / read.median_s / 1e9, **asdict(read)},
        {"name": "bf16 gemm", "teraflops": 2 * GEMM_SIZE**3 / gemm.median_s / 1e12, **asdict(gemm)},
    ]
    print(f"copy      {rows[0]['gigabytes_per_s']:8.0f} GB/s, read and written")
    print(f"read      {rows[1]['gigabytes_per_s']:8.0f} GB/s")
    print(f"bf16 GEMM {rows[2]['teraflops']:8.0f} TFLOP/s")
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"provenance": provenance(), "rows": rows}, indent=1)
        (options.out / "bandwidth.json").write_text(text + "\n", encoding="utf-8")


def copy_bandwidth() -> float:
    """Bytes per second of a large copy on the device, read plus written."""
    return 2 * BUFFER_BYTES / time_copy().median_s


def read_bandwidth() -> float:
    """Bytes per second of a large sum: what a kernel that only reads can reach."""
    return BUFFER_BYTES / time_read().median_s


def gemm_flops() -> float:
    """Floating-point operations per second of a large bf16 matrix product."""
    return 2 * GEMM_SIZE**3 / time_gemm().median_s


def time_copy() -> Timing:
    source = torch.randint(0, 100, (BUFFER_BYTES // 4,), dtype=torch.int32, device="cuda")
    target = torch.empty_like(source)
    return time_calls([lambda: target.copy_(source)])


def time_read() -> Timing:
    source = torch.randn(BUFFER_BYTES // 4, device="cuda")
    return time_calls([source.sum])


def time_gemm() -> Timing:
    """Random operands: matrix products of zeros run faster than real ones."""
    a, b = torch.randn(2, GEMM_SIZE, GEMM_SIZE, device="cuda", dtype=torch.bfloat16)
    return time_calls([lambda: a @ b])


if __name__ == "__main__":
    main()
