"""What this GPU's memory and tensor cores give at best: the denominators of every other GPU figure.

python benchmarks/gpu/bandwidth.py [--out DIR]
"""

from __future__ import annotations

from dataclasses import asdict

import torch
from timing import Timing, begin, common_options, end, time_calls

BUFFER_BYTES = {"cuda": 2 << 30, "cpu": 16 << 20}
GEMM_SIZE = {"cuda": 8192, "cpu": 256}


def main() -> None:
    options = common_options(__doc__.splitlines()[0]).parse_args()
    rows, device = begin(options, "bandwidth"), options.device
    copy = rows.once("copy", lambda: _memory(2, device, time_copy(device)))
    read = rows.once("read", lambda: _memory(1, device, time_read(device)))
    gemm = rows.once("bf16 gemm", lambda: _gemm(device, time_gemm(device)))
    for row, unit in ((copy, "gigabytes_per_s"), (read, "gigabytes_per_s"), (gemm, "teraflops")):
        if row is not None:
            print(f"{row['key']:10}{row[unit]:10.4g} {unit}")
    end(options, rows)


def _memory(passes: int, device: str, timing: Timing) -> dict[str, object]:
    moved = passes * BUFFER_BYTES[device]
    return {"gigabytes_per_s": moved / timing.median_s / 1e9, **asdict(timing)}


def _gemm(device: str, timing: Timing) -> dict[str, object]:
    return {"teraflops": 2 * GEMM_SIZE[device] ** 3 / timing.median_s / 1e12, **asdict(timing)}


def copy_bandwidth(device: str = "cuda") -> float:
    """Bytes per second of a large copy on the device, read plus written."""
    return 2 * BUFFER_BYTES[device] / time_copy(device).median_s


def read_bandwidth(device: str = "cuda") -> float:
    """Bytes per second of a large sum: what a kernel that only reads can reach."""
    return BUFFER_BYTES[device] / time_read(device).median_s


def gemm_flops(device: str = "cuda") -> float:
    """Floating-point operations per second of a large bf16 matrix product."""
    return 2 * GEMM_SIZE[device] ** 3 / time_gemm(device).median_s


def time_copy(device: str) -> Timing:
    source = torch.randint(0, 100, (BUFFER_BYTES[device] // 4,), dtype=torch.int32, device=device)
    target = torch.empty_like(source)
    return time_calls([lambda: target.copy_(source)], device=device)


def time_read(device: str) -> Timing:
    source = torch.randn(BUFFER_BYTES[device] // 4, device=device)
    return time_calls([source.sum], device=device)


def time_gemm(device: str) -> Timing:
    """Random operands: matrix products of zeros run faster than real ones."""
    size = GEMM_SIZE[device]
    a, b = torch.randn(2, size, size, device=device, dtype=torch.bfloat16)
    return time_calls([lambda: a @ b], device=device)


if __name__ == "__main__":
    main()
