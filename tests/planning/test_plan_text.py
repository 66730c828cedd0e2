"""What a plan says in words and as data, of results that are made up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from blis_py.api import configure
from blis_py.cli.verbs.plan import _sized
from blis_py.planning import pictures, report_data, report_text
from blis_py.planning.analysis import Case, Lever
from blis_py.planning.goal import Judgement, Requirement
from blis_py.planning.job import JobOutcome
from blis_py.planning.prices import Price
from blis_py.planning.result import RATE, Candidate, Knobs, PlanResult, Standing
from blis_py.planning.stationary import HighestRate, RateBounds, Sustained
from blis_py.planning.uncertainty import Draw, Errors

CONFIG = configure(model="llama-3.1-8b", rate=60, num_requests=80)


def judged(measured_ms: float, limit_ms: float = 100.0, **more: Any) -> Judgement:
    slack = 1 - measured_ms / limit_ms
    requirement = Requirement("ttft.p99", limit_ms, measured_ms, "ms", slack)
    return Judgement(slack >= 0, (requirement,), **more)


def outcome(**facts: Any) -> JobOutcome:
    rates: dict[str, float | None] = {
        "throughput.output_tokens_per_s": 1000.0,
        "throughput.total_tokens_per_s": 4000.0,
    }
    return JobOutcome(figures=rates, facts={"offered_per_s": 60.0, "requests": 80, **facts})


def candidate(instances: int, measured_ms: float, dollars: float | None = 3.6, **facts: Any) -> Candidate:
    price = None if dollars is None else Price(dollars, "as given")
    return Candidate(
        {"gpu": "h100"}, instances, CONFIG, instances, price, judged(measured_ms), outcome(**facts)
    )


def standing(**point: Any) -> Standing:
    return Standing(point, 2, False, 1, 7.2, "p99 TTFT 120 ms (target 100 ms)")


def plan(**parts: Any) -> PlanResult:
    return PlanResult(**{"best": candidate(2, 80), "objective": "dollars per hour", **parts})


def test_a_plan_in_words() -> None:
    """3.6 $ an hour for each of 2 GPUs are 0.002 $/s: for 1,000 tokens/s that is 2 $ per million."""
    rate = HighestRate(1.25, 75.0, judged(130), 4.0, 400, 300.0)
    report = report_text.lines(
        plan(
            sustained=Sustained(judged(90), outcome(requests=320), 4.0, False),
            burst=candidate(1, 95),
            rate=rate,
            levers=(Lever("KV", 0.3, "25 % more KV blocks"), Lever("compute", 0.1, "a 25 % faster GPU")),
            knobs=Knobs(
                {"max_num_seqs": (256, 64, 1024), "scheduler": ("fcfs", "lpm")}, judged=3, possible=5
            ),
            runner_up=candidate(3, 60),
            draws=tuple(Case(f"draw {n}", judged(80 + 5 * n), outcome()) for n in range(8)),
            error=Errors((Draw(1.0),) * 8, "runs on H100", 12),
            models=(
                Case("model roofline", judged(150), outcome()),
                Case("model trained-physics", Judgement(False, refused="no"), outcome()),
            ),
            standings=(standing(gpu="h100"), standing(gpu="l40s"), standing(gpu="h100", max_num_seqs=64)),
            lines=4,
            simulated=1234,
            known=5,
            notes=("as it is",),
        )
    )
    assert report == [
        "Latency models differ by 1.9 ×: p99 TTFT 80 ms (target 100 ms); by roofline 150 ms",
        "Cheapest configuration that meets all targets: 2 instances of llama-3.1-8b on h100 TP1 "
        "(confidence 62 %)",
        "  2 GPUs, $7.20 an hour; $2.00 per million output tokens, $0.50 per million tokens in all",
        "  ✓ p99 TTFT 80 ms (target 100 ms)",
        "  over 4 × the duration (320 requests): p99 TTFT 90 ms (target 100 ms), not yet stationary",
        "  1 instance of llama-3.1-8b on h100 TP1 meets the targets over 80 requests, but not over more",
        "Highest rate: 75 requests/s (1.25 × the 60 offered; over 400 requests, 5 min)",
        "  just above it: p99 TTFT 130 ms (target 100 ms)",
        "Bottleneck: KV cache memory. 25 % more KV blocks would improve the tightest target by 30 %.",
        "Settings tried: max_num_seqs 64 to 1,024; scheduler fcfs, lpm.",
        "  3 of 5 combinations were tried, none of which lowers the cost: one setting is changed at a time, "
        "up to 3 in a row, at the sizes next to the answer.",
        "Runner-up: 3 instances of llama-3.1-8b on h100 TP1: $10.80 an hour, $3.60 more",
        "Confidence: all targets are met in 5 of 8 draws (62 %) of the prediction's error "
        "and of the requests",
        "  errors drawn from runs on H100",
        "  Warning: below 90 %: the real servers may well miss a target",
        "  no configuration searched meets all targets in 90 % of the draws",
        "Other latency models: roofline does not agree: p99 TTFT 150 ms (target 100 ms)",
        "Searched: 2 of 4 combinations of settings, 1,234 runs, 5 more from the cache; "
        "a combination that was not tried may be cheaper",
        "Note: as it is",
    ]


@pytest.mark.parametrize(
    ("seconds", "message"),
    [(7.25, "7.25 s"), (119.6, "120 s"), (120, "2 min"), (7199, "120 min"), (7200, "2.0 h"), (9000, "2.5 h")],
)
def test_a_duration_has_the_unit_that_makes_it_readable(seconds: float, message: str) -> None:
    rate = HighestRate(1.0, 60.0, judged(130), 1.0, 80, seconds)
    assert f"80 requests, {message})" in report_text.answer(plan(rate=rate))


def test_a_highest_rate_states_what_it_is_not() -> None:
    def said(**changes: Any) -> str:
        rate = HighestRate(
            **{"factor": 2.0, "per_s": 120.0, "broken": judged(130), "span_s": 30.0, **changes}
        )
        return report_text.answer(plan(rate=rate)).split("\n")[3]

    assert (
        said(factor=None)
        == "Highest rate: none; even 1 % of the load misses a target, so more instances do not help"
    )
    short = Requirement("goodput_per_s", 90.0, 83.0, "per s", 83 / 90 - 1)
    missing = replace(candidate(2, 80), judgement=Judgement(False, (short,)))
    text = report_text.answer(plan(best=missing, rate=HighestRate()))
    assert "Highest rate: none; a lower rate misses goodput_per_s as well" in text
    assert said(broken=None).endswith("beyond 120 requests/s, where the search ended (over 0 requests, 30 s)")
    assert said(settled=False) == (
        "Highest rate of a burst of 30 s: 120 requests/s (2.00 × the 60 offered; over 0 requests, 30 s); "
        "a longer run may sustain less: give more requests"
    )


def test_the_offered_rate_is_named_beside_the_given_one_where_they_differ_by_a_hundredth() -> None:
    near, far = (plan(rate=HighestRate(1.0, each, judged(130))) for each in (60.5, 60.7))
    assert "the 60.5 offered;" in report_text.answer(near)
    assert "the 60.7 offered by these requests at rate 60;" in report_text.answer(far)


def test_the_offered_rate_is_that_of_the_run_at_the_highest_rate() -> None:
    """A short run offers another rate than a long one: 75 requests/s are half of 150."""
    text = report_text.answer(plan(rate=HighestRate(0.5, 75.0, judged(130))))
    assert "75 requests/s (0.50 × the 150 offered by these requests at rate 60;" in text


def test_what_meets_no_target_states_by_what_and_without_a_price_counts_gpus() -> None:
    lost = Requirement("requests lost", 0.0, 0.25, "share", -0.25)
    worst = replace(judged(130), requirements=(*judged(130).requirements, lost), saturated=True)
    best = replace(candidate(1, 130, None), judgement=worst)
    report = report_text.lines(
        plan(
            best=best, runner_up=candidate(3, 150, None), knobs=Knobs({"tp": (1, 2, 4)}, judged=2, possible=2)
        )
    )
    assert report == [
        "No configuration tried meets all targets; nearest: 1 instance of llama-3.1-8b on h100 TP1",
        "  1 GPU",
        "  ✗ p99 TTFT 130 ms (target 100 ms)",
        "  ✗ the backlog grows: the cluster does not keep up with the load",
        "  ✗ 25.00 % of the requests are lost: rejected, too long for the KV cache, or timed out",
        "Settings tried: tp 1 to 4.",
        "  All 2 combinations were tried, none of which meets the targets.",
        "Runner-up: 3 instances of llama-3.1-8b on h100 TP1: 3 GPUs instead of 1; no price to compare",
    ]


def test_settings_that_save_instances_say_how_much() -> None:
    tried = {"max_num_seqs": (64, 128)}
    given = Knobs(tried, before=candidate(3, 70))
    assert "takes 3 instances of llama-3.1-8b on h100 TP1: $10.80 an hour, $3.60 more." in report_text.answer(
        plan(knobs=given)
    )
    without = Knobs(tried, before=candidate(3, 70, None))
    assert "3 GPUs instead of 2." in report_text.answer(plan(knobs=without))


def test_of_equal_cost_the_runner_up_is_closer_to_a_limit() -> None:
    why = report_text.why_second
    assert why(plan()) is None
    near = "the same $7.20 an hour, and closer to a limit: p99 TTFT 95 ms (target 100 ms)"
    assert why(plan(runner_up=candidate(2, 95))) == near
    same = "the same number of GPUs (2); no price to compare and the same latencies; the first one listed"
    assert (why(plan(runner_up=candidate(2, 80, None))) or "").startswith(same)


def test_a_number_that_is_less_certain_than_ninety_per_cent_carries_a_warning() -> None:
    """Nothing is claimed of surer configurations where they were not looked for."""

    def said(held: int, confidence: float | None) -> str:
        draws = tuple(Case("draw", judged(80 if n < held else 120), outcome()) for n in range(10))
        errors = Errors((Draw(1.0),) * 10, "runs on H100", 12)
        found = plan(draws=draws, error=errors, confidence=confidence, standings=(standing(gpu="h100"),))
        return report_text.answer(found)

    assert "Warning: below 90 %" in said(8, None)
    assert "no configuration searched meets all targets in 90 %" in said(8, None)
    assert "Warning: below 90 %" in said(8, 0.6)
    assert "no configuration" not in said(8, 0.6)
    assert "Warning" not in said(9, None)


def on_edge(low: float | None, high: float | None, **facts: Any) -> Sustained:
    slo = [{"slo": "ttft.p99=100ms", "metric": "ttft", "limit_ms": 100.0, "measured_ms": 95.0}]
    known = {"requests": 320, "generated": True, "intervals": {"ttft.p99=100ms": (low, high)}, **facts}
    return Sustained(judged(95), replace(outcome(**known), slo=slo), 4.0, True)


def test_a_target_within_the_error_of_the_longest_run_is_called_on_the_edge() -> None:
    text = report_text.answer(plan(sustained=on_edge(91.234, 104.5)))
    assert (
        "  on the edge: p99 TTFT is 91.23 ms to 104.5 ms, with 99 % confidence; other requests of this load "
        "may miss the target" in text
    )
    few = report_text.answer(plan(sustained=on_edge(91, None)))
    assert "  320 requests are too few to be sure of p99 TTFT: raise --most-requests" in few
    assert "on the edge" not in report_text.answer(plan(sustained=on_edge(91, 99)))
    assert "on the edge" not in report_text.answer(plan(sustained=on_edge(91, 104.5, generated=False)))


@pytest.mark.parametrize(
    ("least", "most", "message"),
    [
        (1.0, 1.5, ", for other requests of this load: 60 to 90 requests/s (900 requests)"),
        (1.0, None, ": above 60 requests/s"),
        (None, 1.5, ": below 90 requests/s"),
        (None, None, "these 900 requests are too few to bound it: raise --most-requests"),
    ],
)
def test_a_highest_rate_that_other_requests_may_not_have_is_bounded(
    least: float | None, most: float | None, message: str
) -> None:
    bounds = RateBounds(least, most, 900)
    rate = HighestRate(1.25, 75.0, judged(130), 4.0, 400, 300.0, settled=False, bounds=bounds)
    text = report_text.answer(plan(rate=rate))
    assert message in text
    assert "burst" not in text
    near = replace(rate, settled=True, bounds=RateBounds(1.2, 1.3, 900))
    assert "99 %" not in report_text.answer(plan(rate=near))


def test_a_plan_as_data() -> None:
    before, surer = candidate(4, 70), candidate(5, 50)
    data = report_data.summary(
        plan(
            rate=HighestRate(1.25, 75.0, judged(130), 4.0, 400, 300.0, False),
            knobs=Knobs({"max_num_seqs": (64, 128)}, ("tp",), before),
            draws=(Case("draw 0", judged(80), outcome()), Case("draw 1", judged(110), outcome())),
            error=Errors((Draw(0.5), Draw(1.25)), "runs", 2),
            surer=surer,
            surer_holds=0.95,
            standings=(standing(gpu="h100"),),
            simulated=7,
            known=3,
        )
    )
    assert data["holds"] is True
    assert data["burst"] is data["sustained"] is data["runner_up"] is data["why_runner_up_lost"] is None
    assert (data["best"]["gpus"], data["best"]["dollars_per_hour"]) == (2, 7.2)
    assert data["best"]["dollars_per_million_tokens"] == pytest.approx(0.5)
    assert data["settings_tried"]["tried"] == {"max_num_seqs": [64, 128]}
    assert data["settings_tried"]["kept"] == ["tp"]
    assert data["settings_tried"]["as_given"]["num_instances"] == 4
    assert data["headroom"] == {
        "tightest": "ttft.p99", "slack": pytest.approx(0.2), "max_rate_factor": 1.25, "max_rate_per_s": 75.0,
        "breaks": "p99 TTFT 130 ms (target 100 ms)", "settled": False, "length": 4.0, "requests": 400,
        "span_s": 300.0, "bounds_per_s": None,
    }  # fmt: skip
    assert data["probability"] | {"surer": None} == {
        "holds": 0.5, "draws": 2, "demanded": None, "source": "runs", "validated_runs": 2,
        "mean_step_time_error": pytest.approx((1.0 + 0.2) / 2), "surer": None, "surer_holds": 0.95,
        "fewest_instances": None, "central": None, "central_holds": None,
    }  # fmt: skip
    assert data["probability"]["surer"]["num_instances"] == 5
    assert data["search"] == {"combinations": 1, "simulated": 7, "known": 3}
    assert [each["cost"] for each in data["standings"]] == [7.2]


def test_a_surer_configuration_is_named_with_its_price() -> None:
    draws = (Case("draw 0", judged(80), outcome()), Case("draw 1", judged(110), outcome()))
    report = report_text.lines(
        plan(draws=draws, error=Errors((), "few", 3), surer=candidate(5, 50), surer_holds=0.95)
    )
    assert report[-3:] == [
        "  errors drawn from few; too few to rely on",
        "  Warning: below 90 %: the real servers may well miss a target",
        "  cheapest at 90 %: 5 instances of llama-3.1-8b on h100 TP1, $18.00 an hour (95 %)",
    ]


def drawn_plan(*holding: bool, **more: Any) -> list[str]:
    cases = tuple(Case(f"draw {i}", judged(80 if held else 110), outcome()) for i, held in enumerate(holding))
    return report_text.lines(plan(draws=cases, error=Errors((), "few", 3), **more))


def test_the_numbers_of_instances_that_the_errors_leave_possible_are_named() -> None:
    needed = "  with these settings, 1 to 5 instances are needed in eight of ten draws"
    assert drawn_plan(True, False, surer=candidate(5, 50), surer_holds=0.95, fewest=1)[-1] == needed
    assert drawn_plan(True, True, fewest=1)[-1] == needed.replace("5", "2")
    assert drawn_plan(True, True, fewest=2)[-1].startswith("  errors drawn from"), "no other is possible"
    open_end = "  with these settings, at least 2 instances are needed in nine of ten draws"
    assert drawn_plan(True, False, fewest=2)[-1] == open_end


def test_the_answer_of_the_prediction_itself_stands_beside_the_sure_one() -> None:
    report = drawn_plan(True, True, central=candidate(1, 95), central_holds=0.55)[-1]
    what = "1 instance of llama-3.1-8b on h100 TP1, $3.60 an hour"
    assert report == f"  cheapest by the prediction alone: {what} (55 % of the draws)"


@pytest.mark.parametrize(
    ("drawn", "message"), [(True, "unknown, no runs validate trained"), (False, "not estimated")]
)
def test_confidence_that_is_not_known_states_why(drawn: bool, message: str) -> None:
    assert report_text.lines(plan(drawn=drawn))[-1] == f"Confidence: {message}"


def test_the_picture_of_a_plan_shows_its_figures() -> None:
    cases = (("rate×0.8", 60), ("rate×1.2", 500), ("prompt×0.8", 75), ("prompt×1.2", 90), ("output×0.8", 70))
    picture = pictures.draw(
        plan(
            best=candidate(2, 80, models="step times by hand"),
            standings=(
                standing(gpu="h100"),
                replace(standing(gpu="l40s"), at_most=True, cost=3.6, least=3),
                replace(standing(gpu="a100", scheduler="priority-fcfs", block=16), cost=20.0),
                replace(standing(gpu="b200"), cost=None),
            ),
            sensitivity=tuple(Case(name, judged(ms), outcome()) for name, ms in cases),
            models=(
                Case("model roofline", judged(150), outcome()),
                Case("model linear", Judgement(False, refused="no"), outcome()),
                Case("model kernels", Judgement(False), outcome()),
            ),
            levers=(
                Lever("KV", 0.3, "more KV"),
                Lever("host", 0.004, "a faster host"),
                Lever("compute", -2.5, "worse"),
            ),
        )
    )
    costs, sensitivity, trust, levers = picture.figure.axes[:4]

    def shown(ax: Any) -> tuple[list[str], Any, list[str]]:
        labels = [label.get_text() for label in ax.get_yticklabels()]
        return [text.get_text() for text in ax.texts], [patch.get_width() for patch in ax.patches], labels

    assert shown(costs) == (
        [" 2 inst.", " 2 inst.", " 3 inst. or fewer"],
        [20.0, 7.2, 3.6],
        ["a100, priority-fcfs, 16", "h100", "l40s"],
    )
    assert costs.get_xlim() == (0, 29)
    texts, widths, names = shown(sensitivity)
    assert names == ["prompt lengths", "request rate"]
    assert texts == ["−20 %: 75 ms", "+20 %: 90 ms", "−20 %: 60 ms", "+20 %: 500 ms"]
    assert widths == pytest.approx([-0.05, 0.1, -0.2, 3.0 - 0.8])
    places = [text.xy[1] for text in sensitivity.texts]
    assert places == pytest.approx([-0.17, 0.17, 0.83, 1.17]), "those of more work above those of less"
    assert sensitivity.get_xlim() == pytest.approx((0.6 - 0.65 * 2.4, 3 + 0.65 * 2.4))
    assert shown(trust) == (
        ["never", "does not apply", " 150 ms", " 80 ms"],
        pytest.approx([1.5, 0.8]),
        ["kernels", "linear", "roofline", "trained"],
    )
    assert trust.get_xlim() == pytest.approx((0, 1.45 * 1.5))
    assert shown(levers) == ([" -250 %", " +30 %"], [-100, 30], ["worse", "more KV"])
    assert levers.get_xlim() == pytest.approx((-110, 119))
    small = [*costs.get_yticklabels(), costs.yaxis.label, *levers.get_yticklabels()]
    assert {each.get_fontsize() for each in (*small, *costs.texts, *trust.texts, *levers.texts)} == {8}


def test_the_picture_of_a_plan_without_figures_states_what_is_not_known() -> None:
    best = replace(candidate(1, 80, None), judgement=Judgement(False))
    picture = pictures.draw(plan(best=best))
    said = [" ".join(text.get_text().split()) for ax in picture.figure.axes for text in ax.texts]
    assert said == [
        "one configuration was given, none searched",
        "no figure was measured",
        "nothing was measured",
        "no bottleneck was found",
    ]


def test_dollars_beside_a_highest_rate_are_those_of_that_rate() -> None:
    """2 GPUs that serve ten times the load cost a tenth a token."""
    figures = {**outcome().figures, "throughput.requests_per_s": 60.0}
    best = replace(candidate(2, 80), outcome=replace(outcome(), figures=figures))
    cluster = plan(objective=RATE, rate=HighestRate(10.0, 600.0, judged(130)), best=best)
    assert cluster.dollars_per_million("output") == pytest.approx(plan().dollars_per_million("output") / 10)
    size, highest = report_text.lines(cluster)[1:3]
    assert size.endswith("per million tokens in all at the highest rate")
    assert highest.startswith("Highest rate: ")
    data = report_data.summary(cluster)["best"]
    assert data["dollars_per_million_tokens"] == pytest.approx(cluster.dollars_per_million("total"))


def test_figures_at_the_load_given_stand_beside_a_highest_rate_only_where_a_load_was_given() -> None:
    rated = {"objective": RATE, "rate": HighestRate(10.0, 600.0, judged(130))}
    best = plan().best
    for rate in (None, 3.0):
        config = replace(best.config, workload=replace(best.config.workload, rate=rate))
        text = report_text.answer(plan(**rated, best=replace(best, config=config)))
        assert ("at the load given" in text) == (rate is not None)
    assert "p99 TTFT 80 ms (target 100 ms) at the load given" in text
    assert "at the load given" not in report_text.answer(plan())


def test_a_demanded_confidence_stands_in_the_first_line() -> None:
    first = report_text.lines(plan(confidence=0.9))[0]
    assert first.startswith("Cheapest configuration that meets all targets in 90 % of the draws: ")
    assert report_text.lines(plan())[0].startswith("Cheapest configuration that meets all targets: ")


def test_a_target_missed_by_few_requests_and_met_by_many_is_no_contradiction() -> None:
    missed = plan(best=candidate(2, 130), rate=HighestRate(1.15, 69.0, judged(130), 4.0, 320))
    text = "  80 requests of this load miss a target that a longer run meets: give more requests"
    assert text in report_text.lines(missed)
    assert text not in report_text.lines(plan(rate=HighestRate(1.15, 69.0, judged(130), 4.0, 320)))


def test_a_figure_that_misses_its_target_by_a_hair_looks_different_from_it() -> None:
    by_a_hair, plain = (
        Requirement("ttft.p95", 1000, 1000.3, "ms", -0.0003),
        Requirement("e2e.p99", 500, 514, "ms", -0.03),
    )
    assert str(by_a_hair) == "p95 TTFT 1.0003 s (target 1 s)"
    assert str(plain) == "p99 E2E 514 ms (target 500 ms)"


def test_a_target_of_many_tokens_is_written_out() -> None:
    need = Requirement("output_tokens_per_s", 50_000.0, 123_456.7, "per s", 1.0)
    assert str(need) == "output_tokens_per_s 123,457 (target: at least 50,000)"
    assert str(replace(need, limit=0.5, measured=None)) == "output_tokens_per_s none (target: at least 0.5)"


def test_an_answer_with_other_settings_says_what_those_given_would_take() -> None:
    changed = replace(candidate(2, 80), point={"max_num_seqs": 64})
    text = report_text.answer(plan(best=changed, knobs=Knobs({"max_num_seqs": (64, 128)})))
    assert "Settings tried: max_num_seqs 64 to 128.\n  With the settings as given nothing meets" in text


def test_a_runner_up_whose_figures_read_the_same_is_not_called_closer_to_a_limit() -> None:
    same = "the same $7.20 an hour and the same latencies; the first one listed is taken"
    assert report_text.why_second(plan(runner_up=candidate(2, 80.0001))) == same


@pytest.mark.parametrize(
    ("least", "at_most", "fails_at", "why", "cells"),
    [
        (1, False, None, "", ("1", "7.2", "no size below")),
        (3, True, None, "", ("≤ 3", "7.2", "not tried")),
        (3, False, 2, "p99 TTFT", ("3", "7.2", "2")),
        (None, False, 4, "p99 TTFT", ("> 4", "7.2", "4")),
        (None, False, None, "out of memory", ("none", "7.2", "cannot be run")),
        (None, False, None, "", ("not tried", "7.2", "not tried")),
    ],
)
def test_sizes_in_the_table_state_only_what_was_tried(
    least: int | None, at_most: bool, fails_at: int | None, why: str, cells: tuple[str, ...]
) -> None:
    assert _sized(Standing({}, least, at_most, fails_at, 7.2, why), "7.2") == cells
