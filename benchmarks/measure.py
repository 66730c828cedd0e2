"""One core, one child process: how long, how much CPU, how much memory, and how fast the machine was."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

_TURNS = 50_000
_ROUNDS = 5


class ChildFailed(RuntimeError):
    """The measured command did not exit with 0."""


@dataclass(frozen=True, slots=True)
class Repetition:
    """One run of a command, as the kernel accounts for it."""

    wall_s: float
    user_s: float
    system_s: float
    peak_rss_mb: float
    """Largest resident set, in units of 10^6 bytes."""
    calibration_ns: float
    """`calibrate()`, mean of right before and right after."""

    @property
    def cpu_s(self) -> float:
        return self.user_s + self.system_s

    @property
    def cpu_turns(self) -> float:
        """CPU time in turns of the calibration loop: what is left when the machine's speed is divided out."""
        return self.cpu_s * 1e9 / self.calibration_ns


def calibrate() -> float:
    """CPU nanoseconds per turn of a fixed pure-Python loop: how fast this core runs Python right now.

    The median of five rounds of a few ms each, so that one interruption does not count.
    """
    return statistics.median(_round_ns() for _ in range(_ROUNDS))


def _round_ns() -> float:
    table: dict[int, int] = {}
    value = 1
    began_ns = time.process_time_ns()
    for turn in range(_TURNS):
        value = (value * 31 + turn) & 0xFFFFFFFF
        table[value & 1023] = table.get(turn & 1023, 0) + 1
    return (time.process_time_ns() - began_ns) / _TURNS


def pin(core: int | None = None) -> int | None:
    """Keeps this process and its children on one core: the given one, else the last it may use.

    Returns the core, or None where the system has no such call.
    """
    if sys.platform != "linux":
        return None
    chosen = max(os.sched_getaffinity(0)) if core is None else core
    os.sched_setaffinity(0, {chosen})
    return chosen


def run(command: Sequence[str]) -> tuple[Repetition, str]:
    """Runs `command` in the repository root. Returns its figures and its standard output.

    The kernel's peak of a child starts at the resident set of its parent, so the caller has to stay
    smaller than what it measures: nothing here imports more than the standard library.

    Raises:
        ChildFailed: with the last lines of its standard error.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        before = calibrate()
        began = time.perf_counter()
        child = subprocess.Popen(
            command, cwd=ROOT, env=_environment(), stdin=subprocess.DEVNULL, stdout=out, stderr=err
        )
        _, status, usage = os.wait4(child.pid, 0)
        wall_s = time.perf_counter() - began
        after = calibrate()
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode != 0:
            err.seek(0)
            last = err.read().decode(errors="replace").strip().splitlines()[-5:]
            raise ChildFailed(f"exit code {child.returncode} from {' '.join(command)}\n" + "\n".join(last))
        out.seek(0)
        text = out.read().decode()
    unit = 1 if sys.platform == "darwin" else 1024
    peak_rss_mb = usage.ru_maxrss * unit / 1e6
    return Repetition(wall_s, usage.ru_utime, usage.ru_stime, peak_rss_mb, (before + after) / 2), text


def _environment() -> dict[str, str]:
    """The user's, without what changes how Python itself behaves (such as not to keep compiled modules)."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
