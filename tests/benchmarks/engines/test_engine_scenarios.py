"""Random scenarios for engines' schedulers, and the requests that arrive from them."""

from __future__ import annotations

import json
from random import Random

import pytest

from benchmarks.engines import scenarios, vllm
from benchmarks.engines.engine import Variant
from benchmarks.engines.registry import ENGINES
from benchmarks.engines.scenario import (
    ANSWERS,
    EOS_TOKEN,
    Arrivals,
    RequestSpec,
    Scenario,
    answer_limit,
    answer_token,
    prompt_tokens,
    token_ids,
)

NEW = (0, 33)
VARIANTS = [variant for engine in ENGINES.values() for variant in engine.variants]


def request(name: str, step: int = 0, **more: object) -> RequestSpec:
    spec = RequestSpec(
        id=name,
        step=step,
        arrival=float(step),
        prompt=[[0, 4], [1001, 3]],
        answer=ANSWERS + 1,
        shared_tokens=4,
        output_tokens=2,
        max_tokens=5,
        priority=0,
    )
    spec.update(more)  # type: ignore[typeddict-item]
    return spec


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_a_seed_draws_the_same_scenario_and_another_draws_another(variant: Variant) -> None:
    first, again, other = (json.dumps(variant.draw(Random(seed), NEW)) for seed in ("1/0", "1/0", "1/1"))
    assert first == again != other


@pytest.mark.parametrize("asynchronous", [False, True])
def test_every_request_fits_the_server(asynchronous: bool) -> None:
    for seed in range(60):
        drawn = scenarios.scenario(Random(seed), NEW, asynchronous)
        assert drawn["max_model_len"] <= drawn["num_kv_blocks"] * drawn["block_size"]
        assert drawn["async_scheduling"] is asynchronous
        for spec in drawn["requests"]:
            assert 0 < prompt_tokens(spec) < drawn["max_model_len"]
            assert prompt_tokens(spec) + answer_limit(drawn, spec) <= drawn["max_model_len"]
            assert 0 < spec["output_tokens"] <= answer_limit(drawn, spec)


def test_what_servers_rarely_change_is_the_default_in_one_mode_and_varies_in_the_other() -> None:
    def seen(mode: str) -> set[tuple[object, ...]]:
        drawn = [scenarios.scenario(Random(seed), NEW, False, mode) for seed in range(80)]
        keys = ("policy", "enable_prefix_caching")
        return {(*(each[key] for key in keys), each["long_prefill_token_threshold"] > 0) for each in drawn}  # type: ignore[literal-required]

    assert seen(scenarios.DEFAULTS) == {("fcfs", True, False)}
    assert len(seen(scenarios.EVERYTHING)) == 8


def test_settings_vary_in_releases_that_have_them() -> None:
    setting = scenarios.Setting("watermark", (0, 24), (0.0, 0.2))

    def seen(release: tuple[int, ...], mode: str) -> set[float]:
        draws = [scenarios.scenario(Random(seed), release, False, mode, [setting]) for seed in range(30)]
        return {each["settings"].get("watermark", -1.0) for each in draws}

    assert seen((0, 24), scenarios.EVERYTHING) == {0.0, 0.2}
    assert seen((0, 19), scenarios.EVERYTHING) == seen((0, 24), scenarios.DEFAULTS) == {-1.0}


def test_one_request_of_ranks_generates_as_long_as_others_arrive() -> None:
    for seed in range(30):
        drawn = vllm.of_ranks(Random(seed), NEW, True)
        long, *others = drawn["requests"]
        assert drawn["settings"]["data_parallel_size"] >= 2
        assert all(each["step"] < long["output_tokens"] // 2 for each in others)
        assert prompt_tokens(long) + answer_limit(drawn, long) <= drawn["max_model_len"]


def test_kinds_that_are_known_to_differ_are_counted_only_where_they_are_named() -> None:
    known = ENGINES["sglang"]
    other = known.variants[0]._replace(name="other", exact=False)
    engine = known._replace(variants=(*known.variants, other))
    exact, every = engine.variants_of("0.5.23"), engine.variants_of("0.5.23", exact=False)
    assert [variant.name for variant in every if variant not in exact] == ["other"]
    assert all(variant.exact for variant in exact)


def test_kinds_of_scenarios_are_those_that_a_release_has() -> None:
    assert [variant.name for variant in ENGINES["vllm"].variants_of("0.10.2")] == [
        "defaults, synchronous",
        "all settings, synchronous",
        "grammars, synchronous",
        "states, synchronous",
    ]


def test_conversations_aborts_cuts_late_stops_and_slo_classes_are_among_the_scenarios() -> None:
    specs = [
        (drawn, spec)
        for seed in range(60)
        for drawn in [scenarios.scenario(Random(seed), NEW, True)]
        for spec in drawn["requests"]
    ]
    assert any("after" in spec for _, spec in specs)
    assert any("abort_step" in spec for _, spec in specs)
    assert any(not spec["max_tokens"] for _, spec in specs)
    assert any(spec["output_tokens"] < answer_limit(drawn, spec) for drawn, spec in specs)
    assert {spec["priority"] for _, spec in specs} >= {0, 1, 2, 3, 5, 6, 7}


def test_a_conversation_continues_with_the_tokens_of_its_last_answer() -> None:
    for seed in range(60):
        drawn = scenarios.scenario(Random(seed), NEW, False)
        by_id = {spec["id"]: spec for spec in drawn["requests"]}
        for spec in drawn["requests"]:
            if "after" in spec:
                turn = by_id[spec["after"]]
                whole = [*turn["prompt"], [turn["answer"], turn["output_tokens"]]]
                assert spec["prompt"][: len(whole)] == whole


def test_a_text_is_its_runs_and_equal_segments_hold_equal_tokens() -> None:
    assert token_ids([[0, 2], [7, 1]]) == token_ids([[0, 2]]) + token_ids([[7, 1]])
    assert token_ids([[7, 3]])[:2] == token_ids([[7, 2]])
    assert len(set(token_ids([[0, 50], [1, 50], [ANSWERS, 50]]))) == 150


def test_an_answer_ends_with_an_end_of_sequence_unless_its_limit_ends_it() -> None:
    scenario = Scenario(max_model_len=100)
    stops, cut = request("a"), request("b", max_tokens=2)
    assert answer_token(scenario, stops, 0) == answer_token(scenario, cut, 0) != EOS_TOKEN
    assert answer_token(scenario, stops, 1) == EOS_TOKEN != answer_token(scenario, cut, 1)


def test_a_request_that_continues_arrives_after_the_end_of_the_one_before_it() -> None:
    first, second = request("a", 3), request("b", 2, after="a", abort_step=4)
    arrivals = Arrivals(Scenario(requests=[first, second]))
    assert [spec["id"] for spec in arrivals.arriving(2)] == []
    assert [spec["id"] for spec in arrivals.arriving(3)] == ["a"]
    assert not arrivals
    arrivals.ended("a", 10)
    assert arrivals
    assert arrivals.arriving(12) == []
    (arrived,) = arrivals.arriving(13)
    assert (arrived["id"], arrived["step"], arrived["arrival"]) == ("b", 13, 13.0)
    assert arrivals.aborted(14) == []
    assert arrivals.aborted(15) == ["b"]
    assert second["step"] == 2
