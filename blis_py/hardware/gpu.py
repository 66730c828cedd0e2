"""Datasheets of accelerators, and the share of their peaks that a serving engine reaches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from blis_py.core.light_dataclass import dataclass
from blis_py.errors import InputError
from blis_py.files.opening import read_text
from blis_py.files.profiles import find_profile, known_names
from blis_py.files.yaml_files import mapping_of

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """One GPU. Peaks are dense, never with sparsity; 0 means the GPU lacks the format."""

    name: str
    memory_bytes: int
    """Datasheet gigabytes taken as GiB, as reported by drivers (within 2 %, without ECC)."""
    visible_memory_bytes: int
    """Memory reported by CUDA: without ECC and the driver's share. An engine's utilisation is a share of
    it."""
    visible_known: bool
    """Whether that was read from a GPU, not assumed."""
    driver_memory_bytes: int
    """Memory reported by the driver (`nvidia-smi`), before CUDA takes its share."""
    hbm_bytes_per_s: float
    fp16_flops: float
    """Also BF16; with FP32 accumulation."""
    fp8_flops: float
    int8_flops: float
    fp4_flops: float
    link_bytes_per_s: float
    """To the other GPUs, one direction (NVLink, or PCIe where there is none)."""
    link_gpus: int
    """Number of GPUs joined by that link."""
    link_source: str
    """Kind of link and source of its figures."""
    source: str
    """Source of the other figures above."""
    has_roofline: bool
    """Whether the profile has the section with the remaining values; if not, they are assumed."""
    gemm_efficiency: float
    """Share of the 16-bit peak that large matrix products reach."""
    fp8_gemm_efficiency: float
    """The same for the FP8 and INT8 peaks."""
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
    """Source of the efficiencies and overheads."""

    def narrow_flops(self, arithmetic: str) -> float:
        """Peak of matrix products in an 8-bit format; 0 for other formats, or if the GPU lacks it."""
        return {"fp8": self.fp8_flops, "int8": self.int8_flops}.get(arithmetic, 0.0)

    def linked_at(self, gb_per_s: float) -> GpuSpec:
        """A copy with another link: a fabric of any number of GPUs with this one's latency, or a PCIe slot of
        one server.

        Raises:
            InputError: the link is neither.
        """
        if gb_per_s < _SLOWEST_SLOT_GB_PER_S:
            problem = f"is slower than any PCIe slot of a GPU server, and {_NETWORK}"
            raise InputError(problem, key=GIVEN_LINK, value=f"{gb_per_s:g}", fix=_OWN_LINK)
        linked = replace(self, link_bytes_per_s=gb_per_s * 1e9, link_gpus=MAX_LINKED, link_source=GIVEN_LINK)
        if linked.has_fabric:
            return linked
        linked = replace(linked, link_gpus=_NODE_GPUS)
        if not self.has_fabric:
            return linked
        latency_ns = _SLOT_LATENCY_US * 1e3
        return replace(linked, link_efficiency=_SLOT_EFFICIENCY, all_reduce_overhead_ns=latency_ns)

    def require_roofline(self, model: str) -> None:
        """Check that the roofline section exists, beyond the datasheet.

        Args:
            who: the feature that needs it, for the message.

        Raises:
            InputError: it does not.
        """
        if not self.has_roofline:
            fix = "use --latency-model trained, or add a `roofline` section to a GPU file of your own"
            problem = f"{model} needs efficiencies, which are unknown for the {self.name}"
            raise InputError(problem, key="roofline", fix=fix)

    @property
    def has_fabric(self) -> bool:
        """Whether every GPU has a fast link to every other: NVLink or Infinity Fabric, not PCIe."""
        return self.link_bytes_per_s >= _SLOWEST_FABRIC_BYTES_PER_S

    def require_links(self, tp: int) -> None:
        """Check that this many GPUs share a link.

        Raises:
            InputError: they do not.
        """
        if tp > self.link_gpus:
            kind = "the link" if self.has_fabric else "PCIe"
            problem = (
                f"{kind} joins {self.link_gpus} {self.name}; {tp} would need another link, and {_NETWORK}"
            )
            fix = f"use --tp {self.link_gpus} at most and more instances, or {_OWN_LINK}"
            raise InputError(problem, key="--tp", value=tp, fix=fix)


GIVEN_LINK = "--link-gbps"
_NETWORK = "step times over a network between servers are not priced"
_OWN_LINK = (
    "describe what was measured in a GPU file of your own (link_gb_per_s, link_latency_us, link_gpus, "
    "link_source)"
)
_SLOWEST_SLOT_GB_PER_S = 7.5
"""PCIe 3 x8 has 7.9 GB/s."""
_SLOWEST_FABRIC_BYTES_PER_S = 2e11
"""Between PCIe 6 x16 with 128 GB/s and NVLink 3 with 300."""
MAX_LINKED = 4096
_REQUIRED = ("name", "source", "memory_gib", "hbm_gb_per_s", "dense_tflops")
_LINK = ("link_gb_per_s", "link_latency_us", "link_gpus", "link_source")
_OPTIONAL = ("memory_visible_gib", "memory_driver_mib", *_LINK, "roofline")
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
_MIN, _MAX = 1e-6, 1e9
"""Bounds of all figures other than 0. Beyond, quotients of two of them would exceed the range of floating
point."""
_ASSUMED = {
    "gemm_efficiency": 0.8,
    "fp8_gemm_efficiency": 0.6,
    "attention_efficiency": 0.5,
    "hbm_efficiency": 0.8,
    "layer_overhead_us": 20.0,
    "step_overhead_us": 40.0,
    "host_step_us": 300.0,
    "host_seq_us": 1.0,
    "basis": "assumed, in the range measured on H100 and RTX 4090",
}
"""Values for profiles without a `roofline` section. Links: see `_assumed`."""
_VISIBLE_SHARE = 0.98
"""Assumed share of a card's memory reported by CUDA: 0.98 to 0.99 on known cards, 0.92 with ECC in GDDR6."""
_PCIE_GB_PER_S, _NODE_GPUS = 32.0, 8
"""PCIe 4 x16, and a typical server."""
_FAST_LINK_GB_PER_S = 100.0
"""Beyond any PCIe slot."""
_SLOT_LATENCY_US, _SLOT_EFFICIENCY = 30.0, 0.5
"""Latency and share of PCIe, as in the files of cards without NVLink."""


