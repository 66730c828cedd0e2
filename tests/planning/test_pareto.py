"""Throughput of a GPU against the speed of a user."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from blis_py.api import configure
from blis_py.errors import InputError
from blis_py.planning import pareto as module
from blis_py.planning import worker
from blis_py.planning.api import pareto
from blis_py.planning.axes import axis
from blis_py.planning.goal import Goal
from blis_py.planning.job import Job, JobOutcome
from blis_py.planning.study import Study


@pytest.mark.slow
def test_no_point_of_the_front_is_beaten_in_both_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CONCURRENCIES", (1, 8, 64))
    load = {"model": "llama-3.1-8b", "prompt_tokens": 200, "output_tokens": 40}
    found = pareto(**load, vary={"tp": [1, 2, 3]}, workers=1, cache=False)
    assert len(found.points) == 6
    assert "does not divide" in found.refused[0]
    users = [each.per_user for each in found.front]
    assert users == sorted(users, reverse=True)
    assert [each.per_gpu for each in found.front] == sorted(each.per_gpu for each in found.front)
    assert "tokens/s/user" in repr(found)
    fast = pareto(**load, vary={"tp": [1]}, slo="tpot.p99=1us", workers=1, cache=False)
    assert not fast.front


class Made:
    """A runner whose clusters emit 1,000 tokens/s for a request in flight, to 5,000, the slower the more."""

    def run(self, jobs: Sequence[Job]) -> list[JobOutcome]:
        return [self._of(job) for job in jobs]

    def _of(self, job: Job) -> JobOutcome:
        count, tp = job.config.workload.concurrency or 0, job.config.tp
        if tp == 4:
            return JobOutcome(refused="too many GPUs")
        figures: dict[str, float | None] = {
            "throughput.output_tokens_per_s": tp * min(1000.0 * count, 5000.0 + count),
            "tpot_ms.mean": float(max(count, 4)) if count != 16 else None,
            "ttft_ms.p50": 10.0 * count,
        }
        return JobOutcome(figures, verdict="saturated" if count == 256 else "keeps up")


def test_points_are_per_gpu_and_user_and_the_front_is_what_no_other_beats() -> None:
    """Up to four in flight users are as fast; 16 have no TPOT, and 256 do not keep up."""
    base = Study(overrides=(("model", "model", "llama-3.1-8b"),))
    found = module.pareto(base, [axis("tp", "2,4,8")], Made(), Goal(unlimited=True))  # type: ignore[arg-type]
    assert found.refused == ("tp 4: too many GPUs",)
    assert [each.concurrency for each in found.points[:9]] == [1, 2, 4, 8, 32, 64, 128, 256, 512]
    assert {each.per_gpu for each in found.points if each.concurrency == 4} == {4000.0}
    assert {each.per_user for each in found.points if each.concurrency == 8} == {125.0}
    fronts = [(each.concurrency, each.ttft_p50_ms) for each in found.front]
    assert fronts == [(count, 10.0 * count) for count in (4, 4, 8, 8, 32, 32, 64, 64, 128, 128, 512, 512)]
    lines = repr(found).splitlines()
    assert lines[0] == "Pareto front: 12 of 18 operating points"
    assert lines[1] == (
        "  tp 2, 4 in flight: 250 tokens/s/user, 4,000 tokens/s/GPU, $0.23 per million output tokens, "
        "median TTFT 40 ms"
    )
    assert lines[-1] == "Not run: tp 4: too many GPUs"
    assert found.front[0].as_dict()["pareto"]


BASE = Study(overrides=(("model", "model", "llama-3.1-8b"),))


def test_the_best_load_at_a_least_speed_is_found_between_powers_of_two() -> None:
    """A user has 1000 / n tokens/s with n in flight: 40 of them at most at 25 tokens/s."""
    goal = Goal(unlimited=True, at_least={"tokens_per_s_per_user": 24.5})
    found = module.pareto(BASE, [axis("tp", "2,8,4")], Made(), goal)  # type: ignore[arg-type]
    assert found.best is not None
    assert (found.best.concurrency, found.best.meets) == (40, True)
    lines = repr(found).splitlines()
    assert lines[0].startswith(
        "Most tokens/s/GPU with at least 24.5 tokens_per_s_per_user: tp 2, 40 in flight"
    )
    assert lines[1] == "Others at their best:"
    assert lines[2].startswith("  tp 8, 40 in flight")
    assert lines[-1] == "Not run: tp 4: too many GPUs"


def test_a_combination_that_never_reaches_the_least_speed_says_by_how_much() -> None:
    goal = Goal(unlimited=True, at_least={"tokens_per_s_per_user": 2000.0})
    found = module.pareto(BASE, [axis("tp", "2")], Made(), goal)  # type: ignore[arg-type]
    assert found.best is None
    head, line = repr(found).splitlines()
    assert head.startswith("No configuration tried reaches at least 2000 tokens_per_s_per_user")
    assert "1 in flight" in line
    assert line.endswith("tokens_per_s_per_user 250 (target: at least 2,000)")


def test_loads_are_raised_until_twice_as_much_gains_nothing() -> None:
    goal = Goal(unlimited=True, at_least={"tokens_per_s_per_user": 0.01})
    found = module.pareto(BASE, [axis("tp", "2")], Made(), goal)  # type: ignore[arg-type]
    assert found.best is not None
    assert found.best.concurrency == 64


def test_widths_that_are_not_given_are_tried() -> None:
    found = module.pareto(BASE, [], Made(), Goal(unlimited=True))  # type: ignore[arg-type]
    assert {each.point["tp"] for each in found.points} == {1, 2, 8}


def test_every_instance_has_its_requests_in_flight_for_eight_rounds() -> None:
    config = configure(model="llama-3.1-8b", num_instances=3)
    few, many = (module._loaded(config, count).workload for count in (1, 4))
    assert (few.concurrency, few.num_requests) == (3, 64)
    assert (many.concurrency, many.num_requests) == (12, 96)


def test_where_nothing_runs_the_reason_is_reported() -> None:
    base = Study(overrides=(("model", "model", "llama-3.1-8b"),))
    with pytest.raises(InputError, match="no configuration can be run: tp 4: too many GPUs"):
        module.pareto(base, [axis("tp", "4")], Made(), Goal())  # type: ignore[arg-type]


def test_a_bundled_workload_and_a_spec_are_sent_by_as_many_clients() -> None:
    for load in ("chat", "workloads/mixed-slo.yaml"):
        base = Study(overrides=(("model", "model", "qwen3-14b"), ("spec", "workload.spec", load)))
        assert module.pareto(base, [axis("tp", "2")], Made(), Goal(unlimited=True)).front  # type: ignore[arg-type]


@pytest.mark.parametrize("length", [1.0, 2.0])
@pytest.mark.parametrize("kind", ["generated", "preset", "trace"])
def test_as_many_requests_are_in_flight_whatever_the_rate_of_the_load(
    tmp_path: Path, kind: str, length: float
) -> None:
    """A workload's own rate, or a trace's times, would leave the loops empty."""
    rows = [f"{9 * number},50,50" for number in range(64)]
    (tmp_path / "t.csv").write_text("\n".join(["arrival_s,input_tokens,output_tokens", *rows]) + "\n")
    loads = {"generated": {}, "preset": {"workload": "chat"}, "trace": {"trace": str(tmp_path / "t.csv")}}
    config = module._loaded(configure(model="llama-3.1-8b", **loads[kind]), 16)
    outcome = worker.outcome_of(worker.varied(module._job(config, length)).run(record_steps=False))
    assert outcome.facts["at_once"] == 16
    assert outcome.figures["throughput.requests_per_s"] * outcome.figures["e2e_ms.mean"] / 1000 > 9


def test_a_rate_contradicts_it() -> None:
    with pytest.raises(InputError, match="is set by --pareto"):
        pareto(model="llama-3.1-8b", rate=3, workers=1, cache=False)


def test_a_target_is_not_missed_by_the_common_start_of_all_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight rounds of 16 clients: the 16 that start together are more than a tenth."""
    monkeypatch.setattr(module, "CONCURRENCIES", (16,))
    load = {
        "model": "llama-3.1-8b",
        "prompt_tokens": 500,
        "output_tokens": 8,
        "tp": 1,
        "slo": "ttft.p90=120ms",
    }
    load |= {"prompt_tokens_stdev": 256, "output_tokens_stdev": 256}
    (point,) = pareto(**load, workers=1, cache=False).points
    assert point.meets


