"""Sentences of a plan's report, each from the few facts that it states."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from blis_py.planning import pictures
from blis_py.planning.goal import Judgement, Requirement
from blis_py.planning.job import JobOutcome
from blis_py.planning.report_text import (
    _added,
    _agreement,
    _duration,
    _far_apart,
    _in_vain,
    _needed,
    _offered,
    _price,
    _probability,
    _saving,
    _searched,
    _size,
    _tried,
    change_names,
    why_second,
)
from blis_py.planning.result import RATE, Case


def needs(measured: float, what: str = "ttft.p99", holds: bool | None = None) -> Judgement:
    slack = 1 - measured / 100
    return Judgement(
        slack >= 0 if holds is None else holds, (Requirement(what, 100.0, measured, "ms", slack),)
    )


def candidate(gpus: int = 2, dollars: float | None = None, instances: int = 1, **more: Any) -> Any:
    class Named(SimpleNamespace):
        def __str__(self) -> str:
            return f"{gpus} GPUs of it"

    millions = more.pop("millions", {})
    known = {
        **{"gpus": gpus, "dollars_per_hour": dollars, "instances": instances, "parts": (), "point": {}},
        **{"judgement": needs(50.0), "dollars_per_million": millions.get},
    }
    return Named(**known | more)


def plan(**given: Any) -> Any:
    known = {
        **{"holds": True, "objective": "dollars per hour", "probability": None, "error": None, "draws": ()},
        **{"drawn": False, "standings": (), "surer": None, "surer_holds": None, "central": None},
        **{"central_holds": None, "fewest": None, "confidence": None, "knobs": None, "models": ()},
        **{"best": candidate(), "runner_up": None, "lines": 1, "simulated": 1, "known": 0},
    }
    config = SimpleNamespace(
        latency=SimpleNamespace(model="trained"), workload=SimpleNamespace(rate=given.pop("rate", None))
    )
    return SimpleNamespace(**known | {"config": config} | given)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (7200, "2.0 h"),
        (7199, "120 min"),
        (120, "2 min"),
        (119, "119 s"),
        (0.1234, "0.123 s"),
        (36000, "10.0 h"),
    ],
)
def test_durations_are_in_the_unit_in_which_they_are_read(seconds: float, text: str) -> None:
    assert _duration(seconds) == text


@pytest.mark.parametrize(
    ("rate", "offered", "text"),
    [
        (None, 12.3456, "the 12.3 offered"),
        (10.0, 10.0, "the 10 offered"),
        (10.0, 12.0, "the 12 offered by these requests at rate 10"),
        (10.0, 8.0, "the 8 offered by these requests at rate 10"),
    ],
)
def test_the_offered_rate_is_beside_the_configured_one_where_they_differ(
    rate: float | None, offered: float, text: str
) -> None:
    assert _offered(plan(rate=rate), offered) == text


@pytest.mark.parametrize(
    ("best", "second", "text"),
    [
        (candidate(2, 4.0), candidate(3, 6.0), "$6.00 an hour, $2.00 more"),
        (candidate(2, 4.0), candidate(2, 4.004), "the same $4.00 an hour and the same latencies; "),
        (candidate(2), candidate(3, 6.0), "3 GPUs instead of 2; no price to compare"),
        (candidate(2, 4.0), candidate(3), "3 GPUs instead of 2; no price to compare"),
        (
            candidate(2),
            candidate(2),
            "the same number of GPUs (2); no price to compare and the same latencies; ",
        ),
        (
            candidate(2, 4.0),
            candidate(2, 4.0, judgement=needs(60.0)),
            "the same $4.00 an hour, and closer to a limit: ",
        ),
        (candidate(2, 4.0), candidate(2, 4.0, judgement=needs(40.0)), "the same $4.00 an hour and the same"),
    ],
)
def test_a_runner_up_has_its_disadvantage(best: Any, second: Any, text: str) -> None:
    found = why_second(plan(best=best, runner_up=second))
    assert found is not None
    assert found.startswith(text)
    assert why_second(plan()) is None


@pytest.mark.parametrize(
    ("best", "text"),
    [
        (candidate(1), "1 GPU"),
        (candidate(2), "2 GPUs"),
        (candidate(2, 4.0), "2 GPUs, $4.00 an hour"),
        (candidate(2, 4.0, millions={"output": 1.5}), "2 GPUs, $4.00 an hour"),
        (
            candidate(2, 4.0, millions={"output": 1.5, "total": 0.5}),
            "2 GPUs, $4.00 an hour; $1.50 per million output tokens, $0.50 per million tokens in all at "
            "the highest rate",
        ),
    ],
)
def test_a_size_is_gpus_and_what_is_known_of_their_price(best: Any, text: str) -> None:
    plan: Any = SimpleNamespace(best=best, objective=RATE, max_rate_per_s=2.0)
    plan.dollars_per_million = best.dollars_per_million
    assert _size(plan) == text
    assert _price(best) == (
        "2 GPUs" if text == "2 GPUs" else "1 GPUs" if text == "1 GPU" else "$4.00 an hour"
    )


def test_savings_are_dollars_or_gpus() -> None:
    assert _saving(candidate(3, 6.0), candidate(2, 4.0)) == "$6.00 an hour, $2.00 more"
    assert _saving(candidate(3), candidate(2, 4.0)) == "3 GPUs instead of 2"
    assert _saving(candidate(3, 6.0), candidate(2)) == "3 GPUs instead of 2"


def knobs(**more: Any) -> Any:
    return SimpleNamespace(**{"tried": {"a": (1, 2)}, "before": None, "judged": 3, "possible": 3, **more})


def test_settings_tried_are_listed_with_their_outcome() -> None:
    assert _tried(plan()) == []
    assert _tried(plan(knobs=knobs(tried={}))) == []
    all_of = "  All 3 combinations were tried, none of which"
    assert _tried(plan(knobs=knobs())) == ["Settings tried: a 1 to 2.", f"{all_of} lowers the cost."]
    assert _tried(plan(knobs=knobs(), holds=False))[1] == f"{all_of} meets the targets."
    changed = candidate(point={"a": 1, "z": 2})
    two = knobs(tried={"a": (1, 2), "b": ("x",)})
    assert (
        _tried(plan(knobs=two, best=changed))[1] == "  With the settings as given nothing meets the targets."
    )
    assert _tried(plan(knobs=two, best=changed, holds=False))[1] == f"{all_of} meets the targets."
    before = knobs(before=candidate(3, 6.0))
    assert _tried(plan(knobs=before, best=candidate(2, 4.0)))[1] == (
        "  With the settings as given it takes 3 GPUs of it: $6.00 an hour, $2.00 more."
    )
    assert _in_vain(knobs(judged=2, possible=1000), None).startswith(
        "2 of 1,000 combinations were tried, none of"
    )
    assert _in_vain(knobs(judged=4), "helps") == "All 3 combinations were tried, none of which helps."


def case(name: str, holds: bool = True, measured: float = 50.0) -> Case:
    return Case(name, needs(measured, holds=holds), JobOutcome())


def drawn(held: int, count: int = 10, **more: Any) -> Any:
    cases = tuple(case(f"draw {number}", number < held) for number in range(count))
    error = SimpleNamespace(source="runs", few=more.pop("few", False))
    return plan(**{"probability": held / count, "draws": cases, "error": error, **more})


def test_confidence_is_the_share_of_draws_that_hold() -> None:
    assert _probability(plan(holds=False)) == []
    assert _probability(plan()) == ["Confidence: not estimated"]
    assert _probability(plan(drawn=True)) == ["Confidence: unknown, no runs validate trained"]
    assert _probability(plan(error=1)) == []
    lines = _probability(drawn(9))
    assert lines[0].startswith("Confidence: all targets are met in 9 of 10 draws (90 %)")
    assert lines[1:] == ["  errors drawn from runs"]
    assert _probability(drawn(9, few=True))[1] == "  errors drawn from runs; too few to rely on"
    low = _probability(drawn(8, standings=(1,)))
    assert low[2] == "  Warning: below 90 %: the real servers may well miss a target"
    assert low[3] == "  no configuration searched meets all targets in 90 % of the draws"
    assert len(_probability(drawn(8))) == 3
    assert len(_probability(drawn(8, standings=(1,), confidence=0.8))) == 3
    sure = _probability(drawn(8, surer=candidate(4, 8.0), surer_holds=0.95))
    assert sure[3] == "  cheapest at 90 %: 4 GPUs of it, $8.00 an hour (95 %)"
    central = _probability(drawn(10, central=candidate(1), central_holds=0.4))
    assert central[-1] == "  cheapest by the prediction alone: 1 GPUs of it, 1 GPUs (40 % of the draws)"


@pytest.mark.parametrize(
    ("fewest", "probability", "surer", "text"),
    [
        (None, 0.95, None, ""),
        (2, None, None, ""),
        (3, 0.95, None, ""),
        (2, 0.9, None, "2 to 3 instances are needed in eight of ten draws"),
        (1, 0.89, None, "at least 1 instance is needed in nine of ten draws"),
        (2, 0.5, None, "at least 2 instances are needed in nine of ten draws"),
        (2, 0.5, candidate(instances=5), "2 to 5 instances are needed in eight of ten draws"),
        (
            2,
            0.5,
            candidate(instances=5, point={"a": 1}),
            "at least 2 instances are needed in nine of ten draws",
        ),
    ],
)
def test_the_instances_needed_lie_between_the_fewest_and_the_surest(
    fewest: int | None, probability: float | None, surer: Any, text: str
) -> None:
    found = _needed(plan(best=candidate(instances=3), fewest=fewest, probability=probability, surer=surer))
    assert found == ([f"  with these settings, {text}"] if text else [])
    in_parts = candidate(instances=3, parts=(1, 2))
    assert _needed(plan(best=in_parts, fewest=fewest, probability=probability, surer=surer)) == []


def test_other_models_are_named_where_one_of_them_contradicts() -> None:
    assert _agreement(plan()) == []
    close = plan(models=(case("model roofline", measured=51.0),))
    assert _agreement(close) == []
    apart = plan(models=(case("model roofline", measured=5.0), case("model linear", False, 140.0)))
    (line,) = _agreement(apart)
    assert line.startswith("Other latency models: roofline does not agree: ")
    assert "; linear does not agree: " in line
    refused = Case("model fitted", Judgement(False, refused="no"), JobOutcome())
    assert _agreement(plan(models=(refused,))) == []


def test_agreement_is_on_every_target_and_a_large_difference_comes_first() -> None:
    """TTFT is the tightest target and alike; TPOT differs sixfold and meets its target all the same."""

    def both(ttft: float, tpot: float) -> Judgement:
        return Judgement(True, (*needs(ttft).requirements, *needs(tpot, "tpot.mean").requirements))

    other = Case("model roofline", both(92.0, 60.0), JobOutcome())
    found = plan(best=candidate(judgement=both(90.0, 10.0)), models=(other,))
    assert _far_apart(found) == [
        "Latency models differ by 6.0 ×: mean TPOT 10 ms (target 100 ms); by roofline 60 ms"
    ]
    assert _agreement(found) == [
        "Other latency models: roofline does not agree: mean TPOT 60 ms (target 100 ms)"
    ]
    never = Case(
        "model roofline", Judgement(False, (Requirement("ttft.p99", 100.0, None, "ms", -9.0),)), JobOutcome()
    )
    (line,) = _far_apart(plan(models=(never,)))
    assert line.startswith("Latency models differ: ")
    alike = plan(models=(case("model roofline", measured=70.0),))
    assert _far_apart(alike) == [] != _agreement(alike)


def standing(tried: bool, *names: str) -> Any:
    return SimpleNamespace(tried=tried, point=dict.fromkeys(names, 1))


def test_the_extent_of_a_search_leaves_out_what_was_added() -> None:
    looked = (standing(True, "a"), standing(False, "a"), standing(True, "a", "b"))
    found = plan(standings=looked, lines=2, simulated=1234)
    assert [_added(found, each) for each in looked] == [False, False, True]
    assert _searched(found) == "Searched: 1 of 2 combinations of settings, 1,234 runs; the others cost more"
    whole = plan(standings=looked[:1], lines=1, known=7)
    assert _searched(whole) == "Searched: 1 of 1 combinations of settings, 1 runs, 7 more from the cache"
    part = plan(standings=looked[:1], lines=5)
    assert _searched(part).endswith("; a combination that was not tried may be cheaper")


def test_changes_of_a_property_come_in_pairs() -> None:
    cases = [case("rate×0.8"), case("prompt×0.8"), case("rate×1.2")]
    assert change_names(cases) == {"rate": (cases[0], cases[2])}


# -- words of the picture ----------------------------------------------------------------------------------


def test_labels_of_a_picture_are_short_and_say_what_is_left() -> None:
    point = {"a": "x" * 28}
    long: Any = SimpleNamespace(point={"a": "x" * 29})
    same: Any = SimpleNamespace(point=point)
    none: Any = SimpleNamespace(point={})
    assert pictures._label(same) == "x" * 28
    assert pictures._label(long) == "x" * 27 + "…"
    assert pictures._label(none) == "as given"
    tightest = needs(50.0).tightest
    assert pictures._used(needs(70.0).requirements, "ttft.p99") == pytest.approx(0.7)
    assert pictures._used((), "ttft.p99") == float("inf")
    assert (pictures._times_limit(tightest, float("inf")), pictures._times_limit(None, 0.5)) == (
        "never",
        "never",
    )
    share = Requirement("attainment", 0.9, 0.95, "share", 0.5)
    assert pictures._times_limit(share, 0.5) == "0.50 ×"
    assert pictures._times_limit(tightest, 0.5) == "50 ms"
    for gpus, cost, text in ((1, None, "1 GPU"), (2, 4.0, "2 GPUs, $4.00 an hour")):
        title = pictures._title(plan(best=candidate(gpus, cost)))
        assert title == f"Meets all targets: {gpus} GPUs of it\n{text}"
    assert pictures._title(plan(holds=False, probability=0.5)).endswith("2 GPUs; confidence 50 %")
