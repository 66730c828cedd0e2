"""Worker processes are as many as there are jobs, and end with the process that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from blis_py.errors import InputError
from blis_py.planning import orphans
from blis_py.planning.executors import MAX_WORKERS, Processes, executor
from blis_py.planning.job import Job
from blis_py.planning.runner import Runner
from blis_py.planning.store import Nowhere

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
HANGS_S = 300
"""Only a process that hangs takes so long, however busy the machine is."""
_STUDY = """
import os, sys, time
from blis_py.planning import executors, orphans, worker
if sys.argv[1] == "watched":
    orphans._ends_by_the_kernel = lambda: False
def sleep(packed):
    os.write(1, f"{os.getpid()}\\n".encode())
    time.sleep(1000)
worker.run = sleep
list(executors.Processes(2).outcomes([b"", b""]))
"""


@pytest.mark.slow
@POSIX
@pytest.mark.parametrize("how", ["by the kernel", "watched"])
@pytest.mark.skipif(sys.platform != "linux", reason="what is changed here is changed in forks only")
def test_workers_end_with_a_study_that_is_killed(how: str) -> None:
    """And so the pipe that they have inherited is closed."""
    study = subprocess.Popen([sys.executable, "-c", _STUDY, how], stdout=subprocess.PIPE, text=True)
    assert study.stdout is not None
    workers = [int(study.stdout.readline()) for _ in range(2)]
    assert all(map(_lives, workers))
    study.kill()
    study.wait()
    try:
        assert _within(HANGS_S, lambda: not any(map(_lives, workers)))
        assert study.stdout.read() == ""
    finally:
        for pid in filter(_lives, workers):
            os.kill(pid, signal.SIGKILL)
        study.stdout.close()


def test_a_worker_whose_parent_has_ended_before_it_began_ends(tmp_path: Path) -> None:
    code = "from blis_py.planning.orphans import end_with; end_with(0); import time; time.sleep(1000)"
    assert subprocess.run([sys.executable, "-c", code], timeout=HANGS_S, check=False).returncode == 1


@pytest.mark.slow
def test_there_are_no_more_processes_than_jobs(jobs: list[Job]) -> None:
    processes = Processes(300)
    sizes = []
    with Runner(processes, Nowhere()) as runner:
        for count in (2, 1, 3):
            runner.run(jobs[:count])
            assert processes._pool is not None
            sizes.append(len(processes._pool._processes))
    assert sizes == [2, 2, 3]


@pytest.mark.parametrize("workers", [0, MAX_WORKERS + 1, 10**6])
def test_a_number_of_workers_beyond_all_machines_is_refused(workers: int) -> None:
    with pytest.raises(InputError, match="--workers: must be at"):
        executor(workers)


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def _within(seconds: float, holds: object) -> bool:
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        if callable(holds) and holds():
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize(
    ("platform", "answer", "by_kernel"),
    [("linux", 0, True), ("linux", -1, False), ("win32", 0, False), ("linux", None, False)],
)
def test_the_kernel_ends_a_process_with_its_parent_on_linux(
    monkeypatch: pytest.MonkeyPatch, platform: str, answer: int | None, by_kernel: bool
) -> None:
    def library(name: None) -> Any:
        if answer is None:
            raise OSError
        return SimpleNamespace(prctl=lambda what, signal: answer)

    monkeypatch.setattr(orphans, "sys", SimpleNamespace(platform=platform))
    monkeypatch.setattr(orphans.ctypes, "CDLL", library)
    assert orphans._ends_by_the_kernel() == by_kernel


@pytest.mark.parametrize(
    ("by_kernel", "parent", "happens"),
    [(True, 7, []), (True, 8, ["exit 1"]), (False, 7, ["watch 7"]), (False, 8, ["watch 8"])],
)
def test_a_process_ends_at_once_if_its_parent_is_gone_already(
    monkeypatch: pytest.MonkeyPatch, by_kernel: bool, parent: int, happens: list[str]
) -> None:
    seen: list[str] = []

    class Thread:
        def __init__(self, target: Any, args: tuple[int], daemon: bool) -> None:
            assert daemon
            seen.append(f"watch {args[0]}")

        def start(self) -> None: ...

    monkeypatch.setattr(orphans, "_ends_by_the_kernel", lambda: by_kernel)
    monkeypatch.setattr(orphans, "threading", SimpleNamespace(Thread=Thread))
    monkeypatch.setattr(
        orphans, "os", SimpleNamespace(getppid=lambda: 7, _exit=lambda code: seen.append(f"exit {code}"))
    )
    orphans.end_with(parent)
    assert seen == happens