def test_a_point_that_misses_a_target_is_run_as_long_as_its_steady_state_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Noted(Made):
        lengths: ClassVar[list[float]] = []

        def run(self, jobs: Sequence[Job]) -> list[JobOutcome]:
            self.lengths += [job.variation.length for job in jobs]
            missed = {"slo": "ttft.p99=1ms", "metric": "ttft", "stat": "p99", "limit_ms": 1.0}
            return [
                replace(each, slo=[missed | {"measured_ms": 2.0, "met": False}]) for each in super().run(jobs)
            ]

    monkeypatch.setattr(module, "CONCURRENCIES", (1, 2))
    monkeypatch.setattr(module, "steady_length", lambda *_: 1.5)
    base = Study(overrides=(("model", "model", "llama-3.1-8b"),))
    module.pareto(base, [axis("tp", "2")], Noted(), Goal())  # type: ignore[arg-type]
    assert Noted.lengths == [1.0, 1.0, 1.5, 1.5]


@pytest.mark.parametrize(
    ("start_ms", "lengths"),
    [(0.0, [1.0, 2.0]), (6.0, [1.0, 2.0, 12.5])],
    ids=["misses without the start", "misses by the start alone"],
)
def test_a_mean_that_misses_clearly_without_its_start_is_not_run_for_long(
    monkeypatch: pytest.MonkeyPatch, start_ms: float, lengths: list[float]
) -> None:
    """What the start adds falls as the inverse of the length: 6, 3 and 0.48 ms on top of 9 of 10."""

    class Noted:
        lengths: ClassVar[list[float]] = []

        def run(self, jobs: Sequence[Job]) -> list[JobOutcome]:
            self.lengths += [job.variation.length for job in jobs]
            return [self._of(job.variation.length) for job in jobs]

        def _of(self, length: float) -> JobOutcome:
            tpot_ms = (9.0 if start_ms else 11.0) + start_ms / length
            figures: dict[str, float | None] = {
                "throughput.output_tokens_per_s": 1000.0,
                "tpot_ms.mean": tpot_ms,
            }
            return JobOutcome(figures, facts={"requests": 64 * length}, verdict="keeps up")

    monkeypatch.setattr(module, "steady_length", lambda *_: 12.5)
    monkeypatch.setattr(module, "loads", lambda count, run: [run([(0, 32)])])
    base = Study(overrides=(("model", "model", "llama-3.1-8b"),))
    goal = Goal(at_least={"tokens_per_s_per_user": 100.0}, unlimited=True)
    (point,) = module.pareto(base, [axis("tp", "2")], Noted(), goal).points  # type: ignore[arg-type]
    assert Noted.lengths == lengths
    assert point.meets == bool(start_ms)
