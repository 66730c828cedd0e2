"""What a sweep makes of its rows, by hand: their table, means, the best of them, costs, what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blis_py.api import configure
from blis_py.errors import InputError
from blis_py.planning.axes import Axis, axis
from blis_py.planning.job import JobOutcome
from blis_py.planning.prices import Prices
from blis_py.planning.study import Study
from blis_py.planning.sweep import OK, Row, Sweep, _axes_of, _seed_of, larger_is_better, sweep
from blis_py.sensitivity.reruns import rerun_seed

TTFT, RATE = "ttft_ms.p99", "throughput.requests_per_s"
A, B = Axis("a", "", (1, 2, 3)), Axis("b", "", ("x",))


def target(met: bool | None, measured: float | None = 70.0) -> dict[str, Any]:
    return {
        **{"slo": "ttft.p99=100ms", "slo_class": "", "metric": "ttft", "stat": "p99"},
        **{"limit_ms": 100.0, "measured_ms": measured, "met": met},
    }


def row(a: int, seed: int = 0, ttft: float | None = 1.0, **outcome: Any) -> Row:
    """A run that has succeeded unless it says otherwise."""
    lost = "refused" in outcome or "failed" in outcome
    figures = {} if lost else {TTFT: ttft, RATE: 2.0 * a}
    return Row({"a": a, "b": "x"}, seed, JobOutcome(**{"figures": figures, **outcome}))


def swept(*rows: Row, axes: tuple[Axis, ...] = (A, B)) -> Sweep:
    return Sweep(None, axes, rows, 0)


def test_a_row_has_settings_seed_status_targets_and_figures() -> None:
    good = row(2, 3, slo=[target(True), target(True) | {"slo": "other"}], verdict="keeps up")
    assert good.as_dict() == {
        **{"a": 2, "b": "x", "seed": 3, "status": "ok", "reason": None, "verdict": "keeps up"},
        **{"slo_met": True, "slo.ttft.p99=100ms": 70.0, "slo.other": 70.0, TTFT: 1.0, RATE: 4.0},
    }
    assert row(1, slo=[target(True), target(False)]).as_dict()["slo_met"] is False
    assert row(1, slo=[target(None)]).as_dict()["slo_met"] is False
    plain = row(1).as_dict()
    assert (plain["slo_met"], plain["verdict"], plain["reason"]) == (None, None, None)


@pytest.mark.parametrize(("how", "status"), [("refused", "refused"), ("failed", "failed")])
def test_a_row_without_a_result_has_its_reason(how: str, status: str) -> None:
    reason: dict[str, Any] = {how: "why"}
    lost = row(1, slo=[target(True)], **reason).as_dict()
    assert (lost["status"], lost["reason"], lost["slo_met"]) == (status, "why", None)


def test_a_varied_seed_is_a_setting_and_lists_are_one_cell() -> None:
    cells = Row({"seed": 7, "sizes": [1, 2]}, 0, JobOutcome()).as_dict()
    assert cells["seed"] == 7
    assert cells["sizes"] == "[1, 2]"


def test_the_size_counts_runs_axes_and_what_is_lost() -> None:
    every = (row(1), row(2, refused="r"), row(3, refused="r"), row(3, 1, failed="f"))
    assert swept(*every).size == "4 runs over a (3), b (1), 2 refused, 1 failed"
    assert repr(swept(row(1), row(2, failed="f"))) == "Sweep(2 runs over a (3), b (1), 1 failed)"
    assert swept(row(1), axes=()).size == "1 runs over nothing"


@pytest.mark.parametrize(("seeds", "number"), [((), 1), ((0,), 1), ((0, 1, 2), 3)])
def test_as_many_runs_of_each_point_as_the_last_index_says(seeds: tuple[int, ...], number: int) -> None:
    assert swept(*(row(1, seed) for seed in seeds)).seeds == number


MEANS = (row(1, 0, 10), row(1, 1, 20), row(2, 0, 8), row(2, 1, failed="f"), row(3, 0, refused="r"))


def test_means_are_over_the_seeds_that_ran() -> None:
    means = swept(*MEANS).mean(TTFT)
    assert means.to_dict("list") == {"a": [1, 2], "b": ["x", "x"], "mean": [15.0, 8.0], "runs": [2, 1]}
    of_all = swept(*MEANS, axes=()).mean(TTFT)
    assert of_all.to_dict("list") == {"mean": [38 / 3], "runs": [3]}


@pytest.mark.parametrize(
    ("metric", "count", "points"),
    [(TTFT, 5, [3, 1, 2]), (TTFT, 2, [3, 1]), (RATE, 1, [3]), (RATE, 9, [3, 2, 1])],
)
def test_the_best_have_the_least_or_the_most(metric: str, count: int, points: list[int]) -> None:
    best = swept(row(1, 0, 2.0), row(2, 0, 3.0), row(3, 0, 1.0)).best(metric, count)
    assert best["a"].tolist() == points
    assert best.index.tolist() == [*range(len(points))]


def test_five_are_the_best_by_default() -> None:
    assert len(swept(*(row(a) for a in range(1, 8))).best(TTFT)) == 5


def test_points_that_miss_a_target_in_any_run_come_last() -> None:
    rows = [
        *(row(1, 0, 1.0, slo=[target(True)]), row(1, 1, 1.0, slo=[target(False)])),
        *(row(2, 0, 9.0, slo=[target(True)]), row(2, 1, 9.0)),
        row(3, 0, 5.0, slo=[target(True)]),
    ]
    best = swept(*rows).best(TTFT)
    assert best["a"].tolist() == [3, 2, 1]
    assert best["slo_met"].tolist() == [True, True, False]
    assert swept(*rows).best(RATE)["a"].tolist() == [3, 2, 1]
    assert "slo_met" not in swept(row(1), row(2)).best(TTFT)


@pytest.mark.parametrize(
    ("metric", "larger"),
    [(RATE, True), ("goodput.requests_per_s", True), (TTFT, False), ("e2e_ms.mean", False)],
)
def test_rates_are_better_if_larger_and_latencies_if_smaller(metric: str, larger: bool) -> None:
    assert larger_is_better(metric) == larger


def test_costs_are_those_of_all_gpus_of_a_point() -> None:
    price = Prices().of("h100")
    assert price is not None
    rows = (
        row(1, facts={"gpus": 3, "gpu": "h100"}),
        row(2, facts={"gpus": 2, "gpu": "no such GPU"}),
        row(3, refused="r", facts={"gpus": 1, "gpu": "h100"}),
        row(4),
    )
    costs = swept(*rows).costs()
    assert {point: cost[:2] for point, cost in costs.items()} == {
        ("1", "x"): (3, 3 * price.per_hour),
        ("2", "x"): (2, None),
    }


def test_points_are_ranked_by_the_first_target_or_the_p99_of_ttft() -> None:
    assert swept(row(1)).default_metric() == TTFT
    e2e = {**target(True), "metric": "e2e", "stat": "mean"}
    figures = {"e2e_ms.mean": 3.0}
    assert swept(row(1), row(2, slo=[e2e, target(True)], figures=figures)).default_metric() == "e2e_ms.mean"
    assert swept(row(1, slo=[e2e])).default_metric() == TTFT  # no run has that figure


def test_what_was_not_measured_is_refused() -> None:
    with pytest.raises(InputError, match="no run succeeded: first"):
        swept(row(1, refused="second"), row(2, failed="first")).mean(TTFT)
    with pytest.raises(InputError, match="no such metric"):
        swept(row(1)).mean("ttft_ms.p98")


def test_settings_with_several_values_are_drawn_and_the_first_run_is_named() -> None:
    done = swept(row(1, failed="f"), row(2, facts={"models": "prices m"}), row(3, facts={"models": "no"}))
    assert done.axes_values() == {"a": (1, 2, 3)}
    assert done.names == ["a", "b"]
    assert done.foot == "The first run prices m"
    assert swept().foot == "The first run "


def test_a_sweep_is_saved_with_its_space(tmp_path: Path) -> None:
    swept(row(1), row(2)).save(tmp_path / "out", plots=False)
    written = {file.name for file in (tmp_path / "out").iterdir()} - {"complete.json"}
    assert {"sweep.csv", "sweep.yaml"} <= written <= {"sweep.csv", "sweep.yaml", "sweep.parquet"}
    assert (tmp_path / "out" / "sweep.csv").read_text().splitlines()[0].startswith("a,b,seed,status")
    assert "first: null" in (tmp_path / "out" / "sweep.yaml").read_text()
    first = replace(swept(row(1)), first=configure(model="llama-3.1-8b", num_requests=3))
    first.save(tmp_path / "more", plots=False)
    assert "num_requests: 3" in (tmp_path / "more" / "sweep.yaml").read_text()


def test_listed_runs_name_the_same_settings() -> None:
    (found,) = _axes_of([{"num_requests": 3}, {"num_requests": 5}, {"num_requests": 3}])
    assert (found.name, found.values) == ("num_requests", (3, 5))
    with pytest.raises(InputError, match=r"runs\.seed: is given in some runs"):
        _axes_of([{"num_requests": 3}, {"num_requests": 3, "seed": 1}])


class Jobs:
    """A runner that runs nothing: which configurations came, and as if one more had been stored."""

    done = 4

    def run(self, jobs: list[Any], note: Any) -> list[Any]:
        self.seeds = [job.config.seed for job in jobs]
        self.done += len(jobs) - 1
        for at in reversed(range(len(jobs))):
            note(at, JobOutcome(figures={TTFT: float(at)}), stored=False)
        return []


def study(**settings: Any) -> Study:
    return Study(start=configure(model="llama-3.1-8b", num_requests=5, **settings))


def test_every_point_is_run_with_every_seed() -> None:
    jobs: Any = Jobs()
    done = sweep(study(seed=11), [axis("num_instances", [1, 2])], jobs, seeds=2)
    assert jobs.seeds == [rerun_seed(11, 0), rerun_seed(11, 1)] * 2
    rows = [(each.point["num_instances"], each.seed, each.outcome.figures[TTFT]) for each in done.rows]
    assert rows == [(1, 0, 0.0), (1, 1, 1.0), (2, 0, 2.0), (2, 1, 3.0)]
    assert done.simulated == 3
    assert done.first is not None
    assert done.first.num_instances == 1
    sweep(study(seed=11), [axis("num_instances", [1, 2])], jobs)
    assert jobs.seeds == [11, 11]


def test_a_point_that_cannot_be_run_is_a_row_of_its_own() -> None:
    jobs: Any = Jobs()
    seen: list[tuple[int, int]] = []
    done = sweep(
        study(),
        [axis("num_instances", [0, 1])],
        jobs,
        on_progress=lambda rows, total: seen.append((len(rows), total)),
    )
    assert [each.status for each in done.rows] == ["refused", OK]
    assert done.first is not None
    assert done.first.num_instances == 1
    assert seen == [(2, 2)]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({}, "nothing is varied"),
        ({"seeds": 0}, "--seeds"),
        ({"random": 0}, "--random"),
        ({"axes": [axis("seed", [1])], "seeds": 2}, "contradicts seeds"),
    ],
)
def test_what_makes_no_sweep_is_refused(more: dict[str, Any], message: str) -> None:
    jobs: Any = Jobs()
    with pytest.raises(InputError, match=message):
        sweep(study(), more.pop("axes", []), jobs, **more)


def test_seeds_alone_and_a_single_random_point_are_enough() -> None:
    jobs: Any = Jobs()
    assert len(sweep(study(), [], jobs, seeds=2).rows) == 2
    assert len(sweep(study(), [axis("num_instances", [1, 2, 3])], jobs, random=1).rows) == 1
    assert len(sweep(study(), [], jobs, runs=[{"num_instances": 1}, {"num_instances": 2}]).rows) == 2


@pytest.mark.parametrize(
    ("overrides", "seed"), [((), 42), ((("seed", "seed", 5),), 5), ((("seed", "seed", 0),), 0)]
)
def test_points_are_drawn_by_the_seed_that_was_given(overrides: Any, seed: int) -> None:
    assert _seed_of(Study(overrides=overrides)) == seed
