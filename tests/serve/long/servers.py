"""Servers in processes of their own, for clients and stress tests; always stopped."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.request import Request, urlopen

from blis_py.serve.wallclock import loop_factory

ROOT = Path(__file__).resolve().parents[3]
TINY = ROOT / "engine" / "tiny" / "checkpoints" / "ar"
FLEET = ("serve", "--model", "qwen3-14b", "--gpu", "h100", "--enable-admin")
ENGINE = ("engine", "serve", "--model", str(TINY), "--device", "cpu")
_START_S = 120.0
_T = TypeVar("_T")


def run(work: Coroutine[Any, Any, _T]) -> _T:
    """A client's work, in the event loop of servers and clients."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(work)


class Server:
    """A running server."""

    def __init__(self, process: subprocess.Popen[str], urls: list[str], log: Path) -> None:
        self.process, self.urls, self.log = process, urls, log

    @property
    def url(self) -> str:
        return self.urls[0]

    def get(self, path: str) -> str:
        with urlopen(self.url + path, timeout=30) as answer:
            return str(answer.read().decode())

    def post(self, path: str, body: dict[str, Any] | None = None, timeout: float = 60) -> Any:
        data = json.dumps(body or {}).encode()
        request = Request(self.url + path, data, {"Content-Type": "application/json"})
        with urlopen(request, timeout=timeout) as answer:
            return json.loads(answer.read() or b"null")

    def metric(self, name: str) -> float:
        """Sum of a metric over its labels."""
        lines = self.get("/metrics").splitlines()
        found = [line.rsplit(" ", 1) for line in lines if re.match(re.escape(name) + r"[{ ]", line)]
        return sum(float(value) for _, value in found)

    @property
    def rss_mb(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024

    @property
    def cpu_s(self) -> float:
        """CPU time it has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self, how: int = signal.SIGTERM, wait_s: float = 60) -> int:
        """End it; returns its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        return self.process.wait(wait_s)


_SCRATCH = tempfile.TemporaryDirectory(prefix="blis-long-")


def scratch(name: str) -> Path:
    """A path of its own for a file or folder that goes with the process."""
    return Path(_SCRATCH.name, f"{time.monotonic_ns()}-{name}")


@contextmanager
def serving(*words: str, log: Path | None = None) -> Iterator[Server]:
    """`blis` with these words, on free ports."""
    log = log or scratch("serving.log")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with log.open("w") as to:
        process = subprocess.Popen(
            [sys.executable, "-m", "blis_py", *words, "--port", "0"],
            stderr=to,
            stdout=to,
            text=True,
            cwd=ROOT,
            env=environment,
        )
    try:
        yield Server(process, _ready(process, log), log)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _ready(process: subprocess.Popen[str], log: Path) -> list[str]:
    until = time.monotonic() + _START_S
    while time.monotonic() < until:
        text = log.read_text()
        wanted, found = text.count("listening on"), re.findall(r"ready on (\S+)", text)
        if found and len(found) >= wanted:
            return found
        if process.poll() is not None:
            raise RuntimeError(f"the server ended: {text[-2000:]}")
        time.sleep(0.1)
    raise TimeoutError(log.read_text()[-2000:])
