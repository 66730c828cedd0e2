"""Settings tried around a candidate: rounds of single changes, and pairs once a longer run refutes one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from small_plans import CONFIG, SERVED

import blis_py as blis
from blis_py.api import configure
from blis_py.planning import knobs
from blis_py.planning.goal import Goal, Judgement, Requirement
from blis_py.planning.job import HOPELESS, Job, JobOutcome, Variation
from blis_py.planning.knobs import ROUNDS, _cheaper, _Trials, values_of
from blis_py.planning.result import Knobs
from blis_py.planning.search import Probe, Search, SearchLine

LONGER = 20.0
LUCKY = {"max_num_seqs": 512}
"""Holds for a short run only."""
PAIR = {"max_num_batched_tokens": 2048, "scheduler": "priority-fcfs"}


def slack(settings: dict[str, Any], length: float) -> float:
    """Of a candidate of two instances; the router is the best single change, and a dead end."""
    if length < LONGER:
        return 0.1 if settings == LUCKY else -0.5
    if settings == PAIR:
        return 0.02
    if "routing_policy" in settings:
        return -0.05
    return -0.3 if "scheduler" in settings else -2.0


class OneLine:
    """A space of two instances of one combination, whose runs are `slack`."""

    def __init__(self, sizes: list[int]) -> None:
        self._config = blis.build(
            model="qwen3-14b", gpu="h100", num_instances=2, num_requests=10, rate=1
        ).config
        self._settings: dict[int, dict[str, Any]] = {}
        self.sizes, self.axes, self.goal, self.at, self.runner = sizes, (), Goal(), Variation(), self
        self.points: list[dict[str, Any]] = [{}]
        self.costs = [1.0]
        self.jobs: list[Job] = []

    def runs(self, line: int) -> bool:
        return True

    def largest(self, line: int) -> int:
        return len(self.sizes) - 1

    def line(self, line: int) -> SearchLine:
        return SearchLine(self.costs[line])

    def candidate(self, probe: Probe) -> Probe:
        return probe

    def add(self, line: int, settings: dict[str, Any]) -> bool:
        self.points.append(self.points[line] | settings)
        self.costs.append(1.0)
        return True

    def changed(self, probe: Probe, settings: dict[str, Any]) -> Any:
        own = self._config.scheduler
        made = self.points[probe[0]] | settings
        scheduler = SimpleNamespace(
            max_num_batched_tokens=made.get("max_num_batched_tokens", own.max_num_batched_tokens),
            max_num_seqs=made.get("max_num_seqs", own.max_num_seqs),
            policy=made.get("scheduler", own.policy),
            prefix_cache=made.get("prefix_cache", own.prefix_cache),
            block_size=own.block_size,
        )
        routing = SimpleNamespace(policy=made.get("routing_policy", self._config.routing.policy))
        own = {"engine": "vllm", "instances": 2, "given": (), "workload": self._config.workload}
        return SimpleNamespace(scheduler=scheduler, routing=routing, made=made, **own)

    def run(self, jobs: list[Any]) -> list[JobOutcome]:
        self.jobs += jobs
        return [outcome(slack(job.config.made, job.variation.length)) for job in jobs]


def outcome(spare: float) -> JobOutcome:
    verdict = {"slo": "ttft.p99=100ms", "metric": "ttft", "stat": "p99", "limit_ms": 100.0}
    return JobOutcome(slo=[verdict | {"measured_ms": 100 * (1 - spare), "met": spare >= 0}])


def judgement(spare: float) -> Judgement:
    return Judgement(spare >= 0, (Requirement("x", 1.0, 1 - spare, "ms", spare),))


def tuned() -> tuple[OneLine, Probe | None, Knobs]:
    """The result of `improved` where a change is verified over the longer duration."""
    space = OneLine([2])
    refuted: set[Probe] = set()

    def evaluate(probes: Any, _: bool) -> list[Judgement]:
        return [judgement(slack(space.points[line], 1.0 if line < 2 else LONGER)) for line, _ in probes]

    search = Search([SearchLine(1.0)], space.sizes, evaluate)

    def best(lines: Any) -> Probe | None:
        while (probe := search.best(lines)) is not None:
            longer = slack(space.points[probe[0]], LONGER)
            if longer >= 0:
                return probe
            refuted.add(probe)
            search.rejudge(probe, judgement(longer))
        return None

    found, _, tried = knobs.improved(
        space,  # type: ignore[arg-type]
        search,
        [0],
        best([0]),
        best,
        lambda probe: LONGER if probe in refuted else None,
    )
    return space, found, tried


def test_a_pair_is_found_at_the_length_that_refuted_a_change_of_a_short_run() -> None:
    space, found, _ = tuned()
    assert space.points[1] == LUCKY
    assert found == (2, 0)
    assert space.points[2] == PAIR


def test_pairs_are_judged_only_over_the_longer_duration_and_each_once() -> None:
    space, _, _ = tuned()
    longer = [tuple(sorted(job.config.made.items())) for job in space.jobs if job.variation.length == LONGER]  # type: ignore[attr-defined]
    assert len(longer) == len(set(longer))
    assert {len(made) for made in longer} == {1, 2}
    assert all(len(job.config.made) == 1 for job in space.jobs if job.variation.length < LONGER)  # type: ignore[attr-defined]


def test_combinations_tried_are_counted_once_of_all_that_are_possible() -> None:
    space, _, tried = tuned()
    made = {tuple(sorted(job.config.made.items())) for job in space.jobs}  # type: ignore[attr-defined]
    possible = 1
    for values in tried.tried.values():
        possible *= len(values)
    assert tried.judged == len(made)
    assert tried.possible == possible - 1 > tried.judged


def test_a_combination_is_one_in_whatever_order_its_settings_were_changed() -> None:
    trials = object.__new__(knobs._Trials)
    trials._space, trials._judged = OneLine([2]), {}  # type: ignore[assignment]
    for names in (("scheduler", "max_num_seqs"), ("max_num_seqs", "scheduler")):
        trials._rated((0, 0), [dict.fromkeys(names, 1)], Variation())
    assert len(trials._judged[0, 0]) == 1


def test_combinations_that_cost_less_are_tried_at_their_largest_size_near_the_answer_first() -> None:
    space: Any = SimpleNamespace(
        sizes=[1, 2, 4],
        costs=[10.0, 15.0, 50.0, 1.0, 10.0],
        runs=lambda line: line != 3,
        largest=lambda line: 0 if line == 5 else 2,
    )
    search: Any = SimpleNamespace(cost=lambda probe: space.costs[probe[0]] * space.sizes[probe[1]])
    assert _cheaper(space, search, [0, 1, 2, 3, 4], (0, 2)) == [(0, 1), (1, 1), (4, 1)]
    assert _cheaper(space, search, [0, 1, 2, 3, 4], None) == [(2, 2), (1, 2), (0, 2), (4, 2)]
    assert _cheaper(space, search, [0], (0, 0)) == []
    space.costs.append(40.0)
    assert _cheaper(space, search, [5], None) == [(5, 0)]


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
    return _Trials(space), space


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


class Classes(Tuned):
    """Requests of several classes, on any number of instances: what holds depends on both."""

    def changed(self, probe: Any, changes: Any) -> Any:
        config = super().changed(probe, changes)
        scheduler = replace(config.scheduler, long_prefill_token_threshold=probe[1] + 1)
        return replace(config, scheduler=scheduler, workload=replace(config.workload, spec="mixed-slo"))


def test_settings_that_help_only_together_are_tried_together() -> None:
    """A policy and a token budget: each alone is far from enough."""
    pair = ("priority-fcfs", 128)
    space: Any = Classes(lambda s: 0.1 if (s.policy, s.max_num_batched_tokens) == pair else -2.0)
    found = _Trials(space, rounds=1).holding((0, 0))
    assert found == {"scheduler": "priority-fcfs", "max_num_batched_tokens": 128}
    alike: Any = Tuned(space._slack_of)  # one class: there is no priority to combine with
    assert _Trials(alike, rounds=1).holding((0, 0)) is None


def test_of_several_changes_that_hold_the_one_for_the_fewest_instances_is_taken() -> None:
    """256 sequences leave more slack on nine instances, but need six; a policy needs three."""

    def slack_of(s: Any) -> float:
        size = s.long_prefill_token_threshold
        if s.max_num_seqs == 256:
            return 0.9 if size > 5 else -0.9
        return 0.1 if s.policy == "priority-fcfs" and size > 2 else -0.5

    space: Any = Classes(slack_of)
    assert _Trials(space, together=()).holding((0, 8)) == {"scheduler": "priority-fcfs"}


def test_every_other_policy_is_tried_and_not_the_own_one() -> None:
    own, others = values_of(configure(**SERVED, scheduler="lpm"))["scheduler"]
    assert own == "lpm"
    assert "fcfs" in others
    assert "lpm" not in others


@pytest.mark.parametrize(("engine", "release"), [("sglang", "sglang-0.5.9"), ("vllm", "vllm-0.15")])
def test_a_release_has_the_policies_of_its_engine(engine: str, release: str) -> None:
    served = {**SERVED, "prefix_cache": "none"}
    same, own = (values_of(configure(**{**served, "engine": name})) for name in (engine, release))
    assert (own["scheduler"], own["prefix_cache"]) == (same["scheduler"], same["prefix_cache"])


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