def is_of_amd(gpu: GpuSpec) -> bool:
    """Whether AMD makes it, by the letters that its Instinct GPUs begin with."""
    return gpu.name.startswith("MI")


def load_gpu(name_or_path: str | Path) -> GpuSpec:
    """A bundled GPU in any usual spelling (`H100`, `h100-sxm`, `NVIDIA GeForce RTX 4090`), or a file.

    Raises:
        InputError: unknown name (lists the known ones), unreadable file, missing, unknown or invalid key.
    """
    path = Path(name_or_path)
    is_file = path.suffix in (".yaml", ".yml")
    path = path if is_file else find_profile("gpus", str(name_or_path))
    return _read(path, read_text(path))


def known_gpus() -> list[str]:
    """Names of the bundled GPU profiles."""
    return known_names("gpus")


@lru_cache(maxsize=64)
def _read(path: Path, text: str) -> GpuSpec:
    top = _section(mapping_of(text, path), _REQUIRED, path, "", _OPTIONAL)
    tflops = _section(top["dense_tflops"], ("fp16",), path, "dense_tflops.", _TFLOPS[1:])
    flops = {
        key: _number({key: 0.0, **tflops}, key, path, "dense_tflops.", zero=key != "fp16") * 1e12
        for key in _TFLOPS
    }
    memory_gib = _number(top, "memory_gib", path, "")
    visible = {"memory_visible_gib": memory_gib * _VISIBLE_SHARE, **top}
    driver = {"memory_driver_mib": memory_gib * 1024, **top}
    link = {"link_gb_per_s": _PCIE_GB_PER_S, "link_gpus": _NODE_GPUS, "link_source": _PCIE, **top}
    link_gb_per_s = _number(link, "link_gb_per_s", path, "")
    if "roofline" in top and "link_latency_us" in top:
        fix = "keep roofline.all_reduce_overhead_us"
        raise InputError(
            "said twice", file=path, key="link_latency_us", value=top["link_latency_us"], fix=fix
        )
    roofline: Mapping[str, Any] = _assumed(top, link_gb_per_s, path)
    if "roofline" in top:
        roofline = _section(top["roofline"], _ROOFLINE, path, "roofline.")
    shares = {key: _number(roofline, key, path, "roofline.", most=1.0) for key in _SHARES}
    overheads = {key: _number(roofline, key, path, "roofline.", zero=True) * 1e3 for key in _OVERHEADS}
    return GpuSpec(
        name=_text(top, "name", path, ""),
        memory_bytes=int(memory_gib * GIB),
        visible_memory_bytes=int(_number(visible, "memory_visible_gib", path, "", most=memory_gib) * GIB),
        visible_known="memory_visible_gib" in top,
        driver_memory_bytes=int(_number(driver, "memory_driver_mib", path, "") * 2**20),
        hbm_bytes_per_s=_number(top, "hbm_gb_per_s", path, "") * 1e9,
        fp16_flops=flops["fp16"],
        fp8_flops=flops["fp8"],
        int8_flops=flops["int8"],
        fp4_flops=flops["fp4"],
        link_bytes_per_s=link_gb_per_s * 1e9,
        link_gpus=_count(link, "link_gpus", path, most=MAX_LINKED),
        link_source=_text(link, "link_source", path, ""),
        source=_text(top, "source", path, ""),
        has_roofline="roofline" in top,
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


_PCIE = "assumed: PCIe 4 x16, no NVLink"


def _assumed(top: Mapping[str, Any], link_gb_per_s: float, path: Path) -> Mapping[str, Any]:
    """A default `roofline` section: fast links as on the H100, others as PCIe."""
    fast = link_gb_per_s >= _FAST_LINK_GB_PER_S
    latency = {"link_latency_us": 5.0 if fast else _SLOT_LATENCY_US, **top}
    return {
        **_ASSUMED,
        "link_efficiency": 0.35 if fast else _SLOT_EFFICIENCY,
        "all_reduce_overhead_us": _number(latency, "link_latency_us", path, ""),
    }


def _section(
    values: Any, keys: Sequence[str], path: Path, prefix: str, optional: Sequence[str] = ()
) -> Mapping[str, Any]:
    """A mapping with exactly these keys, and possibly the optional ones.

    Raises:
        InputError: it has others, or lacks one.
    """
    if not isinstance(values, dict):
        raise InputError("must be a mapping", file=path, key=prefix.rstrip(".") or None)
    for key in values:
        if key not in keys and key not in optional:
            fix = f"use {', '.join((*keys, *optional))}"
            raise InputError("unknown key", file=path, key=f"{prefix}{key}", fix=fix)
    for key in keys:
        if key not in values:
            raise InputError("missing", file=path, key=prefix + key)
    return values


def _number(
    values: Mapping[str, Any], key: str, path: Path, prefix: str, *, zero: bool = False, most: float = _MAX
) -> float:
    value = values[key]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError("must be a number", file=path, key=prefix + key, value=value)
    if not (0 <= value <= most) or (value == 0 and not zero):
        limit = f" and at most {most:g}" if most < 1e9 else ""
        bound = f"must be {'at least' if zero else 'above'} 0{limit}"
        raise InputError(bound, file=path, key=prefix + key, value=value)
    if 0 < value < _MIN:
        raise InputError("is far too small", file=path, key=prefix + key, value=value, fix="check the unit")
    return float(value)


def _count(values: Mapping[str, Any], key: str, path: Path, *, most: int) -> int:
    value = _number(values, key, path, "", most=most)
    if value != int(value):
        raise InputError("must be a whole number", file=path, key=key, value=value)
    return int(value)


def _text(values: Mapping[str, Any], key: str, path: Path, prefix: str) -> str:
    value = values[key]
    if not isinstance(value, str) or not value:
        raise InputError("must be a string", file=path, key=prefix + key, value=value)
    return value
