"""Worker processes of the page: jobs in turn, the latest state of each tab wins, stale jobs are cancelled."""

from __future__ import annotations

import asyncio
import gc
import json
import multiprocessing
import os
import pickle
import signal
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_py import native

native.activate()  # for worker processes, which import this first; the configuration imports native modules

from blis_py.errors import InputError  # noqa: E402
from blis_py.planning.orphans import end_with  # noqa: E402

if TYPE_CHECKING:
    from blis_py.config.models import RunConfig

Json = dict[str, Any]
Gone = Callable[[], Awaitable[bool]]
"""Whether the client has left."""
SUPERSEDED = {"superseded": True}
_LOOK_S = 0.25
DIED = "the process that simulates died twice on this; the last of its words may be on the terminal"


class Cancelled(Exception):
    """The job is stale."""


class Lane:
    """One worker process, restarted if it dies.

    Args:
        base, folder: of its `Desk`.
        niceness: added to that of the process, so that it leaves the processor to quicker ones.
    """

    def __init__(self, base: RunConfig, folder: Path, niceness: int = 0) -> None:
        self._base, self._folder, self._niceness = base, folder, niceness
        self._context = multiprocessing.get_context("spawn")
        self._turn = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1)
        self._latest: dict[str, str] = {}
        """The state of each tab, as JSON: jobs of any other are stale."""
        self._running: tuple[str, str] | None = None
        self._start()

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def _start(self) -> None:
        self._cancel = self._context.RawValue("b", 0)
        self._pipe, theirs = self._context.Pipe()
        arguments = (theirs, self._cancel, self._base, self._folder, os.getpid(), self._niceness)
        self._process = self._context.Process(target=serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()

    def move(self, tab: str, state: Any) -> str:
        """Cancel the jobs of a tab that are of another state; returns the state as JSON."""
        self._latest[tab] = text = json.dumps(state, sort_keys=True)
        if self._running is not None and self._running[0] == tab and self._running[1] != text:
            self._cancel.value = 1
        return text

    def leave(self, tab: str) -> None:
        """Cancel the jobs of a tab that was closed."""
        self._latest.pop(tab, None)
        if self._running is not None and self._running[0] == tab:
            self._cancel.value = 1

    async def do(self, tab: str, job: Json, gone: Gone | None = None) -> Json:
        """The answer to a job; `SUPERSEDED` if the tab has moved on since, or its client has left."""
        state = self.move(tab, job.get("state"))
        async with self._turn:
            if self._latest.get(tab) != state or (gone is not None and await gone()):
                return SUPERSEDED
            self._running = tab, state
            self._cancel.value = 0
            try:
                return await self._answered(job, gone)
            finally:
                self._running = None

    async def _answered(self, job: Json, gone: Gone | None) -> Json:
        loop = asyncio.get_running_loop()
        for _ in range(2):
            waiting = loop.run_in_executor(self._thread, self._exchange, job)
            while not waiting.done():
                await asyncio.wait([waiting], timeout=_LOOK_S)
                if not waiting.done() and gone is not None and await gone():
                    self._cancel.value = 1
            answer = waiting.result()
            if answer is not None:
                return answer
            self._process.join(1)
            self._start()
        return {"failed": DIED}

    def _exchange(self, job: Json) -> Json | None:
        """Send a job, wait for the answer; None if the process died."""
        try:
            self._pipe.send_bytes(pickle.dumps(job))
            answer: Json = pickle.loads(self._pipe.recv_bytes())
        except (EOFError, OSError):
            return None
        return answer

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        self._thread.shutdown(wait=False, cancel_futures=True)


def serve(
    pipe: Connection, cancel: Any, base: RunConfig, folder: Path, parent_pid: int, niceness: int
) -> None:
    """The main loop of a worker process; garbage is collected after each answer, not during a job."""
    end_with(parent_pid)
    os.nice(niceness)
    gc.disable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from blis_py.ui._work import Desk

    desk = Desk(base, folder)

    def progress(ended: int, total: int) -> None:
        if cancel.value:
            raise Cancelled

    while True:
        try:
            job = pickle.loads(pipe.recv_bytes())
        except EOFError:
            return
        pipe.send_bytes(pickle.dumps(_answer(desk, job, progress)))
        gc.collect()


def _answer(desk: Any, job: Json, progress: Callable[[int, int], None]) -> Json:
    try:
        answer: Json = desk.do(job, progress)
    except Cancelled:
        return SUPERSEDED
    except InputError as error:
        return {"refused": str(error)}
    except MemoryError:
        return {"failed": "not enough memory"}
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}"}
    return answer
