"""The CUDA C++ kernels on a CPU: the same sources through g++ and `cuda_on_cpu.h`, behind the same C ABI."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from engine.kernels import backend
from engine.kernels.cuda import build, library

HEADER = Path(__file__).with_suffix(".h")
KEPT = Path(__file__).parents[3] / "build" / "cuda-on-cpu"
FLAGS = ["-std=c++17", "-O1", "-fPIC", "-pthread", "-include", str(HEADER)]


@functools.cache
def emulated() -> ctypes.CDLL:
    """The library, compiled on first use and kept in `build`; skips the test without g++."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("g++ is not installed: the CUDA kernels cannot run on the CPU")
    inputs = [HEADER, *build.sources(), *sorted(build.FOLDER.glob("*.cuh"))]
    key = hashlib.sha256(b"".join(path.read_bytes() for path in inputs) + repr(FLAGS).encode()).hexdigest()[
        :16
    ]
    target = KEPT / f"{key}.so"
    if not target.exists():
        KEPT.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=KEPT) as scratch:
            objects = []
            for source in build.sources():
                objects.append(f"{scratch}/{source.stem}.o")
                build.run([compiler, *FLAGS, "-x", "c++", "-c", str(source), "-o", objects[-1]])
            build.run([compiler, "-shared", "-pthread", *objects, "-o", f"{scratch}/library"])
            Path(scratch, "library").replace(target)
    return library.declare(ctypes.CDLL(str(target)))


@contextmanager
def cuda_on_cpu() -> Iterator[None]:
    """Run the ops inside the block by the CUDA C++ kernels, on CPU tensors."""
    loaded = emulated()
    with pytest.MonkeyPatch.context() as patch, backend.force("cuda"):
        patch.setattr(library, "load", lambda: loaded)
        yield
