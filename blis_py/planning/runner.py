"""Execution of many jobs: outcomes from the store or the executor, in order."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from types import TracebackType

from blis_py.outputs.stopping import Terminated
from blis_py.planning import worker
from blis_py.planning.contents import Contents
from blis_py.planning.executors import JobExecutor
from blis_py.planning.job import Job, JobOutcome
from blis_py.planning.store import ResultStore

OutcomeCallback = Callable[[int, JobOutcome, bool], None]
"""Callback with the index of a job, its outcome, and whether it came from the store."""


class OutOfTime(Exception):
    """The time of a runner is up."""


ENDS = (KeyboardInterrupt, Terminated, OutOfTime)
"""Ends of a study before it is through."""


class Runner:
    """Runner of jobs; equal jobs are simulated once.

    Attributes:
        done: jobs simulated.
        reused: jobs whose outcome was in the store.
        ends_at: when its time is up, by `time.monotonic`: no outcome is awaited from then on.
    """

    def __init__(self, executor: JobExecutor, store: ResultStore, ends_at: float = math.inf) -> None:
        self.done = self.reused = 0
        self.ends_at = ends_at
        self._executor, self._store, self._contents = executor, store, Contents()
        self._warm = False

    def __enter__(self) -> Runner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._executor.close()

    @property
    def workers(self) -> int:
        return self._executor.workers

    def run(self, jobs: Sequence[Job], on_outcome: OutcomeCallback | None = None) -> list[JobOutcome]:
        """The outcomes of all jobs, in the order of the jobs."""
        self._check_time()
        outcomes: dict[int, JobOutcome] = {}
        keys = [self._contents.key_of(job) for job in jobs]
        same: dict[str, list[int]] = {}
        for index, key in enumerate(keys):
            same.setdefault(key or f"#{index}", []).append(index)

        def note(indices: list[int], outcome: JobOutcome, stored: bool) -> None:
            for index in indices:
                outcomes[index] = outcome
                if on_outcome is not None:
                    on_outcome(index, outcome, stored)

        todo = []
        for indices in same.values():
            key = keys[indices[0]]
            known = None if key is None else self._store.get(key)
            if known is None:
                todo.append(indices)
                continue
            self.reused += 1
            note(indices, known, True)
        if todo and not self._warm:
            worker.warm_up(jobs[todo[0][0]])
            self._warm = True
        packed = [worker.pack(jobs[indices[0]], keys[indices[0]]) for indices in todo]
        for at, outcome in self._executor.outcomes(packed):
            indices = todo[at]
            key = keys[indices[0]]
            self.done += 1
            if key is not None:
                self._store.put(key, outcome)
            note(indices, outcome, False)
            self._check_time()
        return [outcomes[index] for index in range(len(jobs))]

    def _check_time(self) -> None:
        if time.monotonic() >= self.ends_at:
            raise OutOfTime("its time is up")
