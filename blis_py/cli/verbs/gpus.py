"""`blis gpus`: the GPUs that are bundled."""

from __future__ import annotations

from typing import Any

from blis_py.cli.flags.flag import Flags
from blis_py.cli.verbs._listing import GROUPS, show
from blis_py.hardware.gpu import GIB, GpuSpec, known_gpus, load_gpu
from blis_py.latency.trained import bundled_training

__all__ = ["GROUPS", "gpus"]

_COLUMNS = {
    "name": "GPU",
    "memory_gib": "GiB",
    "visible_gib": "CUDA sees",
    "hbm_gb_per_s": "GB/s",
    "fp16_tflops": "16 bit",
    "fp8_tflops": "FP8",
    "link_gb_per_s": "link GB/s",
    "link_gpus": "joins",
    "known_by": "known by",
}


def gpus(flags: Flags) -> None:
    """List the bundled GPUs: memory, bandwidth, dense TFLOP/s, links, and what is known of them."""

    more = (
        "TFLOP/s are dense. Links: to each other, one way. Those known by their datasheet alone are priced",
        "by every latency model but roofline. Any other GPU: --gpu FILE (docs/latency.md).",
    )
    show(flags, [_row(name) for name in known_gpus()], _COLUMNS, more)


def _row(name: str) -> dict[str, Any]:

    gpu = load_gpu(name)
    return {
        "name": name,
        "memory_gib": round(gpu.memory_bytes / GIB, 1),
        "visible_gib": round(gpu.visible_memory_bytes / GIB, 2) if gpu.visible_known else None,
        "hbm_gb_per_s": round(gpu.hbm_bytes_per_s / 1e9),
        "fp16_tflops": round(gpu.fp16_flops / 1e12, 1),
        "fp8_tflops": round(gpu.fp8_flops / 1e12, 1) or None,
        "int8_tflops": round(gpu.int8_flops / 1e12, 1) or None,
        "fp4_tflops": round(gpu.fp4_flops / 1e12, 1) or None,
        "link_gb_per_s": round(gpu.link_bytes_per_s / 1e9, 1),
        "link_gpus": gpu.link_gpus,
        "link_source": gpu.link_source,
        "link_latency_us": gpu.all_reduce_overhead_ns / 1e3,
        "known_by": _known_by(gpu),
        "source": gpu.source,
    }


def _known_by(gpu: GpuSpec) -> str:
    """Source of its prices."""

    if gpu.name in bundled_training().gpus:
        return "measurements"
    return "assumed efficiencies" if gpu.has_roofline else "datasheet"
