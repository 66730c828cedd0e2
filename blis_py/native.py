"""The simulator's inner loop as native code: the very same modules, translated by mypyc.

    make native         # or, where a C compiler, mypy and setuptools are: python -m blis_py.native

The commands that simulate (`blis run`, `blis replay`) then use it, and print the same bytes in 30 to 40 %
less time. It is used only while it is a translation of the present sources: after a change, and without it,
the modules are interpreted as ever. So they are where `BLIS_INTERPRETED` is set in the environment.
`BLIS_NATIVE` names another folder for the translation.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

MODULES = (
    "core.features",
    "core.request",
    "core.diffusion_request",
    "core.blocks",
    "core.decoding",
    "core.kv",
    "core.radix",
    "core.radix_kv",
    "core.scheduler",
    "cluster.recorder",
    "cluster.diffusion_recorder",
    "cluster.router",
    "cluster.instance",
    "latency.decode_line",
    "latency.trained_physics",
)
"""What a simulated step passes through. Queues derive from built-in types, and stay interpreted."""

_PACKAGE = Path(__file__).parent
_MANIFEST = "manifest.json"
_SETUP = """
import sys
from mypyc.build import mypycify
from setuptools import setup

scratch, *sources = sys.argv[1].split(",")
options = ["--config-file", f"{scratch}/mypy.ini"]
modules = mypycify([*options, *sources], opt_level="2", debug_level="0", target_dir=scratch, separate=[([s for s in sources if "core" in s], "core"), ([s for s in sources if "core" not in s], "rest")])
setup(name="native", packages=[], ext_modules=modules, script_args=sys.argv[2:])
"""
_TYPES = """
[mypy]
follow_imports = silent
[mypy-pandas.*,scipy.*,matplotlib.*,simpy.*,pydantic.*,yaml.*]
follow_imports = skip
follow_imports_for_stubs = true
"""
"""Other libraries' types are of no use to the translator, and reading them takes it a minute."""


def activate() -> bool:
    """Has modules not imported yet come from native code; returns whether there is any that is up to date."""
    files = current()
    if files:
        sys.meta_path.insert(0, _Finder(files))
    return bool(files)


def current() -> dict[str, str]:
    """Modules and their files, if they are a translation of the present sources and wanted; or nothing."""
    if os.environ.get("BLIS_INTERPRETED"):
        return {}
    folder = _folder()
    try:
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if manifest["sources"] != _digests():
        return {}
    return {name: str(folder / file) for name, file in manifest["files"].items()}


def build() -> None:
    """Translates and compiles `MODULES`.

    Raises:
        subprocess.CalledProcessError: that did not work.
    """
    folder, digests = _folder().absolute(), _digests()
    sources = [str(Path(_PACKAGE.name, *name.split(".")).with_suffix(".py")) for name in MODULES]
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch, "mypy.ini").write_text(_TYPES, encoding="utf-8")
        library = Path(scratch, "library")
        setup = [sys.executable, "-c", _SETUP, ",".join((scratch, *sources)), "--quiet", "build_ext"]
        places = ["--build-lib", str(library), "--build-temp", scratch, "--parallel", "4"]
        subprocess.run([*setup, *places], cwd=_PACKAGE.parent, check=True)
        files = {}
        for path in sorted(path for path in library.rglob("*") if path.suffix in (".so", ".pyd")):
            file = path.relative_to(library)
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).unlink(missing_ok=True)  # somebody may be running the former one
            shutil.copy2(path, folder / file)
            files[_module_of(file)] = str(file)
    manifest = json.dumps({"sources": digests, "files": files}, indent=1)
    (folder / _MANIFEST).write_text(manifest, encoding="utf-8")


def _folder() -> Path:
    return Path(os.environ.get("BLIS_NATIVE") or _PACKAGE / f"native-{sys.implementation.cache_tag}")


def _digests() -> dict[str, str]:
    """What the modules are now."""
    paths = {name: _PACKAGE.joinpath(*name.split(".")).with_suffix(".py") for name in MODULES}
    return {name: sha256(path.read_bytes()).hexdigest() for name, path in paths.items()}


def _module_of(library: Path) -> str:
    """`blis_py/core/kv.cpython-311-x86_64-linux-gnu.so` is `blis_py.core.kv`."""
    return ".".join([*library.parent.parts, library.name.partition(".")[0]])


class _Finder(MetaPathFinder):
    """Finds modules in files that stand elsewhere."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = files

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = self._files.get(fullname)
        return None if file is None else spec_from_file_location(fullname, file)


if __name__ == "__main__":
    try:
        build()
    except subprocess.CalledProcessError:
        fix = "see above; it takes a C compiler, and Python packages that `pip install '.[native]'` brings"
        sys.exit(f"error: the simulator could not be compiled, so it stays interpreted: {fix}")
