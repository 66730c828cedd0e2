"""Comparison of traces, shrinking, and our side, without any wheel."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from benchmarks.engines import ours, scenarios
from benchmarks.engines.compare import Difference, first_difference
from benchmarks.engines.outcome import Outcome, add_rows, read_rows
from benchmarks.engines.scenario import Failure, Scenario, StepTrace, accepted_drafts, answer_limit
from benchmarks.engines.shrink import shrunk
from benchmarks.engines.vllm import config, of_ranks

NEW = (0, 33)


def step(**changes: object) -> StepTrace:
    made = StepTrace(tokens={"a": 1}, preempted=[], blocks=3, finished={})
    made.update(changes)  # type: ignore[typeddict-item]
    return made


def test_equal_traces_do_not_differ_whatever_the_order_of_requests() -> None:
    engine, own = [step(tokens={"a": 1, "b": 2})], [step(tokens={"b": 2, "a": 1})]
    assert first_difference(engine, own) is None


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"tokens": {"a": 2}}, "tokens: other counts"),
        ({"tokens": {}}, "tokens: the engine runs more requests"),
        ({"tokens": {"a": 1, "b": 1}}, "tokens: ours runs more requests"),
        ({"tokens": {"b": 1}}, "tokens: other requests"),
        ({"preempted": ["a"]}, "preempted"),
        ({"cached": {"a": 16}}, "cached"),
        ({"again": {"a": 16}}, "again"),
        ({"blocks": 4}, "blocks"),
        ({"finished": {"a": 9}}, "finished"),
    ],
)
def test_each_part_of_a_step_is_compared(changes: dict[str, object], kind: str) -> None:
    assert first_difference([step(), step()], [step(), step(**changes)]) == Difference(1, kind)


def test_a_trace_that_ends_sooner_differs_and_so_does_one_that_fails() -> None:
    assert first_difference([step()], [step(), step()]) == Difference(1, "number of steps")
    failure = Failure(error="KeyError: 'a'", where="line 1")
    assert first_difference(failure, [step()]) == Difference(-1, "the engine fails: KeyError: 'a'")
    assert first_difference([step()], failure) == Difference(-1, "ours fails: KeyError: 'a'")


def test_shrinking_leaves_what_a_property_needs() -> None:
    scenario = scenarios.scenario(Random(3), NEW, True)
    assert len(scenario["requests"]) > 5

    def long_prompt_and_two_urgent(candidate: Scenario) -> bool:
        long = any(sum(n for _, n in each["prompt"]) >= 20 for each in candidate["requests"])
        return long and sum(each["priority"] == 0 for each in candidate["requests"]) >= 2

    if not long_prompt_and_two_urgent(scenario):
        for each in scenario["requests"][:2]:
            each["priority"] = 0
    least = shrunk(scenario, long_prompt_and_two_urgent)
    assert long_prompt_and_two_urgent(least)
    assert len(least["requests"]) == 2
    assert sorted(sum(n for _, n in each["prompt"]) for each in least["requests"]) == [1, 20]
    assert all(0 < each["output_tokens"] <= answer_limit(least, each) for each in least["requests"])


def test_shrinking_drops_a_request_with_those_that_follow_it() -> None:
    drawn = next(
        each
        for seed in range(100)
        for each in [scenarios.scenario(Random(seed), NEW, False)]
        if any("after" in spec for spec in each["requests"])
    )
    least = shrunk(drawn, lambda candidate: any("after" in each for each in candidate["requests"]))
    first, second = least["requests"]
    assert second["after"] == first["id"]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_our_side_serves_every_request_once(asynchronous: bool) -> None:
    for seed in range(8):
        scenario = scenarios.scenario(Random(seed), NEW, asynchronous)
        trace = ours.trace(scenario, config(scenario, "0.15"))
        assert not isinstance(trace, dict), trace
        specs = {each["id"]: each for each in scenario["requests"]}
        ended = {name: tokens for entry in trace for name, tokens in entry["finished"].items()}
        assert all(tokens == specs[name]["output_tokens"] for name, tokens in ended.items())
        aborted = {name for name, each in specs.items() if "abort_step" in each}
        never = {name for name, each in specs.items() if each.get("after") in aborted}
        assert specs.keys() - ended.keys() <= aborted | never
        assert all(0 <= entry["blocks"] <= scenario["num_kv_blocks"] for entry in trace)


def test_drafts_are_verified_in_the_same_steps_on_both_sides() -> None:
    scenario = scenarios.scenario(Random(5), NEW, False, scenarios.DEFAULTS)
    scenario["settings"] = {"num_speculative_tokens": 2}
    trace = ours.trace(scenario, config(scenario, "0.24"))
    assert not isinstance(trace, dict), trace
    ended = {name: tokens for entry in trace for name, tokens in entry["finished"].items()}
    assert any(tokens == 3 for entry in trace for tokens in entry["tokens"].values())
    for spec in scenario["requests"]:
        if spec["id"] in ended:
            assert ended[spec["id"]] == spec["output_tokens"]
    accepted = [accepted_drafts(scenario["requests"][0], position, 2) for position in range(30)]
    assert set(accepted) == {0, 1, 2}


def test_ranks_are_served_in_turn() -> None:
    scenario = of_ranks(Random(2), NEW, False)
    settings = config(scenario, "0.33")
    assert settings.num_kv_blocks == scenario["num_kv_blocks"] * settings.ranks
    trace = ours.trace(scenario, settings)
    assert not isinstance(trace, dict), trace
    ended = {name: tokens for entry in trace for name, tokens in entry["finished"].items()}
    assert ended["long"] == scenario["requests"][0]["output_tokens"]


def test_a_planted_difference_is_counted_and_named() -> None:
    outcome = Outcome("vllm", "0.15.1", "defaults")
    scenario = scenarios.scenario(Random(1), NEW, False)
    trace = ours.trace(scenario, config(scenario, "0.15"))
    assert not isinstance(trace, dict)
    outcome.add(scenario, trace, first_difference(trace, trace))
    planted = [*trace[:5], {**trace[5], "blocks": trace[5]["blocks"] + 1}, *trace[6:]]
    outcome.add(scenario, trace, first_difference(trace, planted))  # type: ignore[arg-type]
    assert (outcome.scenarios, outcome.equal) == (2, 1)
    assert outcome.smallest(1) == [(scenario, Difference(5, "blocks"))]
    _, row = Outcome.table([outcome]).splitlines()
    assert row.split() == ["vllm", "0.15.1,", "defaults", "2", "1", f"{2 * len(trace):,}", "0", "blocks", "1"]


def test_results_of_a_seed_replace_those_before(tmp_path: Path) -> None:
    path = tmp_path / "engines.json"
    first, second = (
        Outcome("vllm", "0.15.1", "defaults", scenarios=3),
        Outcome("vllm", "0.15.1", "all settings"),
    )
    add_rows(path, [first.row(1), second.row(1), first.row(2)])
    first.different.append((Scenario(), Difference(0, "blocks")))
    add_rows(path, [first.row(1)])
    rows = {row.key: row for row in read_rows(path)}
    assert len(rows) == 3
    assert rows["vllm", "0.15.1", "defaults", 1].equal == 2
    assert rows["vllm", "0.15.1", "defaults", 2].equal == 3
