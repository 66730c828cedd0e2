"""Small parts of plans."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from blis_py.api import configure
from blis_py.planning import _space, _suggest, early_stop, store, uncertainty, worker
from blis_py.planning.axes import Axis
from blis_py.planning.goal import Judgement, Requirement
from blis_py.planning.job import JobOutcome
from blis_py.planning.knobs import values_of
from blis_py.planning.longer import resampled
from blis_py.planning.report_text import _first_upper, _values
from blis_py.planning.runner import Runner
from blis_py.planning.stationary import ANALYSED_REQUESTS, Sustained
from blis_py.planning.store import Nowhere, default_folder
from blis_py.planning.uncertainty import FEW, Draw, Errors, errors_of
from blis_py.requests.table import RequestTable


def test_numbers_that_were_tried_are_named_from_the_least_to_the_most_and_words_one_by_one() -> None:
    assert _values([64, 8, 1024]) == "8 to 1,024"
    assert _values(["sjf", "fcfs"]) == "sjf, fcfs"


@pytest.mark.parametrize(("axes", "trials"), [(4, 16), (4, 17), (3, 1)])
def test_all_lines_of_a_grid_are_searched_if_trials_suffice_or_axes_are_few(axes: int, trials: int) -> None:
    space: Any = SimpleNamespace(
        axes=[Axis(f"a{number}", "", (0, 1)) for number in range(axes)],
        points=[{}] * 2**axes,
        sizes=[1],
    )
    assert _space.Space.search(space, lambda *_: pytest.fail("not all at once"), trials) == [*range(2**axes)]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("more GPUs", "More GPUs"), ("max_num_seqs at 64", "max_num_seqs at 64"), ("a_b", "a_b"), ("", "")],
)
def test_a_sentence_begins_with_a_capital_unless_with_the_name_of_a_setting(text: str, sentence: str) -> None:
    assert _first_upper(text) == sentence
    assert _first_upper("set max_num_seqs") == "Set max_num_seqs"


class Suggestions:
    """In place of a trial of Optuna: which kind of parameter was suggested, within which bounds."""

    def suggest_int(self, name: str, least: int, most: int) -> int:
        self.kind: tuple[Any, ...] = ("int", name, least, most)
        return most

    def suggest_categorical(self, name: str, choices: list[int]) -> int:
        self.kind = ("categorical", name, choices)
        return choices[0]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ((1, 2, 4.5), ("int", "x", 0, 2)),
        (("a", "b"), ("categorical", "x", [0, 1])),
        ((True, False), ("categorical", "x", [0, 1])),
        ((1, "auto"), ("categorical", "x", [0, 1])),
    ],
)
def test_numbers_have_an_order_and_words_and_switches_have_none(
    values: tuple[Any, ...], kind: tuple[Any, ...]
) -> None:
    trial: Any = Suggestions()
    chosen = _suggest._choice(trial, Axis("x", "x", values))
    assert trial.kind == kind
    assert chosen == (len(values) - 1 if kind[0] == "int" else 0)


@pytest.mark.parametrize(
    ("least", "failing", "slack", "value"),
    [
        (2, 1, -0.5, 3.0),  # the cost of the size that holds
        (None, 1, -0.5, 3.0 * 1.5),  # that of the next size, half more as a target is missed by half
        (None, 1, -7.0, 3.0 * 2),
        (None, 1, 0.2, 3.0),
        (None, 3, -0.5, 4.0 * 1.5),  # there is no larger size
        (None, None, 0.0, None),
    ],
)
def test_an_abandoned_combination_costs_the_next_size_and_more_the_farther_it_misses(
    least: int | None, failing: int | None, slack: float, value: float | None
) -> None:
    missed = Judgement(False, (Requirement("ttft.p99", 1.0, 1 - slack, "ms", slack),))
    search: Any = SimpleNamespace(
        least=lambda _: least,
        most_failing=lambda _: failing,
        known={(0, failing): missed},
        cost=lambda probe: float(probe[1] + 1),
    )
    assert _suggest._value(search, 0, 4) == value


def test_a_combination_that_cannot_be_run_has_no_value() -> None:
    search: Any = SimpleNamespace(
        least=lambda _: None, most_failing=lambda _: 0, known={(0, 0): Judgement(False, refused="too large")}
    )
    assert _suggest._value(search, 0, 4) is None


@pytest.mark.parametrize(
    ("length", "requests", "begun", "analysed"),
    [
        (8.0, 4 * ANALYSED_REQUESTS, 1.0, 2.0),  # 3,000 requests come in a quarter of it
        (8.0, 4 * ANALYSED_REQUESTS, 3.0, 3.0),  # but it is judged from three times its duration on
        (8.0, ANALYSED_REQUESTS // 2, 1.0, 8.0),  # no longer than it is known
        (1.0, 40 * ANALYSED_REQUESTS, 1.0, 1.0),  # no shorter than the workload
        (8.0, 0, 1.0, 8.0),
    ],
)
def test_analyses_are_as_long_as_three_thousand_requests_take(
    length: float, requests: int, begun: float, analysed: float
) -> None:
    outcome = JobOutcome(facts={"requests": requests})
    assert Sustained(Judgement(True), outcome, length, True, begun).analysed == analysed


@pytest.mark.parametrize("rows", [0, 1, 2, 3])
def test_a_recording_of_two_requests_can_be_drawn_anew_and_of_one_cannot(rows: int) -> None:
    table = RequestTable.build(np.arange(rows) * 10, np.arange(rows) + 5, np.full(rows, 2))
    draws = [resampled(table, seed).prompt_tokens.tolist() for seed in range(20)]
    differ = any(draw != table.prompt_tokens.tolist() for draw in draws)
    assert differ == (rows > 1)
    assert all(set(draw) <= set(table.prompt_tokens.tolist()) for draw in draws)


SERVED = {"model": "llama-3.1-8b", "num_requests": 10}


def test_every_other_policy_is_tried_and_not_the_own_one() -> None:
    own, others = values_of(configure(**SERVED, scheduler="lpm"))["scheduler"]
    assert own == "lpm"
    assert "fcfs" in others
    assert "lpm" not in others


@pytest.mark.parametrize(("instances", "routed"), [(1, False), (2, True)])
def test_routers_are_tried_where_there_is_more_than_one_instance(instances: int, routed: bool) -> None:
    values = values_of(configure(**SERVED, num_instances=instances))
    assert ("routing_policy" in values) == routed
    if routed:
        now, others = values["routing_policy"]
        assert others
        assert now not in others


def test_as_many_sequences_as_tokens_in_a_step_are_tried_and_no_more() -> None:
    values = values_of(configure(**SERVED, max_num_seqs=64, max_num_batched_tokens=128))
    seqs, budgets = (
        [int(str(each)) for each in values[name][1]] for name in ("max_num_seqs", "max_num_batched_tokens")
    )
    assert 128 in seqs
    assert max(seqs) == 128
    assert 64 in budgets
    assert min(budgets) == 64


def test_errors_of_a_model_without_a_profile_are_those_of_its_validation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only a model fitted to a profile brings the errors of its fit."""
    config = configure(**SERVED)
    assert errors_of(config, 0, []) is None
    models: list[str] = []

    def validated(model: str) -> tuple[()]:
        models.append(model)
        return ()

    monkeypatch.setattr(uncertainty, "validated", validated)
    monkeypatch.setattr(uncertainty, "_of_fitted", lambda profile, count: (profile, count))
    for model, profile in (("trained", None), ("trained", "own.yaml"), ("fitted", None)):
        latency = replace(config.latency, model=model, profile=profile)
        assert errors_of(replace(config, latency=latency), 3, [("ttft", "p99")]) is None
    assert models == ["trained", "trained", "fitted"]
    own: Any = replace(config.latency, model="fitted", profile="own.yaml")
    assert errors_of(replace(config, latency=own), 3, []) == ("own.yaml", 3)  # type: ignore[comparison-overlap]


