"""Jobs in a worker process: what it remembers between them, and how failures come back."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
from small_plans import CONFIG

from blis_py.errors import InputError
from blis_py.planning import early_stop, worker
from blis_py.planning.job import Job, JobOutcome


def test_the_four_used_last_are_remembered() -> None:
    known: dict[str, int] = {}
    made: list[str] = []

    def value_of(name: str) -> int:
        def make() -> int:
            made.append(name)
            return len(made)

        return worker._remembered(known, name, make)

    assert [value_of(name) for name in "abcda"] == [1, 2, 3, 4, 1]
    value_of("e")
    assert list(known) == ["c", "d", "a", "e"]
    assert value_of("b") == 6


def test_a_recording_is_read_once_for_all_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []

    def reader(load: Any, seed: int) -> tuple[Any, Any]:
        read.append((load, seed))
        return "table", [len(read)]

    monkeypatch.setattr(worker, "as_recorded", reader)
    monkeypatch.setattr(worker, "_traces", {})
    monkeypatch.setattr(worker, "_contents", SimpleNamespace(digests=lambda config: "files"))
    load = replace(CONFIG.workload, rate=3.0, concurrency=4, think_time_ms=5.0, eos_share=0.5)
    for change in ({}, {"rate": 9.0}, {"concurrency": 1}, {"think_time_ms": 7.0}, {"eos_share": 0.1}):
        table, reading = worker._as_recorded(replace(load, **change), 1)
        assert (table, reading) == ("table", [1])
        reading.append("changed")  # type: ignore[attr-defined]
    assert worker._as_recorded(load, 2)[1] == [1]
    ((recorded, seed),) = read
    assert (recorded.rate, recorded.concurrency, recorded.think_time_ms) == (None, None, None)
    assert (recorded.eos_share, seed) == (0.0, 1)
    closed = replace(load, session_mode="closed-loop")
    assert worker._as_recorded(closed, 1)[1] == [2]
    assert worker._as_recorded(replace(closed, think_time_ms=7.0), 1)[1] == [3]
    shares = replace(load, slo_shares={"a": 1.0})
    assert [worker._as_recorded(shares, seed)[1] for seed in (1, 2, 2)] == [[4], [5], [5]]


def test_failures_of_a_job_are_outcomes(monkeypatch: pytest.MonkeyPatch) -> None:
    def packed(key: str | None = None) -> bytes:
        return worker.pack(Job(CONFIG), key)

    def raises(error: BaseException) -> Any:
        def outcome(job: Job) -> Any:
            raise error

        return outcome

    for error, how in (
        (InputError("no"), JobOutcome(refused="no")),
        (MemoryError("m"), JobOutcome(failed="not enough memory: m")),
        (ValueError("v"), JobOutcome(failed="ValueError: v")),
    ):
        monkeypatch.setattr(worker, "_outcome", raises(error))
        assert worker.run(packed()) == how
    monkeypatch.setattr(worker, "_outcome", lambda job: JobOutcome(verdict="ran"))
    assert worker.run(packed()).verdict == "ran"
    assert worker.run(packed("another")).failed == worker._OTHER_FILES
    other = packed()
    monkeypatch.setattr(worker, "code_digest", lambda: "other")
    assert worker.run(other).failed == worker._OTHER_CODE


@dataclass(frozen=True)
class Config:
    """Of a run that may be judged by its first part."""

    workload: Any = field(default_factory=lambda: SimpleNamespace(concurrency=None))
    slo: tuple[str, ...] = ("ttft.p99=1s",)
    horizon: int | None = None


@dataclass(frozen=True)
class Part:
    """A simulation that is its own result."""

    config: Config = field(default_factory=Config)
    table: Any = None
    loops: Any = None

    def run(self, record_steps: bool) -> Any:
        assert not record_steps
        return SimpleNamespace(record=self.config.horizon)


@pytest.mark.parametrize(("horizon_ns", "until_us"), [(5_500, 6), (5_999, 6), (6_000, 7), (1, 1)])
def test_the_first_part_has_all_of_its_requests(
    monkeypatch: pytest.MonkeyPatch, horizon_ns: int, until_us: int
) -> None:
    """It ends with the microsecond after that of the last one."""
    monkeypatch.setattr(early_stop, "worth_it", lambda *_: True)
    monkeypatch.setattr(early_stop, "horizon_ns", lambda _: horizon_ns)
    monkeypatch.setattr(early_stop, "judge", lambda until_us, *_: until_us)
    part: Any = Part()
    assert worker._first_part(part, 0.0) == until_us  # type: ignore[comparison-overlap]
    for whole in (replace(part, loops=3), replace(part, config=replace(part.config, horizon=9))):
        assert worker._first_part(whole, 0.0) is None
    looped = replace(part.config, workload=SimpleNamespace(concurrency=2))
    assert worker._first_part(replace(part, config=looped), 0.0) is None
