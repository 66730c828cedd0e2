"""A child process under a time limit: what it prints is passed on as it comes, and nothing of it is left."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

LOG_BYTES = 512 << 10
"""Of what one process prints, kept in the log."""
ENDING = ((signal.SIGINT, 6.0), (signal.SIGTERM, 3.0), (signal.SIGKILL, 2.0))
"""Signals that end a process, and how long each has, s."""
ENDING_S = sum(seconds for _, seconds in ENDING)
_LOOK_EVERY_S = 0.1
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Ended:
    """How it went."""

    state: str
    """`done`, `failed`, `out of time` or `interrupted`."""
    code: int | None
    seconds: float
    tail: str
    """The end of what it printed."""


def run(
    command: Sequence[str],
    *,
    environment: dict[str, str],
    folder: Path,
    log: Path,
    limit_s: float,
    interrupted: Callable[[], bool],
) -> Ended:
    """Runs it to its end, or to that of its time."""
    began_s = time.monotonic()
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        process_group=0,
        preexec_fn=_end_with_the_parent,
    )
    report = _Telling(process, log)
    why = ""
    while process.poll() is None and not why:
        time.sleep(_LOOK_EVERY_S)
        if interrupted():
            why = "interrupted"
        elif time.monotonic() - began_s >= limit_s:
            why = "out of time"
    if why:
        _end(process)
    _signal_group(process, signal.SIGKILL)  # whatever it started and left
    report.finish()
    state = why or ("done" if process.returncode == 0 else "failed")
    return Ended(state, process.returncode, time.monotonic() - began_s, report.tail)


def _end(process: subprocess.Popen[bytes]) -> None:
    for number, seconds in ENDING:
        _signal_group(process, number)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            continue
        return


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _end_with_the_parent() -> None:
    """End a child with its parent (Linux), so that no orphan keeps the GPU when the campaign is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class _Telling(threading.Thread):
    """Passes on what a process prints: to stdout, and to a log as far as that has room."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        super().__init__(daemon=True)
        assert process.stdout is not None
        self._pipe, self._log, self._room = process.stdout, log, LOG_BYTES
        self.tail = ""
        self.start()

    def run(self) -> None:
        with self._log.open("ab", buffering=0) as log:
            for line in self._pipe:
                if self._room > 0:
                    log.write(line)
                    self._room -= len(line)
                    if self._room <= 0:
                        log.write(b"(it printed more than that)\n")
                text = line.decode(errors="replace")
                self.tail = (self.tail + text)[-4000:]
                sys.stdout.write(text)
                sys.stdout.flush()

    def finish(self) -> None:
        """It is over; what it had printed is passed on."""
        self.join(5.0)
