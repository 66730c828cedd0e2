"""Validation of output paths, before any work is done."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from blis_py.errors import InputError
from blis_py.files.paths import check_name
from blis_py.outputs.complete import foreign
from blis_py.outputs.unfinished import PREFIX, new_name, sweep


def writable(folder: str | Path, *, force: bool) -> Path:
    """The folder with links resolved, if a result can be written there.

    Args:
        force: allow replacing an existing result. Nothing else is ever replaced.

    Raises:
        InputError: it is a file; it is not empty, or with `force`, holds something that no run wrote; it is
        not writable.
    """
    key = "--out"
    target = Path(os.path.realpath(check_name(str(folder), key=key)))
    if target.exists() and not target.is_dir():
        raise InputError("is a file", key=key, value=str(folder), fix="name a folder")
    _check_permission(target if must_stay(target) else target.parent, key, folder)
    sweep(target.parent)
    if not target.is_dir():
        return target
    sweep(target)
    if not force and any(not path.name.startswith(PREFIX) for path in target.iterdir()):
        fix = "name another, or replace the result in it with --force"
        raise InputError("folder is not empty", key=key, value=str(folder), fix=fix)
    stranger = foreign(target)
    if stranger is not None:
        problem = f"holds {stranger!r}, which is no part of a result, and would be lost"
        raise InputError(problem, key=key, value=str(folder), fix="name another folder, or move it away")
    return target


def check_file(path: str | Path, key: str) -> None:
    """
    Raises:
        InputError: a file cannot be written there: no parent folder, or it is a folder itself.
    """
    if Path(check_name(str(path), key=key)).is_dir():
        raise InputError("is a folder", key=key, value=str(path), fix="name a file")
    if is_stream(path):
        return
    folder = Path(os.path.realpath(path)).parent
    if not folder.is_dir():
        raise InputError("no such folder", key=key, value=str(path), fix="make the folder first")
    _check_permission(folder, key, path)


def check_folder(path: str | Path, key: str) -> None:
    """
    Raises:
        InputError: the folder is not writable, or cannot be created.
    """
    _check_permission(Path(os.path.realpath(check_name(str(path), key=key))), key, path)


def is_stream(path: str | Path) -> bool:
    """Whether the path is a device or a pipe, which can be written to but not replaced."""
    return Path(path).exists() and not Path(path).is_file()


def must_stay(folder: Path) -> bool:
    """Whether a folder cannot be replaced, only its content: a mount, or the working directory."""
    with suppress(OSError):
        here = Path.cwd()
        return folder.is_dir() and (os.path.ismount(folder) or folder in (here, *here.parents))
    return False


def _check_permission(folder: Path, key: str, value: str | Path) -> None:
    fix = "name another folder"
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir():
        raise InputError(f"{folder} is a file", key=key, value=str(value), fix=fix)
    try:
        trial = new_name(folder)  # permissions do not apply to root, nor to full or read-only file systems
        trial.mkdir()
        trial.rmdir()
    except OSError as error:
        problem = f"nothing can be written in {folder} ({error.strerror})"
        raise InputError(problem, key=key, value=str(value), fix=fix) from None
