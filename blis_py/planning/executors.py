"""Executors of jobs: this process, processes of this machine, a Dask cluster. The outcomes are the same."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Protocol

from blis_py.core.bounds import check_count
from blis_py.errors import InputError
from blis_py.planning import worker
from blis_py.planning.job import JobOutcome
from blis_py.planning.orphans import end_with

Done = Iterator[tuple[int, JobOutcome]]
MAX_WORKERS = 61 if sys.platform == "win32" else 1024
"""Largest number of processes; Windows cannot wait for more."""
DIED = "its worker process died, and so did the retry"


class JobExecutor(Protocol):
    """An executor of packed jobs, see `worker.pack`."""

    workers: int

    def outcomes(self, jobs: Sequence[bytes]) -> Done:
        """Yield the index of every job and its outcome, each once, in order of completion."""
        ...

    def close(self) -> None: ...


class Serial:
    """Sequential execution in this process."""

    workers = 1

    def outcomes(self, jobs: Sequence[bytes]) -> Done:
        for index, job in enumerate(jobs):
            yield index, worker.run(job)

    def close(self) -> None:
        return None


class Processes:
    """Execution in processes of this machine.

    On Linux they are forked and share what was imported and read before the first job. The job of a process
    that dies is retried once, alone. There are never more processes than concurrent jobs.

    Args:
        workers: processes, at most.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._pool: ProcessPoolExecutor | None = None
        self._size = 0

    def outcomes(self, jobs: Sequence[bytes]) -> Done:
        left = dict(enumerate(jobs))
        if not left:
            return
        try:
            for index, outcome in self._together(left):
                del left[index]
                yield index, outcome
        except BrokenProcessPool:
            self.close()
            for index, job in left.items():
                yield index, self._alone(job)

    def close(self) -> None:
        """Terminate the processes at once, regardless of their state."""
        if self._pool is not None:
            for process in list((self._pool._processes or {}).values()):
                process.terminate()
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def _together(self, jobs: dict[int, bytes]) -> Done:
        pool = self._started(len(jobs))
        waiting = iter(jobs.copy().items())
        running: dict[Future[JobOutcome], int] = {}
        while True:
            while len(running) < 2 * self._size and (job := next(waiting, None)) is not None:
                running[pool.submit(worker.run, job[1])] = job[0]
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(future), future.result()

    def _alone(self, job: bytes) -> JobOutcome:
        try:
            return self._started(1).submit(worker.run, job).result()
        except BrokenProcessPool:
            self.close()
            return JobOutcome(failed=DIED)

    def _started(self, jobs: int) -> ProcessPoolExecutor:
        """A pool for `jobs` jobs; replaces a smaller one."""
        size = min(jobs, self.workers)
        if self._pool is not None and size > self._size:
            self.close()
        if self._pool is None:
            how = "fork" if sys.platform == "linux" else "spawn"
            context = multiprocessing.get_context(how)
            self._pool, self._size = ProcessPoolExecutor(size, context, _begin, (os.getpid(),)), size
        return self._pool


def _begin(parent_pid: int) -> None:
    """Start of a worker: end with its parent and ignore Ctrl-C, which the parent handles."""
    end_with(parent_pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


class Dask:
    """Execution on a Dask cluster: the address of its scheduler, or `local` for one on this machine.

    Dask reschedules the jobs of a worker that dies.

    Raises:
        InputError: Dask is not installed, or no cluster answers at that address.
    """

    patience_s = 10
    """Timeout of the first connection to the scheduler, in s."""

    def __init__(self, address: str, workers: int | None = None) -> None:
        try:
            import distributed
        except ImportError:
            fix = "pip install 'blis-py[dask]'"
            raise InputError("Dask is not installed", key="--dask", value=address, fix=fix) from None
        self._cluster: Any = None
        if address == "local":
            self._cluster = distributed.LocalCluster(
                n_workers=_checked(workers), threads_per_worker=1, dashboard_address=None
            )
        elif workers is not None:
            problem, fix = "does not apply to an existing Dask cluster", "drop it, or use --dask local"
            raise InputError(problem, key="--workers", value=workers, fix=fix)
        else:
            self._reach(address)
        self._client = distributed.Client(
            self._cluster or address, timeout=self.patience_s, set_as_default=False
        )
        self.workers = max(len(self._client.scheduler_info(n_workers=-1)["workers"]), 1)

    def _reach(self, address: str) -> None:
        """Connect once before creating a client, which would retry for a long time."""
        from distributed.comm import connect
        from distributed.security import Security

        async def reach() -> None:
            secrets = Security().get_connection_args("client")
            (await connect(address, timeout=self.patience_s, **secrets)).abort()

        try:
            asyncio.run(reach())
        except (OSError, ValueError, TypeError, RuntimeError) as error:
            fix = "name a scheduler, such as tcp://10.0.0.1:8786, or use local"
            problem = f"no Dask cluster responds there ({type(error).__name__}: {error})"
            raise InputError(problem, key="--dask", value=address, fix=fix) from None

    def outcomes(self, jobs: Sequence[bytes]) -> Done:
        from distributed import as_completed

        futures = {
            future: index for index, future in enumerate(self._client.map(worker.run, jobs, pure=False))
        }
        for future in as_completed(list(futures), loop=self._client.loop):
            error = future.exception()
            index = futures.pop(future)
            yield index, future.result() if error is None else JobOutcome(failed=f"{DIED} ({error})")
            future.release()

    def close(self) -> None:
        self._client.close()
        if self._cluster is not None:
            self._cluster.close()


def cores() -> int:
    """CPU cores available to this process."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


def executor(workers: int | None = None, dask: str | None = None) -> JobExecutor:
    """The selected executor: by default one process per core."""
    if dask is not None:
        return Dask(dask, workers)
    count = _checked(workers)
    return Serial() if count == 1 else Processes(count)


def _checked(workers: int | None) -> int:
    """The number of processes: by default one per core."""
    if workers is None:
        return min(cores(), MAX_WORKERS)
    return check_count(workers, least=1, most=MAX_WORKERS, key="--workers")
