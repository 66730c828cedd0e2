"""Temporary folders of unfinished output: hidden, beside the final place, locked by the living process.

Left-overs of killed processes are recognised by their name and a free lock.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

PREFIX = ".blis-unfinished-"
NO_LOCKS = -1
"""Value in place of a file descriptor on systems without locks."""


def is_unfinished(path: Path) -> bool:
    """Whether a path is inside a temporary folder."""
    return any(part.startswith(PREFIX) for part in path.absolute().parts)


def new_name(home: Path) -> Path:
    """An unused name of a temporary folder in `home`."""
    return home / f"{PREFIX}{os.urandom(6).hex()}"


def make(path: Path) -> int:
    """Create the folder and return its lock: a file descriptor to be closed after removal, or `NO_LOCKS`."""
    while True:
        path.mkdir()
        lock = _lock(path)
        if lock is not None and path.exists():
            return lock
        # Another process removed it as a left-over before it was locked.


def sweep(home: Path) -> None:
    """Remove left-overs of killed processes in a folder, after completing almost finished replacements."""
    with suppress(OSError):
        for name in os.listdir(home):
            path = home / name
            if name.startswith(PREFIX) and path.is_dir() and not path.is_symlink():
                _remove_if_left(path)


def _remove_if_left(path: Path) -> None:
    import shutil

    from blis_py.outputs.exchange import finish

    lock = _lock(path)
    if lock is None or lock == NO_LOCKS:
        return
    with suppress(OSError):
        finish(path, path.parent)
    shutil.rmtree(path, ignore_errors=True)
    os.close(lock)


def _lock(path: Path) -> int | None:
    """Lock a folder; None if another process holds the lock."""
    try:
        import fcntl

        lock = os.open(path, os.O_RDONLY)
    except ImportError:
        return NO_LOCKS
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    except OSError:
        os.close(lock)
        return NO_LOCKS
    return lock
