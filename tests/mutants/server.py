"""A process that has imported the libraries, and runs tests in forks of itself.

Reads a job a line, prints what came of it a line: the verdict and the test it is about.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from select import select
from typing import Any

import pytest
from warm import Warm, forget

LIBRARIES = (
    *("numpy", "pandas", "scipy.stats", "scipy.optimize", "scipy.special", "pydantic", "simpy", "yaml"),
    *("rich.console", "rich.table", "matplotlib.pyplot", "jinja2", "fastapi", "fastapi.testclient", "httpx"),
    *("hypothesis", "hypothesis.stateful"),
)
SURVIVES, KILLED, HANGS, BROKEN = "survives", "killed", "hangs", "does not import"
TEST_LIMIT_S = 12
"""CPU time of one test, many times what it takes where nothing is changed."""
RUN_LIMIT_S = 5
"""The same of a run of the battery."""
BATTERY = "tests/golden/battery"
MEMORY_BYTES = 6 << 30
HANGING = 1
"""Tests that hang before no others are tried."""


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the tests in progress, too
    for name in LIBRARIES:
        try:
            import_module(name)
        except ImportError:
            continue
    for line in sys.stdin:
        job = json.loads(line)
        print(json.dumps(_warmed(job["root"]) if "warm" in job else _run(job)), flush=True)


WARM: list[Warm] = []
"""The checkout's package, in memory."""


def _warmed(root: str) -> tuple[str, str, float]:
    """Import the package, while nothing of it is changed."""
    sys.path[:0] = [root, str(Path(root, BATTERY))]
    os.environ["BLIS_INTERPRETED"] = "1"
    WARM.append(Warm(Path(root)))
    return SURVIVES, "", 0.0


def _run(job: dict[str, Any]) -> tuple[str, str, float]:
    receive, send = os.pipe()
    child = os.fork()
    if not child:
        os.close(receive)
        _child(job, send)
    os.close(send)
    try:
        return *_verdict(receive, job), _used_s(child)
    finally:
        os.close(receive)
        _end(child)


def _used_s(child: int) -> float:
    """CPU time, that of processes which it has waited for included."""
    fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _end(child: int) -> None:
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def _verdict(receive: int, job: dict[str, Any]) -> tuple[str, str]:
    """Follow the notes of a child until they decide.

    A test at its limit of time or memory decides nothing: others get their turn.
    """
    started, rest, hanging = "", b"", list[str]()
    while select([receive], [], [], job["hangs_s"])[0]:
        piece = os.read(receive, 1 << 16)
        if not piece:
            return HANGS, f"dies in {started}"
        *lines, rest = (rest + piece).split(b"\n")
        for what, test, used_s in map(json.loads, lines):
            if what in (KILLED, BROKEN) and "reach" not in job:
                return what, test
            if what == HANGS:
                hanging.append(test)
            if what == "end" or used_s > job["limit_s"] or len(hanging) >= HANGING:
                return (HANGS, hanging[0]) if hanging else (SURVIVES, "")
            started = test
    return HANGS, started


def _child(job: dict[str, Any], send: int) -> None:
    os.setsid()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    signal.signal(signal.SIGVTALRM, _at_its_limit)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.chdir(job["root"])
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    sys.path[:0] = [job["root"], str(Path(__file__).parent)]
    os.environ.update(job["environment"])
    sys.dont_write_bytecode = False  # compiling would take longer than the tests
    if "module" in job and not _changed(job["module"]):
        os.write(send, json.dumps([BROKEN, "", 0]).encode() + b"\n")
    notes = Notes(send, job["tests"])
    if job["files"][0].startswith(BATTERY):
        _battery(job, notes)
    else:
        _pytest(job, notes)
    os.write(send, b'["end", "", 0]\n')
    os._exit(0)


def _changed(module: str) -> bool:
    """Whether the changed module can be imported."""
    try:
        if WARM and WARM[0].changed(module):
            return True
    except Exception:
        pass
    forget()
    return _imports(module)


def _pytest(job: dict[str, Any], notes: Notes) -> None:
    plugins: list[object] = [notes]
    if "reach" in job:
        from reach import Recorded

        plugins.append(Recorded(Path(job["reach"])))
    flags = ["-q", "--tb=no", "-p", "no:cacheprovider", "-p", "no:xdist", f"--basetemp={job['scratch']}"]
    flags += ["-m", "not slow and not long"] if job.get("quick") else []
    pytest.main([*flags, *job["files"]], plugins)


def _battery(job: dict[str, Any], notes: Notes) -> None:
    """Whole runs, without pytest around them: all of a file, or those that are named."""
    sys.path[:0] = [str(Path(job["root"], BATTERY)), str(Path(job["root"], "tests"))]
    sys.path[2:2] = [
        str(Path(job["root"], "tests", folder)) for folder in ("cluster", "extension", "metrics")
    ]
    from battery import expected, outcome, runs

    prefix = f"{BATTERY}/runs/"
    stems = tuple(f"{Path(file).stem}/" for file in job["files"])
    tests = job["tests"] or [
        f"{prefix}{name.replace('/', '.txt::', 1)}" for name in runs() if name.startswith(stems)
    ]
    recorded = None
    if "reach" in job:
        from reach import Recorded

        recorded = Recorded(Path(job["reach"]))
    for test in tests:
        notes.pytest_runtest_logstart(test)
        signal.setitimer(signal.ITIMER_VIRTUAL, TEST_LIMIT_S if recorded else RUN_LIMIT_S)
        name = test.removeprefix(prefix).replace(".txt::", "/", 1)
        try:
            with recorded.run(test) if recorded else nullcontext():
                failed = outcome(name) != expected()[name]
        except (LimitError, MemoryError):
            notes.note(HANGS, test)
        except BaseException:  # whatever else it ends with is a difference
            notes.note(KILLED, test)
        else:
            if failed:
                notes.note(KILLED, test)
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    if recorded:
        recorded.pytest_sessionfinish()


def _imports(module: str) -> bool:
    try:
        import_module(module)
    except Exception:
        return False
    return True


class LimitError(BaseException):
    """More time than any test takes: not to be taken for a failed assertion."""


def _at_its_limit(*_: object) -> None:
    raise LimitError


class Notes:
    """What happens to each test, as lines to the server.

    Args:
        tests: those to run, in this order; empty = all.
    """

    def __init__(self, send: int, tests: list[str]) -> None:
        self._send, self._place = send, {test: place for place, test in enumerate(tests)}

    def note(self, what: str, test: str) -> None:
        times = os.times()
        os.write(self._send, json.dumps([what, test, sum(times[:4])]).encode() + b"\n")

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        if self._place:
            chosen = [item for item in items if item.nodeid in self._place]
            items[:] = sorted(chosen, key=lambda item: self._place[item.nodeid])

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.note(KILLED, report.nodeid)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.note("started", nodeid)
        signal.setitimer(signal.ITIMER_VIRTUAL, TEST_LIMIT_S)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, call: Any) -> Iterator[None]:
        outcome = yield
        report = outcome.get_result()
        if report.failed and not hasattr(report, "wasxfail"):
            at_limit = isinstance(call.excinfo.value, LimitError | MemoryError)
            self.note(HANGS if at_limit else KILLED, report.nodeid)


if __name__ == "__main__":
    main()
