"""Work on many things at a time, each in a process that may fail without harm to the others."""

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
    """What became of one item."""

    index: int
    result: Any
    error: str
    """What went wrong; empty if nothing did."""
    seconds: float
    """Spent on it, once its process had begun."""


class _Worker:
    """A process, and the item it works on."""

    def __init__(self, work: Callable[[Any], Any]) -> None:
        spawn = multiprocessing.get_context("spawn")  # not forked: a process may hold a GPU
        self.pipe, theirs = spawn.Pipe()
        self.process = spawn.Process(target=_serve, args=(work, theirs), daemon=True)
        self.process.start()
        theirs.close()
        self.index = -1

    def begin(self, index: int, item: Any) -> None:
        self.index = index
        with suppress(OSError):  # it has just died, as `finish` will find
            self.pipe.send(item)

    def finish(self) -> Done:
        """The outcome; to be called when there is one, or the process has died."""
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
    """Call `work` on every item in other processes; outcomes in the order in which they come.

    An item whose work raises an exception or kills its process has failed, the others go on. When the time is
    up, what is not done by then has failed as well.

    Args:
        work: can be pickled, as the items and results can.
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
    """Give every idle worker an item, starts workers while there are items, lets go of those without any."""
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