def test_the_errors_of_the_pool_with_the_most_gpus_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def pool(count: int, tp: int) -> Any:
        return SimpleNamespace(count=count), SimpleNamespace(tp=tp)

    whole: Any = SimpleNamespace(tp=1)
    pools = [pool(2, 1), pool(1, 4), pool(3, 1)]
    monkeypatch.setattr(uncertainty, "pool_configs", lambda _: pools)
    assert uncertainty._largest(whole) is pools[1][1]
    monkeypatch.setattr(uncertainty, "pool_configs", lambda _: pools[:1])
    assert uncertainty._largest(whole) is whole


@pytest.mark.parametrize(("steps", "typical"), [((), 0.0), ((1.0,), 0.0), ((0.8, 1.25), 0.225)])
def test_the_typical_error_is_the_mean_distance_of_the_truth(
    steps: tuple[float, ...], typical: float
) -> None:
    assert Errors(tuple(map(Draw, steps)), "runs", 9).typical == pytest.approx(typical)


@pytest.mark.parametrize(("runs", "few"), [(0, False), (1, True), (FEW - 1, True), (FEW, False)])
def test_few_runs_say_little_and_none_is_a_cross_validation(runs: int, few: bool) -> None:
    assert Errors((), "runs", runs).few == few


@pytest.mark.parametrize(
    ("platform", "variables", "folder"),
    [
        ("linux", {}, "/home/me/.cache/blis-py/runs"),
        ("linux", {"XDG_CACHE_HOME": "/x"}, "/x/blis-py/runs"),
        ("darwin", {"XDG_CACHE_HOME": "/x"}, "/home/me/Library/Caches/blis-py/runs"),
        ("win32", {}, "/home/me/AppData/Local/blis-py/runs"),
        ("win32", {"LOCALAPPDATA": "/l"}, "/l/blis-py/runs"),
        ("darwin", {"BLIS_CACHE": "/own"}, "/own"),
    ],
)
def test_results_are_kept_where_the_platform_keeps_caches(
    monkeypatch: pytest.MonkeyPatch, platform: str, variables: dict[str, str], folder: str
) -> None:
    for name in ("BLIS_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(Path, "home", lambda: Path("/home/me"))
    monkeypatch.setattr(store, "sys", SimpleNamespace(platform=platform))
    assert default_folder() == Path(folder)


@pytest.mark.parametrize("fails", [False, True])
def test_the_workers_are_closed_at_the_end_of_all_jobs_and_after_an_error(fails: bool) -> None:
    ends: list[str] = []
    executor: Any = SimpleNamespace(close=lambda: ends.append("closed"), workers=3)
    with suppress(ZeroDivisionError), Runner(executor, Nowhere()) as runner:
        assert runner.workers == 3
        assert not ends
        if fails:
            raise ZeroDivisionError
    assert ends == ["closed"]


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
