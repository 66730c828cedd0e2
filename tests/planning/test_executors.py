"""Every executor gives the same outcomes, all of them, in order."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from blis_py.errors import InputError
from blis_py.planning import executors, worker
from blis_py.planning.executors import Dask, JobExecutor, Processes, Serial, executor
from blis_py.planning.job import Job, JobOutcome
from blis_py.planning.runner import Runner
from blis_py.planning.store import Folder, Nowhere

FORKED = pytest.mark.skipif(sys.platform != "linux", reason="what is changed here is changed in forks only")
_run = worker.run


def outcomes(executor: JobExecutor, jobs: list[Job]) -> list[JobOutcome]:
    with Runner(executor, Nowhere()) as runner:
        return runner.run(jobs)


@pytest.mark.slow
def test_processes_give_what_one_process_gives(jobs: list[Job]) -> None:
    alone = outcomes(Serial(), jobs)
    assert outcomes(Processes(2), jobs) == alone
    assert [outcome.ran for outcome in alone] == [job.config.tp == 1 for job in jobs]


def test_a_configuration_that_cannot_run_is_an_outcome_with_its_reason(jobs: list[Job]) -> None:
    refused = [outcome.refused for outcome in outcomes(Serial(), jobs) if not outcome.ran]
    assert len(refused) == 1
    assert "--tp: does not divide" in str(refused[0])


def test_equal_jobs_are_done_once(jobs: list[Job]) -> None:
    with Runner(Serial(), Nowhere()) as runner:
        both = runner.run([jobs[0], jobs[1], jobs[0]])
    assert runner.done == 2
    assert both[0] == both[2] != both[1]


def die_once(packed: bytes) -> JobOutcome:
    """The first process that comes here dies."""
    flag = Path(os.environ["BLIS_TEST_FLAG"])
    if not flag.exists():
        flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return _run(packed)


def die_of_the_third(packed: bytes) -> JobOutcome:
    import pickle

    if pickle.loads(packed)[0].config.workload.rate == 15:
        os.kill(os.getpid(), signal.SIGKILL)
    return _run(packed)


@pytest.mark.slow
@FORKED
def test_when_a_process_dies_its_jobs_are_done_by_another(
    jobs: list[Job], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BLIS_TEST_FLAG", str(tmp_path / "dead"))
    monkeypatch.setattr(worker, "run", die_once)
    lines: list[int] = []
    with Runner(Processes(2), Nowhere()) as runner:
        found = runner.run(jobs, lambda index, outcome, stored: lines.append(index))
    monkeypatch.setattr(worker, "run", _run)
    assert (tmp_path / "dead").exists()
    assert sorted(lines) == list(range(len(jobs)))
    assert found == outcomes(Serial(), jobs)


@pytest.mark.slow
@FORKED
def test_a_job_of_which_every_process_dies_fails_and_the_others_do_not(
    jobs: list[Job], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(worker, "run", die_of_the_third)
    with Runner(Processes(2), Folder(tmp_path)) as runner:
        found = runner.run(jobs)
    assert [index for index, outcome in enumerate(found) if outcome.failed] == [2]
    assert "died" in str(found[2].failed)
    monkeypatch.setattr(worker, "run", _run)
    with Runner(Serial(), Folder(tmp_path)) as runner:
        assert runner.run(jobs)[2].ran  # a failure is not kept
    assert runner.done == 2  # and neither is a refusal


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs="CRITICAL"
    ) as cluster:
        yield cluster.scheduler_address


@pytest.mark.slow
def test_a_dask_cluster_gives_what_one_process_gives_though_a_worker_is_killed(
    cluster: str, jobs: list[Job], small: dict[str, object], tmp_path: Path
) -> None:
    from blis_py.api import configure

    many = [*jobs, *(Job(configure(**small | {"seed": seed})) for seed in range(30))]
    lines: list[int] = []
    dask = Dask(cluster)
    victim = next(iter(dask._client.run(os.getpid).values()))

    def kill(index: int, outcome: JobOutcome, stored: bool) -> None:
        if not lines:
            os.kill(victim, signal.SIGKILL)
        lines.append(index)

    with Runner(dask, Folder(tmp_path)) as runner:
        found = runner.run(many, kill)
    assert sorted(lines) == list(range(len(many)))
    assert runner.done == len(many)
    assert found == outcomes(Serial(), many)
    assert len(list(tmp_path.rglob("*.json"))) == len(many) - 1  # all but the one that is refused


def test_a_worker_with_another_file_reports_it(small: dict[str, object], tmp_path: Path) -> None:
    from blis_py.api import configure

    spec = tmp_path / "spec.yaml"
    text = Path("workloads/chat.yaml").read_text(encoding="utf-8")
    spec.write_text(text, encoding="utf-8")
    job = Job(configure(model="llama-3.1-8b", workload=str(spec), num_requests=20))
    with Runner(Serial(), Nowhere()) as runner:
        packed = worker.pack(job, runner._contents.key_of(job))
        assert worker.run(packed).ran
        spec.write_text(text + "\n# changed\n", encoding="utf-8")
        assert "other files" in str(worker.run(packed).failed)


def test_a_cluster_that_is_not_there_is_an_error_with_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr(Dask, "patience_s", 1)
    with pytest.raises(InputError, match=r"--dask: no Dask cluster responds there .*127\.0\.0\.1:9"):
        executor(dask="tcp://127.0.0.1:9")


@pytest.mark.parametrize("address", ["tls://127.0.0.1:9", "quic://127.0.0.1:9", "tcp://", ""])
def test_an_address_that_is_none_is_an_error(address: str) -> None:
    pytest.importorskip("distributed")
    with pytest.raises(InputError, match="--dask: no Dask cluster responds there"):
        executor(dask=address)


@pytest.mark.slow
def test_without_dask_the_error_states_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError, match=r"pip install 'blis-py\[dask\]'"):
        executor(dask="local")


def test_one_worker_needs_no_other_process() -> None:
    assert isinstance(executor(1), Serial)
    assert isinstance(executor(2), Processes)


class Future:
    """A result of a Dask cluster."""

    def __init__(self, value: Any, error: Exception | None = None) -> None:
        self.value, self.error, self.is_released = value, error, False

    def exception(self) -> Exception | None:
        return self.error

    def result(self) -> Any:
        return self.value

    def release(self) -> None:
        self.is_released = True


class Client:
    """A Dask cluster of seven workers whose second job dies with its worker."""

    loop = None

    def __init__(self, *_: Any, **__: Any) -> None:
        self.futures: list[Future] = []
        self.is_open = True

    def scheduler_info(self, n_workers: int = 5) -> dict[str, Any]:
        """As in Dask: of the first `n_workers`; of all if it is negative."""
        names = [f"worker {number}" for number in range(7)]
        return {"workers": dict.fromkeys(names if n_workers < 0 else names[:n_workers])}

    def map(self, run: Any, jobs: Sequence[bytes], pure: bool = True) -> list[Future]:
        assert not pure, "equal jobs are jobs of their own"
        dies = RuntimeError("killed")
        self.futures = [Future(job.decode(), dies if index == 1 else None) for index, job in enumerate(jobs)]
        return self.futures

    def close(self) -> None:
        self.is_open = False


def test_every_worker_of_a_dask_cluster_counts_and_results_are_released_once_they_are_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clusters: list[Any] = []

    def local(**settings: Any) -> Any:
        clusters.append(SimpleNamespace(**settings, close=lambda: clusters.clear()))
        return clusters[0]

    def as_completed(futures: list[Future], loop: Any) -> Iterator[Future]:
        yield from reversed(futures)

    dask = SimpleNamespace(Client=Client, LocalCluster=local, as_completed=as_completed)
    monkeypatch.setitem(sys.modules, "distributed", dask)
    found: Any = Dask("local", 3)
    assert (clusters[0].n_workers, clusters[0].threads_per_worker) == (3, 1)
    assert found.workers == 7
    taken = []
    for index, outcome in found.outcomes([b"a", b"b", b"c"]):
        taken.append((index, outcome if isinstance(outcome, str) else outcome.failed))
        assert [one.is_released for one in found._client.futures[index + 1 :]] == [True] * (2 - index)
    assert [index for index, _ in taken] == [2, 1, 0]
    assert (taken[0][1], taken[2][1]) == ("c", "a")
    assert "killed" in taken[1][1]
    assert all(one.is_released for one in found._client.futures)
    client = found._client
    found.close()
    assert not client.is_open
    assert not clusters
    with pytest.raises(InputError, match="does not apply to an existing Dask cluster"):
        Dask("tcp://127.0.0.1:9", 3)


def test_cores_are_those_of_the_process_or_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing_() -> Any:
        raise AttributeError

    monkeypatch.setattr(executors.os, "sched_getaffinity", lambda pid: {1, 2, 5} if pid == 0 else set())
    assert executors.cores() == 3
    monkeypatch.setattr(executors.os, "sched_getaffinity", lambda pid: missing_())
    for count, cores in ((7, 7), (None, 1)):
        monkeypatch.setattr(executors.os, "cpu_count", lambda count=count: count)
        assert executors.cores() == cores
