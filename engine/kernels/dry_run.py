"""The GPU's own launch code with nothing behind it: which kernels it would run, each in which variants.

Tensors on torch's meta device have shapes, strides and offsets, but no memory. Launched on them, a kernel
gets as far as Triton's look-up of the variant that these arguments need, by the very functions that look it
up on a GPU; there the variant is noted, and nothing is compiled or run. So no list has to be kept of what
engines launch, and no GPU is needed to know it.
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
    """What Triton calls specialization data: JSON from which it can compile the variant again."""

    @property
    def facts(self) -> dict[str, Any]:
        """The data, read."""
        found: dict[str, Any] = json.loads(self.data)
        return found

    @property
    def module(self) -> str:
        """Of the kernel."""
        return str(self.facts["name"]).rpartition(".")[0]

    @property
    def kernel(self) -> str:
        """Its name in the module."""
        return str(self.facts["name"]).rpartition(".")[2]

    @property
    def constants(self) -> dict[str, Any]:
        """Value of every constexpr parameter; `None` and 1 passed for others are constants as well."""
        facts = self.facts
        names = list(facts["signature"])
        values = zip(facts["constant_keys"], facts["constant_vals"], strict=True)
        return {names[place[0]]: value for place, value in values}

    @property
    def multiples_of_16(self) -> list[str]:
        """Arguments that it was compiled to take as such: addresses, strides and counts."""
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
    """Launch on meta tensors inside the block are noted, each variant once, in order of appearance.

    Every op takes the way it takes on a GPU.

    Raises:
        RuntimeError: kernels run in Triton's interpreter here, which has no variants.
    """
    from triton import knobs

    if knobs.runtime.interpret:
        raise RuntimeError(_INTERPRETED)
    noted: dict[Variant, None] = {}

    def note(*, compile: dict[str, Any], **_: Any) -> bool:
        noted[Variant(compile["specialization_data"])] = None
        return True  # do not compile it, and so do not launch it

    before, knobs.runtime.jit_cache_hook = knobs.runtime.jit_cache_hook, note
    try:
        with _driver(gpu, "recorded"), pretend(gpu), backend.force("cuda"), _untuned():
            yield noted
    finally:
        knobs.runtime.jit_cache_hook = before


@contextmanager
def _driver(gpu: Gpu, purpose: str) -> Iterator[None]:
    """Triton takes this GPU for the one that is present, inside the block."""
    from triton.runtime.driver import driver

    before = driver._active
    driver.set_active(_Driver(gpu, purpose))
    try:
        yield
    finally:
        driver._active = before


class _Driver:
    """What Triton asks of a driver before it launches anything."""

    def __init__(self, gpu: Gpu, purpose: str) -> None:
        self._gpu, self._purpose = gpu, purpose

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self._gpu.arch, 32)

    def get_current_device(self) -> str:
        """No number: what Triton keeps per device stays apart from that of real ones."""
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
    """Which configuration was fastest is forgotten inside the block; what comes out there, after it."""
    for name in KERNEL_MODULES:
        importlib.import_module(name)
    from engine.kernels.triton.autotune import TUNERS

    before = [dict(vars(tuner)) for tuner in TUNERS]
    for tuner in TUNERS:
        tuner.cache, tuner.cache_results = {}, False
        vars(tuner).pop("do_bench", None)  # how to time, which it has asked the driver
    try:
        yield
    finally:
        for tuner, facts in zip(TUNERS, before, strict=True):
            vars(tuner).clear()
            vars(tuner).update(facts)


def compiled(variant: Variant, gpu: Gpu) -> Any:
    """The variant, compiled for a GPU: a `triton.CompiledKernel`, from Triton's cache if it is there.

    By the function that a launch would call with the same arguments, so under the same key of the cache.
    """
    with _driver(gpu, "compiled"):
        return variant.function().preload(variant.data)


def jit_function(kernel: Any) -> Any:
    """The `triton.JITFunction` in what `autotuned` made of it.

    Raises:
        RuntimeError: the kernels were imported for Triton's interpreter, which has nothing to compile.
    """
    from triton.runtime.jit import JITFunction

    while not isinstance(kernel, JITFunction):
        if not hasattr(kernel, "fn"):
            raise RuntimeError(_INTERPRETED)
        kernel = kernel.fn
    return kernel
