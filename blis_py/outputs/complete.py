"""Completeness of a result folder: `complete.json`, written last, lists the files that belong to it.

Contents are not checked, only presence and size: enough to detect a partly copied folder, at no noticeable
cost.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from blis_py.core.kinds import FORMER_FILES
from blis_py.errors import InputError
from blis_py.files.json_files import load_object
from blis_py.files.paths import exists, is_folder
from blis_py.outputs.unfinished import PREFIX, is_unfinished
from blis_py.version import __version__

MARKER = "complete.json"
PICTURES = "plots"
"""Folder without which a result is still complete: its pictures."""

_SIMULATED = {"config.yaml", "summary.json"}
_MEASURED = "run.yaml"
_FORMERLY = {
    *("config.yaml", "summary.json", "requests.csv", "steps.csv", "trace.yaml", "trace.csv", "itl.csv"),
    *("plots/overview.png", "plots/latency_cdf.png", "plots/timeline.png"),
    *("run.yaml", "steps.csv.gz", "steps.requests.csv.gz", *FORMER_FILES),
}
"""Files of results that predate the marker."""


def write_marker(folder: Path) -> None:
    """Write the marker: every file of the folder and its size in bytes."""
    sizes = {name: (folder / name).stat().st_size for name in sorted(_files(folder))}
    text = json.dumps({"blis_py": __version__, "files": sizes}, indent=1, ensure_ascii=False)
    (folder / MARKER).write_text(text + "\n", encoding="utf-8")


def check_complete(path: str | Path) -> None:
    """Refuse an incomplete result.

    Folders not written by a run are not checked, nor are those of measured runs that predate the marker,
    whose `run.yaml` was written last.

    Args:
        path: the folder of a result, or a file in it.

    Raises:
        InputError: left by a killed run; missing files, or files of a different size.
    """
    path = Path(path)
    folder = path if is_folder(path) else path.parent
    if is_unfinished(folder):
        fix = "give the folder it was meant for, or run it again"
        raise InputError("is what an interrupted run left behind", file=folder, fix=fix)
    sizes = _listed(folder)
    if sizes is None:
        _check_unmarked(folder)
        return
    for name, size in sizes.items():
        _check_file(folder, name, size)


def _check_unmarked(folder: Path) -> None:
    begun = any(True for _ in folder.glob(f"{PREFIX}*"))
    if begun or all((folder / name).is_file() for name in _SIMULATED):
        fix = f"run it again, or if you know that it is whole, write {{}} into a file {MARKER} there"
        raise InputError(f"this result may not be complete: it has no {MARKER}", file=folder, fix=fix)


def _check_file(folder: Path, name: str, size: int) -> None:
    file = folder / name
    if name.startswith(f"{PICTURES}/"):
        return
    if not file.is_file():
        fix = f"copy the folder again, or take the file out of {MARKER}"
        raise InputError("this result is not complete: a file is missing", file=folder, value=name, fix=fix)
    size_bytes = file.stat().st_size
    if size_bytes != size:
        fix = f"copy it again, or if you changed it on purpose, take it out of {MARKER}"
        raise InputError(f"has {size_bytes:,} bytes where {size:,} were written", file=file, fix=fix)


def foreign(folder: Path) -> str | None:
    """A file in a folder that no run wrote; None if there is none."""
    try:
        listed = _listed(folder)
    except InputError:
        listed = None
    ours = set(listed or ())
    if not ours and ((folder / _MEASURED).is_file() or all((folder / name).is_file() for name in _SIMULATED)):
        ours = _FORMERLY
    return next((name for name in _files(folder) if name not in ours and name != MARKER), None)


def _files(folder: Path) -> Iterator[str]:
    """Relative names of the files in a folder, of links, and of empty folders (with a slash).

    Unfinished output is ignored.
    """
    for place, folders, files in os.walk(folder):
        inside = Path(place).relative_to(folder)
        folders[:] = [name for name in folders if not name.startswith(PREFIX)]
        links = [name for name in folders if (Path(place) / name).is_symlink()]
        yield from ((inside / name).as_posix() for name in (*files, *links))
        if not (folders or files) and place != str(folder):
            yield f"{inside.as_posix()}/"


def _listed(folder: Path) -> dict[str, int] | None:
    """Content of the marker; None without a marker."""
    file = folder / MARKER
    if not exists(file):
        return None
    try:
        sizes = load_object(file).get("files", {})
    except InputError:
        sizes = None
    if not isinstance(sizes, dict) or not all(type(size) is int for size in sizes.values()):
        fix = "run it again, or copy the folder again"
        raise InputError("this result is not complete: damaged", file=file, fix=fix)
    return sizes
