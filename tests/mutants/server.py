"""A process that has imported the libraries, and runs tests in forks of itself.

Reads a job a line, prints what came of it a line: the verdict and the test it is about.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from importlib import import_module
from pathlib import Path
from select import select
from typing import Any

LIBRARIES = (
    *("numpy", "pandas", "scipy.stats", "scipy.optimize", "scipy.special", "pydantic", "simpy", "yaml"),
    *("rich.console", "rich.table", "matplotlib.pyplot", "jinja2", "fastapi", "fastapi.testclient", "httpx"),
    *("hypothesis", "hypothesis.stateful", "pytest"),
)
SURVIVES, KILLED, UNDECIDED = "survives", "killed", "not decided"


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the tests in progress, too
    for name in LIBRARIES:
        try:
            import_module(name)
        except ImportError:
            continue
    for line in sys.stdin:
        print(json.dumps(_run(json.loads(line))), flush=True)


def _run(job: dict[str, Any]) -> tuple[str, str]:
    receive, send = os.pipe()
    child = os.fork()
    if not child:
        os.close(receive)
        _child(job, send)
    os.close(send)
    try:
        return _verdict(receive, job["limit_s"], job["hangs_s"])
    finally:
        os.close(receive)
        _end(child)


def _end(child: int) -> None:
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def _verdict(receive: int, limit_s: float, hangs_s: float) -> tuple[str, str]:
    """Follow the notes of a child until they decide."""
    started, rest = "", b""
    while select([receive], [], [], hangs_s)[0]:
        piece = os.read(receive, 1 << 16)
        if not piece:
            return KILLED, f"dies in {started}"
        *lines, rest = (rest + piece).split(b"\n")
        for what, test, used_s in map(json.loads, lines):
            if what == "failed":
                return KILLED, test
            if what == "end":
                return SURVIVES, ""
            started = test
            if used_s > limit_s:
                return UNDECIDED, ""
    return KILLED, f"hangs in {started}"


def _child(job: dict[str, Any], send: int) -> None:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.chdir(job["root"])
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    sys.path[:0] = [job["root"], str(Path(__file__).parent)]
    os.environ.update(job["environment"])
    import pytest

    plugins: list[object] = [Notes(send, job["tests"])]
    if "reach" in job:
        from reach import Recorded

        plugins.append(Recorded(Path(job["reach"])))
    flags = ["-q", "--tb=no", "-p", "no:cacheprovider", "-p", "no:xdist", f"--basetemp={job['scratch']}"]
    pytest.main([*flags, *([] if "reach" in job else ["-x"]), *job["files"]], plugins)
    os.write(send, b'["end", "", 0]\n')
    os._exit(0)


class Notes:
    """What happens to each test, as lines to the server.

    Args:
        tests: those to run, in this order; empty = all.
    """

    def __init__(self, send: int, tests: list[str]) -> None:
        self._send, self._place = send, {test: place for place, test in enumerate(tests)}

    def _note(self, what: str, test: str) -> None:
        times = os.times()
        os.write(self._send, json.dumps([what, test, sum(times[:4])]).encode() + b"\n")

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        if self._place:
            chosen = [item for item in items if item.nodeid in self._place]
            items[:] = sorted(chosen, key=lambda item: self._place[item.nodeid])

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self._note("failed", report.nodeid)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._note("started", nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not hasattr(report, "wasxfail"):
            self._note("failed", report.nodeid)


if __name__ == "__main__":
    main()
