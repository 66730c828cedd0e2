"""Wheels of engines: downloaded once by pip, checked against pinned hashes, and only their Python kept."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from blis_py.errors import InputError
from blis_py.files.yaml_files import load_mapping

PINS = Path(__file__).with_name("wheels.yaml")
NEWEST = "newest"
_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
_DOWNLOAD_S = 900
_CHUNK_BYTES = 1 << 20


class Wheel(NamedTuple):
    """The Python of a release, unpacked.

    Attributes:
        version: full version.
        root: folder that contains the package.
    """

    version: str
    root: Path


def cache_folder() -> Path:
    """Folder of unpacked wheels: `BLIS_ENGINES_CACHE`, or in the user's cache."""
    given = os.environ.get("BLIS_ENGINES_CACHE")
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(given) if given else home / "blis-engines"


def pinned(package: str) -> dict[str, str]:
    """SHA-256 of the wheels of a package, by version."""
    return {str(version): str(digest) for version, digest in load_mapping(PINS)[package].items()}


def full_version(package: str, version: str) -> str | None:
    """The pinned patch release of a minor version, the newest release there is for `newest`; others stand for
    themselves. None if the newest cannot be found out."""
    if version == NEWEST:
        return _newest(package)
    return next((pin for pin in pinned(package) if pin == version or pin.startswith(f"{version}.")), version)


def unpacked(package: str, version: str, kept: Sequence[str]) -> Wheel | None:
    """The Python of a release; None, and a note on stderr, if it cannot be had.

    Args:
        kept: beginnings of the paths that are kept.

    Raises:
        InputError: the wheel is not the one that was pinned.
    """
    full = full_version(package, version)
    if full is None:
        _note(f"{package} {version}: skipped, the newest release is not known here")
        return None
    root = cache_folder() / f"{package}-{full}"
    if not root.exists():
        with tempfile.TemporaryDirectory() as folder:
            wheel = _downloaded(package, full, Path(folder))
            if wheel is None:
                _note(f"{package} {full}: skipped, its wheel cannot be downloaded here")
                return None
            _check(package, full, wheel)
            _unpack(wheel, root, kept)
    return Wheel(full, root)


def _newest(package: str) -> str | None:
    done = _run([*_PIP, "index", "versions", package])
    found = re.search(r"\((\d[\w.]*)\)", done or "")
    return found[1] if found else None


def _downloaded(package: str, version: str, folder: Path) -> Path | None:
    _note(f"{package} {version}: downloading its wheel")
    options = ["--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(folder)]
    done = _run([*_PIP, "download", *options, f"{package}=={version}"])
    return None if done is None else next(folder.glob("*.whl"), None)


def _run(command: list[str]) -> str | None:
    """Output of a command; None if it fails."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=_DOWNLOAD_S,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _check(package: str, version: str, wheel: Path) -> None:
    digest = hashlib.sha256()
    with wheel.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    known = pinned(package).get(version)
    if known is None:
        _note(f"{package} {version}: not pinned, its SHA-256 is {digest.hexdigest()}")
    elif known != digest.hexdigest():
        problem, fix = "the wheel is not the pinned one", "delete the pin only if the release was replaced"
        raise InputError(problem, file=PINS, key=f"{package}.{version}", value=digest.hexdigest(), fix=fix)


def _unpack(wheel: Path, root: Path, kept: Sequence[str]) -> None:
    """Unpack next to its place and move, so that a folder in place is complete."""
    root.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=root.parent))
    with zipfile.ZipFile(wheel) as archive:
        names = [n for n in archive.namelist() if n.endswith(".py") and n.startswith(tuple(kept))]
        archive.extractall(partial, names)
    try:
        partial.rename(root)
    except OSError:  # another process was sooner
        shutil.rmtree(partial)


def _note(text: str) -> None:
    print(text, file=sys.stderr)
