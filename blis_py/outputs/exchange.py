"""Replacement of files and folders, atomic where the system supports it."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

FORMER = ".former"
"""Suffix of the previous folder while the new one is moved into place without an atomic exchange."""
_HERE, _EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux


def replace_file(new: Path, place: Path) -> None:
    """Replace a file, keeping the permissions at its place; if that is a mount, replace the content."""
    with suppress(OSError):
        shutil.copymode(place, new)
    try:
        os.replace(new, place)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        shutil.copyfile(new, place)


def replace_folder(new: Path, place: Path) -> None:
    """Replace a folder. The previous one is exchanged with it, or kept beside it as `FORMER`."""
    if not place.exists():
        os.rename(new, place)
    elif not _exchanged(new, place):
        former = new.with_name(FORMER)
        os.rename(place, former)
        try:
            os.rename(new, place)
        except OSError:
            os.rename(former, place)
            raise


def finish(unfinished: Path, target_folder: Path) -> None:
    """Complete a `replace_folder` interrupted by the death of its process."""
    if (unfinished / FORMER).exists():
        for new in unfinished.iterdir():
            if new.name != FORMER and not (target_folder / new.name).exists():
                os.rename(new, target_folder / new.name)


def fill_folder(new: Path, place: Path, last: str) -> None:
    """Replace the content of a folder that is a mount or the working directory.

    Not atomic: the folder is incomplete while the file `last` is missing.
    """
    (place / last).unlink(missing_ok=True)
    for old in place.iterdir():
        if old != new.parent:
            shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
    for name in sorted(os.listdir(new), key=lambda name: name == last):
        os.rename(new / name, place / name)


def _exchanged(one: Path, other: Path) -> bool:
    """Exchange two paths atomically; False if the system cannot."""
    import ctypes

    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    done: int = rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE)
    return done == 0


@contextmanager
def undisturbed() -> Iterator[None]:
    """Defer termination signals within the block."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        received.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)
        for number in received:
            signal.raise_signal(number)
