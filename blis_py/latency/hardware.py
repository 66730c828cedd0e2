"""What an accelerator can do on paper, and which part of it a serving engine gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blis_py.errors import InputError
from blis_py.files.yaml_files import load_mapping
from blis_py.latency.profiles import find_profile, known_names

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """One GPU. Peaks are dense, never with sparsity; 0 means the GPU lacks the format."""

    name: str
    memory_bytes: int
    """Datasheet gigabytes read as GiB, which is what the drivers report (within 2 %, ECC apart)."""
    hbm_bytes_per_s: float
    fp16_flops: float
    """Also BF16; with FP32 accumulation."""
    fp8_flops: float
    int8_flops: float
    fp4_flops: float
    link_bytes_per_s: float
    """To the other GPUs of the node, one direction (NVLink, or PCIe where there is none)."""
    source: str
    """Where the figures above come from."""
    gemm_efficiency: float
    """Share of the 16-bit peak that large matrix products reach."""
    fp8_gemm_efficiency: float
    """The same of the FP8 and INT8 peaks."""
    attention_efficiency: float
    """Share of the 16-bit peak that prefill attention reaches."""
    hbm_efficiency: float
    """Share of the memory bandwidth that streaming kernels reach."""
    link_efficiency: float
    """Share of the link bandwidth that a large all-reduce reaches."""
    all_reduce_overhead_ns: float
    """Latency of one small all-reduce."""
    layer_overhead_ns: float
    """Kernel start-up and drain per layer in a captured graph."""
    step_overhead_ns: float
    """GPU time of a step outside the layers: embedding, final norm, sampling."""
    host_step_ns: float
    """CPU time of a step: scheduling, input preparation, launch, output processing."""
    host_seq_ns: float
    """CPU time per sequence of a step."""
    roofline_basis: str
    """Where the efficiencies and overheads come from."""

    def narrow_flops(self, arithmetic: str) -> float:
        """Peak of matrix products in a format of 8 bits; 0 for other formats, and where the GPU lacks it."""
        return {"fp8": self.fp8_flops, "int8": self.int8_flops}.get(arithmetic, 0.0)


_TOP = ("name", "source", "memory_gib", "hbm_gb_per_s", "link_gb_per_s", "dense_tflops", "roofline")
_TFLOPS = ("fp16", "fp8", "int8", "fp4")
_SHARES = (
    "gemm_efficiency",
    "fp8_gemm_efficiency",
    "attention_efficiency",
    "hbm_efficiency",
    "link_efficiency",
)
_OVERHEADS = (
    "all_reduce_overhead_us",
    "layer_overhead_us",
    "step_overhead_us",
    "host_step_us",
    "host_seq_us",
)
_ROOFLINE = (*_SHARES, *_OVERHEADS, "basis")
_LEAST, _MOST = 1e-6, 1e9
"""Of any figure but 0. Beyond, quotients of two of them would leave the range of floating point."""


def load_gpu(name_or_path: str | Path) -> GpuSpec:
    """A bundled GPU in any usual spelling (`H100`, `h100-sxm`, `NVIDIA GeForce RTX 4090`), or a file.

    Raises:
        InputError: unknown name (lists the known ones), unreadable file, missing, unknown or
            nonsensical key.
    """
    path = Path(name_or_path)
    is_file = path.suffix in (".yaml", ".yml")
    return _read(path if is_file else find_profile("gpus", str(name_or_path)))


def known_gpus() -> list[str]:
    """Bundled GPUs, by the name of their profile."""
    return known_names("gpus")


def _read(path: Path) -> GpuSpec:
    top = _section(load_mapping(path), _TOP, path, "")
    tflops = _section(top["dense_tflops"], _TFLOPS, path, "dense_tflops.")
    roofline = _section(top["roofline"], _ROOFLINE, path, "roofline.")
    flops = {key: _number(tflops, key, path, "dense_tflops.", zero=key != "fp16") * 1e12 for key in _TFLOPS}
    shares = {key: _number(roofline, key, path, "roofline.", most=1.0) for key in _SHARES}
    overheads = {key: _number(roofline, key, path, "roofline.", zero=True) * 1e3 for key in _OVERHEADS}
    return GpuSpec(
        name=_text(top, "name", path, ""),
        memory_bytes=int(_number(top, "memory_gib", path, "") * GIB),
        hbm_bytes_per_s=_number(top, "hbm_gb_per_s", path, "") * 1e9,
        fp16_flops=flops["fp16"],
        fp8_flops=flops["fp8"],
        int8_flops=flops["int8"],
        fp4_flops=flops["fp4"],
        link_bytes_per_s=_number(top, "link_gb_per_s", path, "") * 1e9,
        source=_text(top, "source", path, ""),
        gemm_efficiency=shares["gemm_efficiency"],
        fp8_gemm_efficiency=shares["fp8_gemm_efficiency"],
        attention_efficiency=shares["attention_efficiency"],
        hbm_efficiency=shares["hbm_efficiency"],
        link_efficiency=shares["link_efficiency"],
        all_reduce_overhead_ns=overheads["all_reduce_overhead_us"],
        layer_overhead_ns=overheads["layer_overhead_us"],
        step_overhead_ns=overheads["step_overhead_us"],
        host_step_ns=overheads["host_step_us"],
        host_seq_ns=overheads["host_seq_us"],
        roofline_basis=_text(roofline, "basis", path, "roofline."),
    )


def _section(values: Any, keys: tuple[str, ...], path: Path, prefix: str) -> Mapping[str, Any]:
    """A mapping with exactly these keys."""
    if not isinstance(values, dict):
        raise InputError("must be a mapping", file=path, key=prefix.rstrip(".") or None)
    for key in values:
        if key not in keys:
            raise InputError("unknown key", file=path, key=f"{prefix}{key}", fix=f"use {', '.join(keys)}")
    for key in keys:
        if key not in values:
            raise InputError("missing", file=path, key=prefix + key)
    return values


def _number(
    values: Mapping[str, Any], key: str, path: Path, prefix: str, *, zero: bool = False, most: float = _MOST
) -> float:
    value = values[key]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError("must be a number", file=path, key=prefix + key, value=value)
    if not (0 <= value <= most) or (value == 0 and not zero):
        wanted = f"must be {'at least' if zero else 'above'} 0" + (" and at most 1" if most == 1 else "")
        raise InputError(wanted, file=path, key=prefix + key, value=value)
    if 0 < value < _LEAST:
        raise InputError("is far too small", file=path, key=prefix + key, value=value, fix="check the unit")
    return float(value)


def _text(values: Mapping[str, Any], key: str, path: Path, prefix: str) -> str:
    value = values[key]
    if not isinstance(value, str) or not value:
        raise InputError("must be a string", file=path, key=prefix + key, value=value)
    return value
