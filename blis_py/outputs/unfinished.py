"""Where something stands until it is whole: a hidden folder beside its place, locked while its process lives.

What a killed process left is recognised by its name and by nobody's having the lock.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

PREFIX = ".blis-unfinished-"
NO_LOCKS = -1
"""In place of a file descriptor, where the system knows no locks."""


def is_unfinished(path: Path) -> bool:
    """Whether this lies in such a folder."""
    return any(part.startswith(PREFIX) for part in path.absolute().parts)


def new_name(home: Path) -> Path:
    """Of one in the folder `home`, which nobody has."""
    return home / f"{PREFIX}{os.urandom(6).hex()}"


def make(path: Path) -> int:
    """Make it, and returns its lock: a file descriptor to be closed when it is gone, or `NO_LOCKS`."""
    while True:
        path.mkdir()
        lock = _lock(path)
        if lock is not None and path.exists():
            return lock
        # Somebody took it for a left-over before it was locked, and removed it.


def sweep(home: Path) -> None:
    """Remove what killed processes left in a folder; what one of them had all but done is done first."""
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
    """None where another process has the lock."""
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
