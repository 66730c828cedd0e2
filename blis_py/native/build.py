"""Build of the native code: mypyc translates the modules to C, and the C compiler does the rest."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from blis_py.errors import InputError
from blis_py.native import EVERY_STEP, MANIFEST, PACKAGE, SOME, digest, digests, folder
from blis_py.outputs.staging import replacing, write_text

_TYPES = """
[mypy]
follow_imports = silent
[mypy-pandas.*,scipy.*,matplotlib.*,simpy.*,pydantic.*,yaml.*]
follow_imports = skip
follow_imports_for_stubs = true
ignore_missing_imports = true
"""
"""Stubs for mypy. Reading the types of these libraries would take it as long as all the rest."""


def build() -> None:
    """Translate and compile `MODULES`, which takes up to a minute.

    Raises:
        InputError: something that it takes is missing, or it did not work.
    """
    _check_tools()
    home, sources = folder().absolute(), digests()
    (home / MANIFEST).unlink(missing_ok=True)  # until all is there, nothing is
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch, "mypy.ini").write_text(_TYPES, encoding="utf-8")
        command = [
            sys.executable,
            "-m",
            "blis_py.native.setup",
            scratch,
            *_files(EVERY_STEP),
            "--",
            *_files(SOME),
        ]
        done = subprocess.run(command, cwd=_sources(Path(scratch)), capture_output=True, text=True)
        if done.returncode:
            home.mkdir(parents=True, exist_ok=True)
            log = home / "failed.log"
            log.write_text(done.stdout + done.stderr, encoding="utf-8")
            raise InputError("compiling failed", file=log, fix="see what it says")
        files = _install(Path(scratch, "library"), home)
    _tidy_up(home, files.values())
    stamps = {file: digest(home / file) for file in files.values()}
    manifest = json.dumps({"sources": sources, "files": files, "digests": stamps}, indent=1)
    write_text(home / MANIFEST, manifest)


def _files(modules: Iterable[str]) -> list[str]:
    return [str(Path(PACKAGE.name, *name.split(".")).with_suffix(".py")) for name in modules]


def _sources(scratch: Path) -> Path:
    """The package alone, in a folder of its own.

    Where it is installed, others lie beside it, and mypy would take them for what is to be translated. What
    its packages gather in their `__init__` is left out: mypy would read nearly everything for it.
    """
    place = scratch / "sources"
    for path in PACKAGE.rglob("*.py"):
        copy = place / path.relative_to(PACKAGE.parent)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.name == "__init__.py":
            copy.touch()
        else:
            shutil.copyfile(path, copy)
    return place


def _check_tools() -> None:
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        raise InputError("there is no C compiler", key="CC", value=compiler, fix="install it")
    headers = Path(sysconfig.get_path("include"), "Python.h")
    if not headers.exists():
        raise InputError("Python's headers are missing", file=headers, fix="install them (python3-dev)")
    for package in ("mypyc", "setuptools"):
        if find_spec(package) is None:
            raise InputError("a package is missing", key=package, fix="pip install mypy setuptools")


def _install(library: Path, home: Path) -> dict[str, str]:
    """Move the compiled files to their place; returns the file of each module."""
    files = {}
    for path in sorted(path for path in library.rglob("*") if path.suffix in (".so", ".pyd")):
        file = path.relative_to(library)
        (home / file).parent.mkdir(parents=True, exist_ok=True)
        with replacing(home / file) as copy:  # another process may be running the former one
            shutil.copyfile(path, copy)
        files[_module_of(file)] = str(file)
    return files


def _tidy_up(home: Path, files: Iterable[str]) -> None:
    """Remove files of a former translation: a wheel contains whatever is there."""
    current = {home / file for file in files}
    for path in [path for path in home.rglob("*") if path.suffix in (".so", ".pyd") and path not in current]:
        with suppress(OSError):  # on some systems a file in use cannot be deleted
            path.unlink()


def _module_of(library: Path) -> str:
    """`blis_py/core/kv.cpython-311-x86_64-linux-gnu.so` is `blis_py.core.kv`."""
    return ".".join([*library.parent.parts, library.name.partition(".")[0]])
