"""Warm the caches with every kernel that engines need, in many processes.

`python -m engine.kernels.warm --jobs 16 --model qwen3-8b llada2.0-mini` compiles the variants that engines
of these models can launch (`engine.variants`) into Triton's cache ($TRITON_CACHE_DIR, else ~/.triton/cache),
the C functions that launch them, and the library of CUDA C++ kernels. It prints a row for each; with
--budget-s it ends in time. Cached kernels take no time, so it can be run again.

Cache keys equal those of a launch: each variant comes from a dry-run launch, and is compiled by the same
function as in the launch (`engine.kernels.dry_run.compiled`). The keys contain the kernel's source, the
Triton installation, its ptxas and the target, so a cache made elsewhere is valid where all of these are
equal; Triton also requires the same absolute path.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from engine.kernels import compilations
from engine.kernels.command import KernelCommand, Row
from engine.kernels.gpu import Gpu

LIBRARY = "the library of CUDA C++ kernels"


def make(item: str, gpu: Gpu) -> str:
    """Compile a variant, given by its data, or the library; return its origin."""
    if item == LIBRARY:
        return _library()
    from engine.kernels.dry_run import Variant, compiled

    compilations.watch()
    before = compilations.so_far()
    kernel = compiled(Variant(item), gpu)
    made = compilations.so_far() - before
    return ("compiled" if made.compiled else "was there") + _with_launcher(kernel)


def _library() -> str:
    from engine.kernels.cuda import build

    if build.library().exists():
        return f"was there: {build.library()}"
    build.build_library()
    return f"built: {build.library()}"


def _with_launcher(kernel: Any) -> str:
    """Compile the C function that launches a kernel; skipped without a driver to link it to."""
    if not _driver_is_there():
        return ", without its launcher: no CUDA driver"
    from triton.backends.nvidia.driver import CudaLauncher

    CudaLauncher(kernel.src, kernel.metadata)
    return ""


@functools.cache
def _driver_is_there() -> bool:
    """Whether the driver is present; compiles the code shared by all launches, too."""
    from triton.backends.nvidia.driver import CudaUtils, library_dirs

    try:
        library_dirs()
    except (AssertionError, OSError, subprocess.SubprocessError):  # no libcuda.so.1
        return False
    CudaUtils()
    return True


def main(arguments: Sequence[str]) -> int:
    """Run the command line; 1 if something failed or ran out of time, 2 on bad input."""
    command = KernelCommand("engine.kernels.warm", "Compile kernels into the caches.", arguments)

    def row(text: str) -> Row:
        return text, ""

    status = command.run(partial(make, gpu=command.gpu), row, [LIBRARY] if command.gpu.arch >= 90 else [])
    print(_cache(), file=sys.stderr, flush=True)
    return status


def _cache() -> str:
    from triton import knobs

    folder = Path(knobs.cache.dir)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return f"Triton's cache: {folder.resolve()}, {size / (1 << 20):.1f} MiB"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
