"""Dry run of the GPU launch code: the kernels it would launch, and their variants.

Tensors on torch's meta device have shapes, strides and offsets, but no memory. A launch on them runs up to
Triton's look-up of the required variant, by the same functions as on a GPU; there the variant is recorded,
and nothing is compiled or run. The launches of an engine thus need no separate list, and no GPU.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from engine.kernels import backend
from engine.kernels.gpu import Gpu, pretend

_INTERPRETED = "TRITON_INTERPRET was set when the kernels were imported: unset it to compile"
KERNEL_MODULES = (
    "engine.kernels.triton.decode_attention",
    "engine.kernels.triton.denoise",
    "engine.kernels.triton.prefill_attention",
    "engine.kernels.triton.activation",
    "engine.kernels.triton.moe",
    "engine.kernels.triton.norm",
    "engine.kernels.triton.prepare",
    "engine.kernels.triton.qkv",
)


@dataclass(frozen=True, slots=True)
class Variant:
    """A kernel as Triton compiles it: for these types, constants, multiples of 16, warps and stages."""

    data: str
    """Triton's specialization data: JSON from which it can compile the variant again."""

    @property
    def facts(self) -> dict[str, Any]:
        """The parsed data."""
        facts: dict[str, Any] = json.loads(self.data)
        return facts

    @property
    def module(self) -> str:
        """Module of the kernel."""
        return str(self.facts["name"]).rpartition(".")[0]

    @property
    def kernel(self) -> str:
        """Name of the kernel in its module."""
        return str(self.facts["name"]).rpartition(".")[2]

    @property
    def constants(self) -> dict[str, Any]:
        """Value of every constexpr parameter; arguments `None` and 1 are constants as well."""
        facts = self.facts
        names = list(facts["signature"])
        values = zip(facts["constant_keys"], facts["constant_vals"], strict=True)
        return {names[place[0]]: value for place, value in values}

    @property
    def multiples_of_16(self) -> list[str]:
        """Arguments specialised as multiples of 16: addresses, strides and counts."""
        facts = self.facts
        names, given = list(facts["signature"]), zip(facts["attrs_keys"], facts["attrs_vals"], strict=True)
        return [names[place[0]] for place, attributes in given if attributes]

    def function(self) -> Any:
        """The kernel itself, a `triton.JITFunction`."""
        return jit_function(getattr(importlib.import_module(self.module), self.kernel))

    def __str__(self) -> str:
        facts = self.facts
        shown = {n: value for n, value in self.constants.items() if n.isupper() or value is None}
        constants = " ".join(f"{name}={value}" for name, value in shown.items())
        launch = f"warps={facts['options']['num_warps']} stages={facts['options']['num_stages']}"
        dtype = next((t[1:] for t in facts["signature"].values() if t in ("*bf16", "*fp16")), "")
        return " ".join(
            filter(None, (self.module.rpartition(".")[2] + self.kernel, dtype, constants, launch))
        )


@contextmanager
def recorded(gpu: Gpu) -> Iterator[dict[Variant, None]]:
    """Record the variants of launches on meta tensors inside the block, without duplicates, in order.

    Every op takes the same path as on a GPU.

    Raises:
        RuntimeError: kernels run in Triton's interpreter here, which has no variants.
    """
    from triton import knobs

    if knobs.runtime.interpret:
        raise RuntimeError(_INTERPRETED)
    noted: dict[Variant, None] = {}

    def note(*, compile: dict[str, Any], **_: Any) -> bool:
        noted[Variant(compile["specialization_data"])] = None
        return True  # prevents compilation, and so the launch

    before, knobs.runtime.jit_cache_hook = knobs.runtime.jit_cache_hook, note
    try:
        with _driver(gpu, "recorded"), pretend(gpu), backend.force("cuda"), _untuned():
            yield noted
    finally:
        knobs.runtime.jit_cache_hook = before


@contextmanager
def _driver(gpu: Gpu, purpose: str) -> Iterator[None]:
    """Make Triton treat this GPU as the active one inside the block."""
    from triton.runtime.driver import driver

    before = driver._active
    driver.set_active(_Driver(gpu, purpose))
    try:
        yield
    finally:
        driver._active = before


class _Driver:
    """Driver stub with the queries that Triton makes before a launch."""

    def __init__(self, gpu: Gpu, purpose: str) -> None:
        self._gpu, self._purpose = gpu, purpose

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self._gpu.arch, 32)

    def get_current_device(self) -> str:
        """A device key that keeps Triton's per-device state apart from that of real devices."""
        return f"{self._purpose} for cuda:{self._gpu.arch}"

    def get_current_stream(self, device: str) -> int:
        return 0

    def get_benchmarker(self) -> Callable[..., list[float]]:
        def launch_once(call: Callable[[], Any], quantiles: Sequence[float], **_: Any) -> list[float]:
            call()
            return [0.0 for _ in quantiles]

        return launch_once


@contextmanager
def _untuned() -> Iterator[None]:
    """Clear autotuning results inside the block, and clear the block's own results after it."""
    for name in KERNEL_MODULES:
        importlib.import_module(name)
    from engine.kernels.triton.autotune import TUNERS

    before = [dict(vars(tuner)) for tuner in TUNERS]
    for tuner in TUNERS:
        tuner.cache, tuner.cache_results = {}, False
        vars(tuner).pop("do_bench", None)  # the timing function, which it obtained from the driver
    try:
        yield
    finally:
        for tuner, facts in zip(TUNERS, before, strict=True):
            vars(tuner).clear()
            vars(tuner).update(facts)


def compiled(variant: Variant, gpu: Gpu) -> Any:
    """The variant, compiled for a GPU: a `triton.CompiledKernel`, from Triton's cache if present.

    Calls the same function as a launch with the same arguments, so the cache key is the same.
    """
    with _driver(gpu, "compiled"):
        return variant.function().preload(variant.data)


def jit_function(kernel: Any) -> Any:
    """The `triton.JITFunction` inside the result of `autotuned`.

    Raises:
        RuntimeError: the kernels were imported for Triton's interpreter, which has nothing to compile.
    """
    from triton.runtime.jit import JITFunction

    while not isinstance(kernel, JITFunction):
        if not hasattr(kernel, "fn"):
            raise RuntimeError(_INTERPRETED)
        kernel = kernel.fn
    return kernel
