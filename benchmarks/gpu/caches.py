"""Compiled kernels: where a campaign keeps them, and how they travel to the next machine.

Triton's cache and the CUDA library lie in one folder outside of what is brought home. `pack` puts what is
needed of it into files of a size that can be carried, `unpack` puts it back on a machine that has none.
"""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path

TRITON, LIBRARY = "triton", "blis/kernels"
PIECE_BYTES = 16 << 20
MAX_PIECES = 2
_PACKED = "caches.tar.gz"
_LEVEL = 4
_FOR_PEOPLE = (".source", ".ttir", ".ttgir", ".llir", ".ptx")
"""Stages of compilation beside the machine code: four fifths of Triton's cache, and no run loads them."""


def environment(cache: Path) -> dict[str, str]:
    """Variables with which kernels are compiled into the folder, and found there."""
    return {"TRITON_CACHE_DIR": str(cache / TRITON), "XDG_CACHE_HOME": str(cache)}


def content(cache: Path) -> frozenset[tuple[str, int]]:
    """The files that are worth carrying, with their sizes."""
    found = set()
    for part in (TRITON, LIBRARY):
        for path in (cache / part).rglob("*"):
            unfinished = any(folder.startswith("tmp") for folder in path.parts[len(cache.parts) :])
            if path.is_file() and path.suffix not in _FOR_PEOPLE and not unfinished:
                found.add((str(path.relative_to(cache)), path.stat().st_size))
    return frozenset(found)


def pack(cache: Path, out: Path) -> str:
    """Packs what is there, in place of what was packed before; says what it did."""
    names = sorted(name for name, _ in content(cache))
    if not names:
        return "no kernels were compiled"
    half = cache / _PACKED
    with tarfile.open(half, "w:gz", compresslevel=_LEVEL) as archive:
        for name in names:
            archive.add(cache / name, name)
    data = half.read_bytes()
    half.unlink()
    pieces = [data[start : start + PIECE_BYTES] for start in range(0, len(data), PIECE_BYTES)]
    if len(pieces) > MAX_PIECES:
        return f"{len(names)} files are {len(data):,} bytes packed: too many to carry"
    for number in range(MAX_PIECES):
        target = out / f"{_PACKED}.{number}"
        if number < len(pieces):
            unfinished = out / f"unfinished-{_PACKED}"
            unfinished.write_bytes(pieces[number])
            os.replace(unfinished, target)
        else:
            target.unlink(missing_ok=True)
    return f"packed {len(names)} files of compiled kernels, {len(data):,} bytes"


def unpack(out: Path, cache: Path) -> str:
    """Puts packed kernels where a campaign looks for them, unless it has some; says what it did."""
    pieces = sorted(out.glob(f"{_PACKED}.*"))
    if not pieces or content(cache):
        return ""
    cache.mkdir(parents=True, exist_ok=True)
    whole = cache / _PACKED
    whole.write_bytes(b"".join(piece.read_bytes() for piece in pieces))
    try:
        with tarfile.open(whole, "r:gz") as archive:
            archive.extractall(cache, filter="data")
        _moved(cache)
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        return f"the packed kernels cannot be read ({error}); they are compiled again"
    finally:
        whole.unlink()
    return f"unpacked {len(content(cache))} files of compiled kernels"


def _moved(cache: Path) -> None:
    """Triton notes whole paths of the files of a kernel, and compiles it again where these lead nowhere."""
    for path in (cache / TRITON).glob("*/__grp__*.json"):
        names = json.loads(path.read_text(encoding="utf-8"))["child_paths"]
        here = {name: str(path.parent / name) for name in names}
        path.write_text(json.dumps({"child_paths": here}), encoding="utf-8")
