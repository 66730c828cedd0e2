"""Worker processes that end with their parent process, however that ends."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time

_PR_SET_PDEATHSIG = 1
_POLL_S = 0.5


def end_with(parent_pid: int) -> None:
    """Make this process end with its parent: by the kernel where possible, else within `_POLL_S`."""
    if not _ends_by_the_kernel():
        threading.Thread(target=_watch, args=(parent_pid,), daemon=True).start()
    elif os.getppid() != parent_pid:  # the parent has ended in the meantime
        os._exit(1)


def _ends_by_the_kernel() -> bool:
    if sys.platform != "linux":
        return False
    try:
        return bool(ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) == 0)
    except (OSError, AttributeError):
        return False


def _watch(parent_pid: int) -> None:
    """Test by the number of the parent, which changes on POSIX, and by its handle on Windows."""
    parent = multiprocessing.parent_process()
    while os.getppid() == parent_pid and (parent is None or parent.is_alive()):
        time.sleep(_POLL_S)
    os._exit(1)
