"""Parts of plans by themselves: what is remembered, tried, listed, drawn and refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from blis_py.api import configure
from blis_py.errors import InputError
from blis_py.metrics.record import Outcome
from blis_py.planning import _space, _suggest, contents, executors, orphans, worker
from blis_py.planning.axes import Axis, _is_finite, _is_key, axis, drawn, layouts
from blis_py.planning.curves import _across, _half_width, _is_number, _named, curves, save_curves
from blis_py.planning.early_stop import _easy, horizon_ns, percent_of, worth_it
from blis_py.planning.goal import Goal, Judgement, Requirement, parse_at_least, parse_share
from blis_py.planning.job import HOPELESS, Job, JobOutcome, Variation
from blis_py.planning.knobs import ROUNDS, _cheaper, _Trials
from blis_py.planning.longer import _named as _named_copies
from blis_py.planning.longer import _permanent, longer, repeated
from blis_py.planning.plan import _is_laid_out, _more_than_offered, _nearest, _sizes
from blis_py.planning.prices import Prices, parse_prices
from blis_py.planning.report_text import _values
from blis_py.planning.search import Search, SearchLine
from blis_py.planning.study import Study
from blis_py.requests.table import RequestTable
from blis_py.setup.demand import Demand

CONFIG = configure(model="llama-3.1-8b", num_requests=5)


# -- what is remembered ------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("text", "digested"), [("", False), ("a.csv", True), ("b.csv", False), ("a\0b", False)]
)
def test_files_that_a_spec_names_are_part_of_it(tmp_path: Any, text: str, digested: bool) -> None:
    (tmp_path / "a.csv").write_text("x")
    spec = tmp_path / "spec.yaml"
    spec.write_text("x: {y: [" + repr(text).replace("'", '"') + ", 3]}\n" if "\0" not in text else "x: y\n")
    assert contents._with_references(spec) == [spec, *([tmp_path / "a.csv"] if digested else [])]


def test_a_spec_does_not_name_itself_and_a_checkpoint_is_its_configuration(tmp_path: Any) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text("me: spec.yaml\n")
    assert contents._with_references(spec) == [spec]
    for name in ("config.json", "weights.bin"):
        (tmp_path / name).write_text("")
    assert contents._configs(tmp_path) == [tmp_path / "config.json"]
    assert contents._configs(spec) == [spec]
    assert set(contents._itself(tmp_path)) == {spec, tmp_path / "config.json", tmp_path / "weights.bin"}


# -- spaces ------------------------------------------------------------------------------------------------


def space_of(sizes: Sequence[int] = (1, 2), axes: Sequence[Axis] = ()) -> _space.Space:
    runner: Any = SimpleNamespace()
    study = Study(start=replace(CONFIG, slo=["ttft.p99=1s"]))
    return _space.Space(study, axes, sizes, Prices({"h100": 2.0}), Goal(), runner, lambda line: None)


def test_a_line_is_added_where_its_settings_can_be_run() -> None:
    space = space_of()
    assert not space.add(0, {"max_num_seqs": 0})
    assert (len(space.points), len(space.costs)) == (1, 1)
    assert space.runs(0)
    assert space.add(0, {"max_num_seqs": 7})
    assert (len(space.points), space.costs) == (2, [2.0, 2.0])
    assert [space.config((line, 1)).scheduler.max_num_seqs == 7 for line in (0, 1)] == [False, True]
    assert space.config((1, 1)).num_instances == 2
    assert space.changed((1, 1), {"max_num_seqs": 9}).scheduler.max_num_seqs == 9


def test_a_run_is_drained_unless_a_horizon_is_its_end() -> None:
    assert _space.drained(replace(CONFIG, drain=False)).drain
    assert not _space.drained(replace(CONFIG, drain=False, horizon=5)).drain


def test_the_best_so_far_is_the_cheapest_that_holds_and_gives_way_when_it_does_not() -> None:
    space = space_of((1, 2, 3))

    def best_after(probe: tuple[int, int], holds: bool) -> Any:
        outcome = JobOutcome(refused=None if holds else "no", early_stop="fine" if holds else None)
        space._outcomes[probe] = outcome
        space._compare(probe)
        return space._best

    assert [
        best_after(*each) for each in (((0, 2), True), ((0, 1), True), ((0, 2), True), ((0, 0), False))
    ] == [
        *((0, 2), (0, 1), (0, 1), (0, 1)),
    ]
    assert best_after((0, 1), False) == (0, 2)
    assert best_after((0, 2), False) is None


class Known:
    """In place of a search: the judgements so far, and what a probe costs."""

    def __init__(self, slacks: dict[tuple[int, int], float | None]) -> None:
        self.known = {
            probe: Judgement(False, refused="no")
            if slack is None
            else Judgement(slack >= 0, (Requirement("ttft.p99", 1.0, 1 - slack, "ms", slack),))
            for probe, slack in slacks.items()
        }

    def first_judged(self, line: int) -> Judgement:
        return self.known[line, 1]

    def whole(self, probes: Any) -> None:
        self.probes = probes

    def cost(self, probe: tuple[int, int]) -> float:
        return float(10 * (probe[1] + 1) + probe[0])


def test_the_nearest_is_the_largest_size_with_the_most_slack() -> None:
    search: Any = Known({(0, 1): -0.5, (1, 1): -0.2, (2, 1): None, (3, 1): -0.2})
    space: Any = SimpleNamespace(sizes=[1, 2])
    assert _nearest(space, search, [0, 1, 2, 3]) == (1, 1)
    assert search.probes == [(0, 1), (1, 1), (3, 1)]
    with pytest.raises(InputError, match="no configuration can be run: no"):
        _nearest(space, search, [2])


def test_combinations_that_cost_less_are_tried_at_their_largest_size_near_the_answer_first() -> None:
    space: Any = SimpleNamespace(
        sizes=[1, 2, 4], costs=[10.0, 15.0, 50.0, 1.0, 10.0], runs=lambda line: line != 3
    )
    search: Any = SimpleNamespace(cost=lambda probe: space.costs[probe[0]] * space.sizes[probe[1]])
    assert _cheaper(space, search, [0, 1, 2, 3, 4], (0, 2)) == [(0, 1), (1, 1), (4, 1)]
    assert _cheaper(space, search, [0, 1, 2, 3, 4], None) == [(2, 2), (1, 2), (0, 2), (4, 2)]
    assert _cheaper(space, search, [0], (0, 0)) == []


class Tuned:
    """A space in which each setting has a slack of its own."""

    at = Variation()
    axes: Sequence[Any] = ()
    goal = SimpleNamespace(max_lost=0.1, judge=lambda outcome: outcome)

    def __init__(self, slack_of: Any) -> None:
        self._slack_of, self.jobs, self.runner = slack_of, [], self

    def changed(self, probe: Any, changes: Any) -> Any:
        scheduler = replace(CONFIG.scheduler, max_num_seqs=64, max_num_batched_tokens=64)
        config = replace(CONFIG, scheduler=scheduler)
        for name, value in changes.items():
            key = {"scheduler": "policy"}.get(name, name)
            config = replace(config, scheduler=replace(config.scheduler, **{key: value}))
        return config

    def run(self, jobs: Sequence[Job]) -> list[Judgement]:
        self.jobs += jobs
        return [self._judged(job.config.scheduler) for job in jobs]

    def _judged(self, scheduler: Any) -> Judgement:
        slack = self._slack_of(scheduler)
        return Judgement(slack >= 0, (Requirement("x", 1.0, 1 - slack, "ms", slack),))


def trials(slack_of: Any) -> tuple[_Trials, Tuned]:
    space: Any = Tuned(slack_of)
    search: Any = None
    return _Trials(space, search), space


def test_the_change_that_leaves_the_most_slack_is_kept_and_changed_further() -> None:
    """It takes a policy and another number of sequences; neither is enough."""
    found, space = trials(lambda s: -1 + 0.6 * (s.policy == "priority-fcfs") + 0.5 * (s.max_num_seqs == 32))
    assert found.holding((0, 0)) == {"scheduler": "priority-fcfs", "max_num_seqs": 32}
    assert all(job.stops_at == (HOPELESS,) and job.max_lost == 0.1 for job in space.jobs)
    assert found.judged <= found.possible
    assert "priority-fcfs" in found.tried["scheduler"]


def test_what_gets_no_better_is_given_up() -> None:
    found, space = trials(lambda s: -0.5)
    assert found.holding((0, 0)) is None
    rounds: list[Any] = []
    stubborn, _ = trials(lambda s: -0.5 - 1 / (len(rounds) + 1))
    rounds.extend(range(ROUNDS))
    assert stubborn.holding((0, 0)) is None
    assert found.judged == len(space.jobs) // 2 or found.judged < len(space.jobs)


def test_over_a_longer_run_one_or_two_changes_are_tried() -> None:
    found, space = trials(lambda s: -1 + 0.6 * (s.policy == "priority-fcfs") + 0.5 * (s.max_num_seqs == 32))
    changes = found.holding_longer((0, 0), 3.0)
    assert changes == {"scheduler": "priority-fcfs", "max_num_seqs": 32}
    assert {job.variation.length for job in space.jobs} == {3.0}
    single, few = trials(lambda s: 1.0 * (s.max_num_seqs == 32) - 0.5)
    assert single.holding_longer((0, 0), 3.0) == {"max_num_seqs": 32}
    assert len(few.jobs) < len(space.jobs)
    assert trials(lambda s: -0.5)[0].holding_longer((0, 0), 2.0) is None


# -- numbers of instances ----------------------------------------------------------------------------------

PLAIN = Study(start=CONFIG)


@pytest.mark.parametrize(
    ("sizes", "axes", "found"),
    [
        ([3, 1, 3], [], [1, 3]),
        (None, [axis("num_instances", [4, 2])], [2, 4]),
        ([100_000], [], [100_000]),
        (None, [axis("xpyd", ["1p1d", "2"])], [1]),
    ],
)
def test_numbers_of_instances_are_in_order(sizes: Any, axes: list[Axis], found: list[int]) -> None:
    tried, others = _sizes(sizes, axes, PLAIN)
    assert tried == found
    assert [each.name for each in others] == [each.name for each in axes if each.name == "xpyd"]


@pytest.mark.parametrize(
    ("sizes", "axes", "message"),
    [
        ([0], [], "whole numbers from 1"),
        ([100_001], [], "whole numbers from 1"),
        ([True], [], "whole numbers from 1"),
        ([1.0], [], "whole numbers from 1"),
        ([], [], "has no values"),
        ([1], [axis("num_instances", [1])], "given by --instances, too"),
        ([1], [axis("xpyd", ["1p1d"])], "contradicts the instances of each side"),
        (
            None,
            [axis("xpyd", ["1p1d"]), axis("num_instances", [1])],
            "contradicts the instances of each side",
        ),
    ],
)
def test_other_numbers_of_instances_are_refused(sizes: Any, axes: list[Axis], message: str) -> None:
    with pytest.raises(InputError, match=message):
        _sizes(sizes, axes, PLAIN)


def test_a_layout_is_one_that_is_varied_or_given() -> None:
    assert not _is_laid_out(PLAIN, [])
    assert not _is_laid_out(Study(), [axis("model", ["llama-3.1-8b"])])
    assert _is_laid_out(PLAIN, [axis("tp", [1]), axis("xpyd", ["1p1d"])])
    assert _is_laid_out(Study(start=configure(model="llama-3.1-8b", num_requests=5, xpyd="1p1d")), [])


def missing(*missed: tuple[str, float, float], **more: Any) -> Any:
    requirements = tuple(
        Requirement(what, limit, measured, "per s", measured / limit - 1) for what, limit, measured in missed
    )
    judged = Judgement(False, requirements, saturated=more.pop("saturated", False))
    concurrency = more.pop("concurrency", None)
    config = replace(CONFIG, workload=replace(CONFIG.workload, concurrency=concurrency))
    return SimpleNamespace(judgement=judged, config=config, outcome=JobOutcome(facts=more))


@pytest.mark.parametrize(
    ("case", "text"),
    [
        (missing(("requests_per_s", 10, 8.25)), "requests_per_s 8.25"),
        (missing(("requests_per_s", 10, 8), ("ttft.p99", 10, 8)), ""),
        (missing(("goodput_per_s", 10, 8), offered_per_s=9.9), "goodput_per_s 8"),
        (missing(("goodput_per_s", 10, 8), offered_per_s=10.0), ""),
        (missing(("goodput_per_s", 10, 8)), ""),
        (missing(("requests_per_s", 10, 11)), ""),
        (missing(("requests_per_s", 10, 8), saturated=True), ""),
        (missing(("requests_per_s", 10, 8), concurrency=3), ""),
    ],
)
def test_a_throughput_above_what_is_offered_is_named(case: Any, text: str) -> None:
    assert _more_than_offered(case) == text


# -- axes, suggestions, prices, parts of texts -------------------------------------------------------------


def test_layouts_are_all_divisions_of_the_instances() -> None:
    assert layouts("auto:4") == ["4", "1p3d", "2p2d", "3p1d"]
    assert layouts("1p1d") == ["1p1d"]
    assert len(layouts("auto:64")) == 64
    for text in ("auto", "auto:1", "auto:65", "auto:x", "auto:"):
        with pytest.raises(InputError, match="needs a number of instances"):
            layouts(text)


def test_values_are_finite_and_keys_known() -> None:
    inf = float("inf")
    values = (
        1,
        1.5,
        "inf",
        None,
        [1, inf],
        [inf, 1],
        {"a": 1, "b": inf},
        {"a": inf, "b": 1},
        inf,
        [1, 2],
        {"a": 1},
    )
    assert [_is_finite(value) for value in values] == [
        *(True, True, True, True, False, False, False, False, False, True, True)
    ]
    keys = (
        "tp",
        "tp.x",
        "nosuch",
        "scheduler.max_num_seqs",
        "scheduler.nosuch",
        "pools.a.count",
        "pools.a.no",
    )
    assert [_is_key(key) for key in keys] == [True, False, False, True, False, True, False]


@pytest.mark.parametrize("count", [1, 3, 5, 6, 9])
def test_points_are_drawn_without_repetition(count: int) -> None:
    axes = [Axis("a", "", (1, 2)), Axis("b", "", ("x", "y", "z"))]
    points = drawn(axes, count, 7)
    assert len(points) == min(count, 6)
    assert len({tuple(point.items()) for point in points}) == len(points)
    if count < 6:
        assert points == drawn(axes, count, 7)


def test_optuna_suggests_as_many_lines_as_may_be_tried() -> None:
    pytest.importorskip("optuna")
    axes = [Axis(f"a{number}", "", (0, 1)) for number in range(5)]
    requested: list[int] = []
    search: Any = SimpleNamespace(
        best=lambda looked: requested.append(len(looked)),
        least=lambda line: 0,
        most_failing=lambda line: None,
        cost=lambda probe: float(probe[0]),
    )
    for trials_ in (1, 8, 11):
        lines = _suggest.suggested(axes, search, trials_, 1)
        assert len(lines) == trials_
        assert lines == sorted(set(lines))
        assert set(lines) <= set(range(32))
    same = [Axis("a", "", (0,))]
    assert _suggest.suggested(same, search, 9, 1) == [0]


@pytest.mark.parametrize("price", [0, -1, 1e12, float("nan"), True, "2"])
def test_a_price_is_a_positive_number(price: Any) -> None:
    with pytest.raises(InputError, match="is not a price"):
        Prices({"h100": price})
    if isinstance(price, float | int) and not isinstance(price, bool):
        with pytest.raises(InputError, match="is not the price of a GPU"):
            parse_prices([f"h100={price}"])


def test_prices_are_found_by_any_spelling_and_those_missing_once() -> None:
    prices = Prices({"H100": 2.5}, bundled=False)
    found = prices.of("h100")
    assert found is not None
    assert (found.per_hour, found.source) == (2.5, "as given")
    assert prices.missing(["l4", "h100", "l4", "b200"]) == ["l4", "b200"]
    assert parse_prices(["h100=2.5,l4=$1", "b200=3"]) == {"h100": 2.5, "l4": 1.0, "b200": 3.0}
    with pytest.raises(InputError, match="no such GPU"):
        Prices({"nosuch": 1.0}).check(["h100"])
    Prices({"own": 1.0}).check(["own"])


def test_values_that_are_not_all_numbers_are_listed() -> None:
    assert _values([64, "auto", 8]) == "64, auto, 8"


@pytest.mark.parametrize(
    ("text", "share"), [("0", 0.0), ("1", 1.0), ("0.5", 0.5), ("99%", 0.99), ("100%", 1.0)]
)
def test_a_share_is_a_fraction_or_a_percentage(text: str, share: float) -> None:
    assert parse_share(text, key="k") == pytest.approx(share)


@pytest.mark.parametrize("text", ["-0.1", "95", "100", "101%", "x", "", "nan"])
def test_other_shares_are_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse_share(text, key="k")


@pytest.mark.parametrize("text", ["requests_per_s=0", "requests_per_s=inf", "requests_per_s=-1", "nosuch=3"])
def test_a_least_figure_is_positive(text: str) -> None:
    assert parse_at_least(["requests_per_s=0.5,goodput_per_s=2"]) == {
        "requests_per_s": 0.5,
        "goodput_per_s": 2.0,
    }
    with pytest.raises(InputError):
        parse_at_least([text])


# -- curves ------------------------------------------------------------------------------------------------


def test_curves_run_over_the_first_numeric_setting() -> None:
    assert _across({"gpu": ("a", "b"), "mixed": (1, "auto"), "rate": (1, 2.5), "tp": (1, 2)}) == "rate"
    assert _across({"gpu": ("a", "b"), "flag": (True, False)}) == "gpu"
    assert [_is_number(value) for value in (1, 1.5, True, "1", None)] == [True, True, False, False, False]
    assert _named(("gpu", "tp"), ("h100", 2)) == "gpu h100, tp 2"
    assert (_named(("gpu",), "h100"), _named((), ())) == ("gpu h100", "all")
    assert (_half_width(1.0, 1), _half_width(1.0, 2)) == (0.0, pytest.approx(6.3137515))


def test_settings_of_two_kinds_are_drawn_as_words(tmp_path: Any) -> None:
    rows = [
        {"mode": mode, "seed": 0, "status": "ok", "ttft_ms.p99": value}
        for mode, value in (("1", 3.0), ("auto", 5.0))
    ]
    axes = {"mode": (1, "auto")}
    picture: Any = curves(pd.DataFrame(rows), axes)
    panel = next(ax for ax in picture.figure.axes if ax.lines)
    assert [tick.get_text() for tick in panel.get_xticklabels()] == ["1", "auto"]
    assert save_curves(pd.DataFrame(rows), {}, tmp_path) == []


# -- the first part of a run -------------------------------------------------------------------------------


def part(outcomes: list[Outcome], used: Sequence[float]) -> Any:
    instances = [SimpleNamespace(peak_kv_blocks=share * 100, num_kv_blocks=100) for share in used]
    return SimpleNamespace(outcome=np.array(outcomes, dtype=np.int8), instances=instances)


@pytest.mark.parametrize(
    ("ended", "other", "used", "easy"),
    [
        (50, Outcome.RUNNING, [0.5, 0.1], True),
        (49, Outcome.RUNNING, [0.5, 0.1], False),
        (50, Outcome.RUNNING, [0.1, 0.51], False),
        (50, Outcome.RUNNING, [0.51, 0.1], False),
        (50, Outcome.RUNNING, [], False),
        (50, Outcome.EVICTED, [0.1], False),
        (50, Outcome.UNSERVABLE, [0.1], False),
    ],
)
def test_a_first_part_is_easy_where_no_instance_is_half_full(
    ended: int, other: Outcome, used: list[float], easy: bool
) -> None:
    columns: Any = None
    outcomes = [Outcome.COMPLETED] * (ended - 1) + [Outcome.LENGTH_CAPPED, other]
    assert _easy([], part(outcomes, used), columns) == easy


def test_the_first_part_is_worthwhile_from_four_hundred_requests_on() -> None:
    def load(rows: int, step_ns: int = 8) -> RequestTable:
        return RequestTable.build(np.arange(rows) * step_ns + 3, np.ones(rows, int), np.ones(rows, int))

    check: Any = object()
    assert [worth_it(load(rows), [check]) for rows in (399, 400)] == [False, True]
    assert not worth_it(load(400), [])
    assert (horizon_ns(load(11)), horizon_ns(load(3, 0))) == (3 + 10, 3 + 1)
    stats = ("mean", "std", "median", "max", "p99", "p99.9", "min")
    assert [percent_of(stat) for stat in stats] == [None, None, 50.0, 100.0, 99.0, 99.9, None]


# -- longer loads ------------------------------------------------------------------------------------------


def test_copies_have_names_and_texts_of_their_own_but_for_permanent_ones() -> None:
    table = RequestTable.build(
        np.array([0, 10, 20, 40]),
        np.array([9, 9, 9, 9]),
        np.array([1, 1, 1, 1]),
        content=np.array([0, 1, -1, 0]),
        contents=[(("all", 4), ("own", 5)), (("brief", 9),)],
        deadline_ns=np.array([-1, 12, 20, 0]),
        session=np.array([0, -1, 1, 0]),
        request_id=["a", "b", "c", "d"],
    )
    assert _permanent(table) == {"all", "own"}
    twice = repeated(table, 2)
    period_ns = round(40 * 4 / 3)
    assert twice.arrival_ns.tolist() == [*(0, 10, 20, 40), *(each + period_ns for each in (0, 10, 20, 40))]
    assert twice.deadline_ns.tolist() == [-1, 12, 20, 0, -1, 12 + period_ns, 20 + period_ns, period_ns]
    assert twice.request_id == ["a", "b", "c", "d", "a~1", "b~1", "c~1", "d~1"]
    assert twice.session is not None
    assert twice.session.tolist() == [0, -1, 1, 0, 2, -1, 3, 2]
    assert twice.content.tolist() == [0, 1, -1, 0, 2, 3, -1, 2]
    assert list(twice.contents[2:]) == [(("all", 4), ("own", 5)), (("brief~1", 9),)]
    assert _named_copies(["x"], 3) == ["x", "x~1", "x~2"]
    assert repeated(table, 1) is table


def test_a_text_is_permanent_that_recurs_over_more_than_half_of_the_time() -> None:
    table = RequestTable.build(
        np.array([0, 20, 21, 40]),
        np.full(4, 5),
        np.full(4, 1),
        content=np.array([0, 0, 1, 2]),
        contents=[(("half", 1), ("more", 1)), (("more", 1),), (("late", 1),)],
    )
    assert _permanent(table) == {"more"}


def test_a_load_that_is_not_to_be_longer_stays_as_it_is() -> None:
    demand = Demand(RequestTable.build(np.arange(3), np.arange(3) + 1, np.arange(3) + 1), 1)
    assert longer(CONFIG, 1.0, lambda config: demand) is demand
    assert longer(CONFIG, 0.5, lambda config: demand) is demand


# -- processes ---------------------------------------------------------------------------------------------


def test_cores_are_those_of_the_process_or_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing_() -> Any:
        raise AttributeError

    monkeypatch.setattr(executors.os, "sched_getaffinity", lambda pid: {1, 2, 5} if pid == 0 else set())
    assert executors.cores() == 3
    monkeypatch.setattr(executors.os, "sched_getaffinity", lambda pid: missing_())
    for count, cores in ((7, 7), (None, 1)):
        monkeypatch.setattr(executors.os, "cpu_count", lambda count=count: count)
        assert executors.cores() == cores


@pytest.mark.parametrize(
    ("platform", "answer", "by_kernel"),
    [("linux", 0, True), ("linux", -1, False), ("win32", 0, False), ("linux", None, False)],
)
def test_the_kernel_ends_a_process_with_its_parent_on_linux(
    monkeypatch: pytest.MonkeyPatch, platform: str, answer: int | None, by_kernel: bool
) -> None:
    def library(name: None) -> Any:
        if answer is None:
            raise OSError
        return SimpleNamespace(prctl=lambda what, signal: answer)

    monkeypatch.setattr(orphans, "sys", SimpleNamespace(platform=platform))
    monkeypatch.setattr(orphans.ctypes, "CDLL", library)
    assert orphans._ends_by_the_kernel() == by_kernel


@pytest.mark.parametrize(
    ("by_kernel", "parent", "happens"),
    [(True, 7, []), (True, 8, ["exit 1"]), (False, 7, ["watch 7"]), (False, 8, ["watch 8"])],
)
def test_a_process_ends_at_once_if_its_parent_is_gone_already(
    monkeypatch: pytest.MonkeyPatch, by_kernel: bool, parent: int, happens: list[str]
) -> None:
    seen: list[str] = []

    class Thread:
        def __init__(self, target: Any, args: tuple[int], daemon: bool) -> None:
            assert daemon
            seen.append(f"watch {args[0]}")

        def start(self) -> None: ...

    monkeypatch.setattr(orphans, "_ends_by_the_kernel", lambda: by_kernel)
    monkeypatch.setattr(orphans, "threading", SimpleNamespace(Thread=Thread))
    monkeypatch.setattr(
        orphans, "os", SimpleNamespace(getppid=lambda: 7, _exit=lambda code: seen.append(f"exit {code}"))
    )
    orphans.end_with(parent)
    assert seen == happens


def test_a_line_of_a_search_is_settled_by_neighbours() -> None:
    def search(slacks: Sequence[float]) -> Search:
        def evaluate(probes: Any, may_stop: bool) -> list[Judgement]:
            return [Known({probe: slacks[probe[1]]}).known[probe] for probe in probes]

        return Search([SearchLine(1.0)], list(range(1, len(slacks) + 1)), evaluate)

    found = search([-1.0, -0.5, 0.1, 0.2])
    assert found.best([0]) == (0, 2)
    assert (found.least(0), found.most_failing(0), found.settled(0)) == (2, 1, True)
