"""Models and GPUs whose step times bound those of another: prices in absurd order are errors of tables.

On the same engine and layout a step takes at most as long as

    in a wider format
    on a GPU that has less of arithmetic in every format, bandwidth, memory and links
    on one that has more, times the largest ratio of their peaks, where both have the same formats
    in 8 bits without block scales, times 2: as many bytes and operations per second as in 16

and at least as long as in a narrower format and on a GPU that has more of everything. Each price is one of
several estimates of the same times; which of two in the wrong order gives way is decided in `served`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from blis_py.hardware.gpu import GpuSpec, is_of_amd, load_gpu
from blis_py.latency.operator_work import WEIGHT_BYTES
from blis_py.models.model_shape import ModelShape
from blis_py.models.weights import MXFP4_BYTES, Weights

_MEASURED = "h100", "h200", "b200"
"""GPUs with kernels of all engines, that bound others."""
_ALIKE = "GB", "B200", "B300"
"""First letters of the GPUs of a rack, of which one was measured, too, and of the same chips outside it."""


class Neighbour(NamedTuple):
    """A model on a GPU, whose step times bound others from above, or from below."""

    shape: ModelShape
    gpu: GpuSpec
    above: bool
    factor: float = 1.0
    text: str = ""


class _Form(NamedTuple):
    shape: ModelShape
    factor: float = 1.0
    text: str = ""


def neighbours(shape: ModelShape, gpu: GpuSpec) -> Iterator[Neighbour]:
    """All that bound this model on this GPU, itself left out."""
    own = _Form(shape)
    for above, forms, gpus in (
        (True, (own, *_wider(shape, gpu)), ((gpu, 1.0), *_slower(gpu))),
        (False, (own, *_narrower(shape, gpu)), ((gpu, 1.0), *_faster(gpu))),
    ):
        for form in forms:
            for other, factor in gpus:
                if form is not own or other is not gpu:
                    text = " ".join(filter(None, (form.text, "" if other is gpu else f"on the {other.name}")))
                    yield Neighbour(form.shape, other, above, form.factor * factor, text)


# --- formats -----------------------------------------------------------------------------------------


def _wider(shape: ModelShape, gpu: GpuSpec) -> Iterator[_Form]:
    w = shape.weights
    least = _least(w)
    if least < 2:
        yield _Form(replace(shape, weights=_at_least(w, 2.0, "fp16")), 1.0, "in 16 bits")
    if least < 1 and w.arithmetic == "fp4" and gpu.fp4_flops:
        yield _Form(replace(shape, weights=_at_least(w, 1.0, "fp8")), 1.0, "in 8 bits")
    if gpu.fp8_flops and (w.arithmetic != "fp8" or w.block_scales):
        halves = _at_most(_at_least(w, 1.0, "fp8"), 1.0, "fp8")
        yield _Form(replace(shape, weights=halves), 2.0, "in 8 bits, doubled")


def _narrower(shape: ModelShape, gpu: GpuSpec) -> Iterator[_Form]:
    w = shape.weights
    least = _least(w)
    if least >= 2 and gpu.fp8_flops:
        for block_scales in (True, False):
            narrow = replace(_at_most(w, 1.0, "fp8"), block_scales=block_scales)
            yield _Form(replace(shape, weights=narrow), 1.0, "in 8 bits")
    if w.experts >= 2 and shape.moe_layers:
        yield _Form(
            replace(shape, weights=replace(w, experts=MXFP4_BYTES, arithmetic="fp4")), 1.0, "in MXFP4"
        )
    if least >= 1 and w.arithmetic in ("fp16", "fp8") and gpu.fp4_flops:
        yield _Form(replace(shape, weights=_at_most(w, WEIGHT_BYTES["nvfp4"], "fp4")), 1.0, "in 4 bits")


def _least(w: Weights) -> float:
    return min(w.attention, w.dense, w.shared, w.experts, w.linear)


def _at_least(w: Weights, size: float, arithmetic: str) -> Weights:
    parts = ("attention", "dense", "shared", "experts", "linear")
    sizes = {name: max(getattr(w, name), size) for name in parts}
    o_proj = max(w.output, size) if w.output else 0.0
    return replace(w, **sizes, output=o_proj, arithmetic=arithmetic, block_scales=False, wide_arithmetic="")


def _at_most(w: Weights, size: float, arithmetic: str) -> Weights:
    narrowed = replace(w.at_most(size), arithmetic=arithmetic, block_scales=False)
    return replace(narrowed, wide_arithmetic="")


# --- GPUs --------------------------------------------------------------------------------------------


def _slower(gpu: GpuSpec) -> Iterator[tuple[GpuSpec, float]]:
    """Measured GPUs with less of everything, and faster ones with the factor that makes them slower."""
    for other in _related(gpu):
        if _has_no_less(gpu, other):
            yield other, 1.0
        elif _has_no_less(other, gpu) and [*map(bool, _peaks(gpu))] == [*map(bool, _peaks(other))]:
            yield other, max(a / b for a, b in zip(_peaks(other), _peaks(gpu), strict=True) if b)


def _faster(gpu: GpuSpec) -> Iterator[tuple[GpuSpec, float]]:
    return ((other, 1.0) for other in _related(gpu) if _has_no_less(other, gpu))


def _related(gpu: GpuSpec) -> Iterator[GpuSpec]:
    """Other measured GPUs of the same maker."""
    names: tuple[str, ...] = () if is_of_amd(gpu) else _MEASURED
    names += ("gb200",) if gpu.name.startswith(_ALIKE) else ()
    return (other for other in map(_bundled, names) if other.name != gpu.name)


@cache
def _bundled(name: str) -> GpuSpec:
    return load_gpu(name)


def _peaks(gpu: GpuSpec) -> tuple[float, ...]:
    return gpu.fp16_flops, gpu.fp8_flops, gpu.fp4_flops, gpu.hbm_bytes_per_s, gpu.link_bytes_per_s


def _has_no_less(gpu: GpuSpec, other: GpuSpec) -> bool:
    peaks = zip(_peaks(gpu), _peaks(other), strict=True)
    return gpu.memory_bytes >= other.memory_bytes and all(a >= b for a, b in peaks)
