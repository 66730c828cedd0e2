"""Build of the CUDA C++ kernels: one `nvcc -shared`, cached by the hash of its inputs.

The compiler is needed only without a cached library of these sources, so a library built elsewhere can be
copied into the cache of a machine without it.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent
# Machine code for Hopper, and PTX for what comes after it.
ARCHITECTURES = (
    "-gencode=arch=compute_90a,code=sm_90a",
    "-gencode=arch=compute_90,code=compute_90",
)
FLAGS = ("-std=c++17", "-O3")


class BuildError(Exception):
    """The kernels cannot be built here; the message gives the reason."""


def sources() -> list[Path]:
    """The kernels' source files, one library's worth."""
    return sorted(FOLDER.glob("*.cu"))


def compiler() -> str:
    """Path of nvcc: from $CUDACXX, the search path, or the usual place.

    Raises:
        BuildError: there is no nvcc.
    """
    for candidate in (os.environ.get("CUDACXX"), "nvcc", "/usr/local/cuda/bin/nvcc"):
        path = shutil.which(candidate) if candidate else None
        if path:
            return path
    raise BuildError("nvcc was not found: install the CUDA toolkit, or name nvcc in $CUDACXX")


def cache_folder() -> Path:
    """Folder of built libraries: blis/kernels under $XDG_CACHE_HOME, else ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "blis" / "kernels"


def library() -> Path:
    """Path of the shared library with all kernels of these sources, built or not."""
    return cache_folder() / f"blis_kernels_{_key()}.so"


def build_library() -> None:
    """Build the library; raises BuildError if that is impossible."""
    nvcc, target = compiler(), library()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        built = Path(scratch) / target.name
        run([nvcc, *FLAGS, "-shared", "-Xcompiler", "-fPIC", *ARCHITECTURES, "-o", str(built), *_names()])
        built.replace(target)  # atomic: a concurrent build leaves a whole file too


def run(command: list[str]) -> str:
    """Run a compiler in the kernels' folder; returns its output, or raises BuildError with it."""
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False)
    output = done.stdout + done.stderr
    if done.returncode:
        raise BuildError(f"{command[0]} failed with status {done.returncode}:\n{output.strip()[-4000:]}")
    return output


def _names() -> list[str]:
    return [path.name for path in sources()]


def _key() -> str:
    digest = hashlib.sha256(f"{platform.system()} {platform.machine()}\0".encode())
    for path in [*sources(), *sorted(FOLDER.glob("*.cuh"))]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    digest.update(repr((FLAGS, ARCHITECTURES)).encode())
    return digest.hexdigest()[:16]
