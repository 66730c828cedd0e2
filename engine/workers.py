"""Parallel work on many items, in processes whose failures are isolated."""

from __future__ import annotations

import multiprocessing
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any


@dataclass(frozen=True, slots=True)
class Done:
    """Result of one item."""

    index: int
    result: Any
    error: str
    """Error message; empty if none."""
    seconds: float
    """Time spent on it in s, from the start of its process."""


class _Worker:
    """A process, and its current item."""

    def __init__(self, work: Callable[[Any], Any]) -> None:
        spawn = multiprocessing.get_context("spawn")  # not forked: this process may hold a GPU
        self.pipe, theirs = spawn.Pipe()
        self.process = spawn.Process(target=_serve, args=(work, theirs), daemon=True)
        self.process.start()
        theirs.close()
        self.index = -1

    def begin(self, index: int, item: Any) -> None:
        self.index = index
        with suppress(OSError):  # it has just died, which `finish` detects
            self.pipe.send(item)

    def finish(self) -> Done:
        """Wait for the result; to be called when there is one, or the process has died."""
        index, self.index = self.index, -1
        try:
            return Done(index, *self.pipe.recv())
        except (EOFError, OSError):
            self.process.join()
            return Done(index, None, f"the process died (exit code {self.process.exitcode})", 0.0)

    def stop(self) -> None:
        self.process.terminate()
        self.process.join()
        self.pipe.close()


def each(
    work: Callable[[Any], Any], items: Sequence[Any], jobs: int, budget_s: float | None = None
) -> Iterator[Done]:
    """Call `work` on every item in other processes; yield the results in order of completion.

    An item whose work raises an exception or kills its process has failed; the others continue. Items not
    done at the time limit have failed as well.

    Args:
        work: picklable, as are the items and results.
    """
    ends_s = None if budget_s is None else time.monotonic() + budget_s
    waiting = deque(enumerate(items))
    workers: list[_Worker] = []
    try:
        while True:
            _keep_busy(workers, waiting, work, jobs)
            if not workers:
                return
            left_s = None if ends_s is None else max(0.0, ends_s - time.monotonic())
            ready = wait([worker.pipe for worker in workers], left_s)
            if not ready:
                break
            for worker in workers:
                if worker.pipe in ready:
                    yield worker.finish()
        for index in [*(worker.index for worker in workers), *(index for index, _ in waiting)]:
            yield Done(index, None, "not done in time", 0.0)
    finally:
        for worker in workers:
            worker.stop()


def _keep_busy(
    workers: list[_Worker], waiting: deque[tuple[int, Any]], work: Callable[[Any], Any], jobs: int
) -> None:
    """Give every idle worker an item, start workers while there are items, stop workers without any."""
    for worker in list(workers):
        if worker.index < 0:
            if waiting and worker.process.is_alive():
                worker.begin(*waiting.popleft())
            else:
                workers.remove(worker)
                worker.stop()
    while waiting and len(workers) < jobs:
        workers.append(_Worker(work))
        workers[-1].begin(*waiting.popleft())


def _serve(work: Callable[[Any], Any], pipe: Connection) -> None:
    """The loop of a worker."""
    while True:
        try:
            item = pipe.recv()
        except (EOFError, OSError):
            return
        began_s, result, problem = time.monotonic(), None, ""
        try:
            result = work(item)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        pipe.send((result, problem, time.monotonic() - began_s))
