"""Functions in a process of their own, bounded in time and memory: it is killed when a call exceeds them."""

from __future__ import annotations

import asyncio
import os
import pickle
import resource
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import Any, TypeVar

T = TypeVar("T")
_MIB = 2**20
_PATIENCE = 10
"""Wall time of a call per second of its CPU time: other work of the machine does not refuse a client."""
_PROGRAM = "import sys; from blis_py.serve.killable import work; work(int(sys.argv[1]))"


class LimitExceeded(Exception):
    """A call took too long or too much memory."""


class Killable:
    """Worker process for calls that a client's input can make expensive; started at the first call.

    Args:
        make: called with `arguments` in the process, once; returns the function that each call runs. It must
            be importable, and its arguments picklable.
        start_s: time for its start, imports included.
        cpu_s, memory_mib: limits of a call; waiting has ten times as long.
    """

    def __init__(
        self,
        make: Callable[..., Callable[..., T]],
        arguments: tuple[Any, ...] = (),
        *,
        start_s: float = 300.0,
        cpu_s: float = 10.0,
        memory_mib: int = 1024,
    ) -> None:
        self._make, self._arguments = make, arguments
        self._start_s, self._cpu_s, self._memory_mib = start_s, cpu_s, memory_mib
        self._thread = ThreadPoolExecutor(1, "killable")
        self._process: Popen[bytes] | None = None
        self._pipe: Connection | None = None
        self._closed = False

    async def call(self, *arguments: Any) -> Any:
        """The function's result, or its exception; see `run`."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self.run, *arguments)

    def run(self, *arguments: Any) -> Any:
        """The same, waiting.

        Raises:
            LimitExceeded: it took too long or too much memory.
            Exception: as the function raises it.
        """
        pipe = self._started()
        try:
            pipe.send(arguments)
            if not pipe.poll(_PATIENCE * self._cpu_s):
                raise LimitExceeded(f"takes longer than {_PATIENCE * self._cpu_s:g} s")
            ok, value = pipe.recv()
        except (EOFError, OSError):
            if self._kill() == -signal.SIGPROF:
                raise LimitExceeded(f"takes longer than {self._cpu_s:g} s") from None
            raise LimitExceeded(f"takes more than {self._memory_mib:,} MiB") from None
        except BaseException:
            self._kill()
            raise
        if ok:
            return value
        if isinstance(value, MemoryError):
            self._kill()
            raise LimitExceeded(f"takes more than {self._memory_mib:,} MiB")
        raise value

    def close(self) -> None:
        """Kill the process and refuse further calls, without waiting for one in progress."""
        self._closed = True
        self._kill()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _started(self) -> Connection:
        if self._closed:
            raise LimitExceeded("is not begun: the server is stopping")
        if self._pipe is None:
            self._pipe, theirs = Pipe()
            with theirs:
                self._process = Popen(
                    [sys.executable, "-c", _PROGRAM, str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=DEVNULL,
                    stdout=DEVNULL,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                )
            self._pipe.send((self._make, self._arguments, self._memory_mib, self._cpu_s))
            if not self._pipe.poll(self._start_s) or not self._pipe.recv():
                self._kill()
                raise LimitExceeded("cannot be done: its process does not start")
        return self._pipe

    def _kill(self) -> int:
        """End the process; its exit status, negative where a signal ended it."""
        process, self._process = self._process, None
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            pipe.close()
        if process is None:
            return 0
        process.kill()  # without effect on one that has ended
        return process.wait()


def work(descriptor: int) -> None:
    """The process: a call after another until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is for the server, which ends this
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    pipe = Connection(descriptor)
    make, arguments, memory_mib, cpu_s = pipe.recv()
    function = make(*arguments)
    os.nice(5)
    limit = _virtual_bytes() + memory_mib * _MIB
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    pipe.send(True)
    while True:
        try:
            arguments = pipe.recv()
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_PROF, cpu_s)  # ends the process by SIGPROF
        signal.alarm(int(_PATIENCE * cpu_s) + 5)  # the end, should the server have been killed
        outcome = _outcome(function, arguments)
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        pipe.send(outcome)


def _outcome(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[bool, Any]:
    try:
        return True, function(*arguments)
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            error = RuntimeError(str(error))
        return False, error


def _virtual_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
