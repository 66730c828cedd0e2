"""An answer about a cluster does not depend on how short the workload was."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import blis_py as blis
from blis_py.api import configure
from blis_py.planning import stationary
from blis_py.planning.goal import Judgement, Requirement
from blis_py.planning.job import Job, JobOutcome, Variation
from blis_py.planning.longer import repeated, resampled
from blis_py.planning.plan import Plan
from blis_py.planning.stationary import ANALYSED_REQUESTS, Sustained
from blis_py.planning.worker import varied
from blis_py.requests.table import RequestTable

SPREAD = {"prompt_tokens_stdev": 256, "output_tokens_stdev": 256}
LOAD: dict[str, Any] = {
    **{"model": "llama-3.1-8b", "rate": 60, "output_tokens": 48, "slo": "ttft.p99=120ms"},
    **SPREAD,
}


def highest(**settings: Any) -> Plan:
    return blis.plan(**LOAD | settings, max_rate=True, draws=0, workers=1, cache=False)


@pytest.mark.slow
def test_the_highest_rate_of_a_short_workload_is_that_of_a_long_one() -> None:
    """Squeezing 60 requests together makes a burst, which a queue absorbs at any rate."""
    short, long = (highest(num_requests=count, most_requests=4000) for count in (60, 2500))
    assert short.max_rate_per_s is not None
    assert long.max_rate_per_s is not None
    assert short.max_rate_per_s == pytest.approx(long.max_rate_per_s, rel=0.1)
    assert short.rate is not None
    assert f"over {short.rate.requests:,} requests" in repr(short)


@pytest.mark.slow
def test_a_short_trace_is_repeated_rather_than_squeezed(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        + "".join(f"2023-11-16 18:00:{s:02d}.0000000,500,40\n" for s in range(30))
    )
    found = blis.plan(
        model="llama-3.1-8b",
        trace=str(tmp_path / "trace.csv"),
        rate=10,
        slo="ttft.p99=120ms",
        max_rate=True,
        draws=0,
        workers=1,
        cache=False,
        most_requests=1200,
    )
    assert found.rate is not None
    assert found.rate.requests > 500


@pytest.mark.slow
def test_a_backlog_that_follows_the_rate_of_a_trace_adds_no_instance(tmp_path: Path) -> None:
    """Requests in service grow with a rate that rises from 20/s to 60/s; one instance serves 128/s."""
    arrival_s = np.cumsum(1 / np.linspace(20, 60, 1000))
    rows = [f"{each:.6f},10,50" for each in arrival_s]
    trace = tmp_path / "ramp.csv"
    trace.write_text("\n".join(["arrival_s,input_tokens,output_tokens", *rows]) + "\n")
    server: dict[str, Any] = {
        "latency_model": "linear",
        "linear": {"gpu": {"step": 1e7}},
        "max_num_seqs": 64,
        "model": "llama-3.1-8b",
    }
    plan = blis.plan(**server, trace=str(trace), slo=["ttft.p99=200ms"], instances="1:3", draws=0, tune=False)
    assert plan.holds
    assert plan.best.instances == 1


@pytest.mark.parametrize(
    ("facts", "met", "saturated", "may_hold"),
    [
        ({"generated": False}, True, True, True),
        ({"generated": True}, True, True, False),
        ({"closed": True}, True, True, False),
        ({"generated": False}, False, True, False),
    ],
)
def test_a_recorded_load_of_which_only_the_backlog_grows_may_hold_over_a_longer_run(
    facts: dict[str, Any], met: bool, saturated: bool, may_hold: bool
) -> None:
    limit = Requirement("ttft.p99", 100.0, 90.0 if met else 110.0, "ms", 0.1 if met else -0.1)
    judgement = Judgement(False, (limit,), saturated=saturated)
    assert Sustained(judgement, JobOutcome(facts=facts), 1.0, True).may_hold == may_hold


@pytest.mark.slow
def test_what_is_called_cheapest_also_holds_for_twenty_times_the_requests() -> None:
    once = {"draws": 0, "workers": 1, "cache": False, "tune": False, "most_requests": 1200}
    found = blis.plan(**LOAD, **once, num_requests=60, instances="1:8")
    assert found.holds
    again = blis.run(found.config, num_requests=1200).summary
    assert all(each["met"] for each in again["slo"])
    assert again["load"]["verdict"] != "saturated"


def table(**columns: Any) -> RequestTable:
    arrival = np.array([0, 10, 20, 30], dtype=np.int64)
    tokens = np.array([5, 6, 7, 8], dtype=np.int64)
    contents = ((("system", 4),), (("system", 4), ("session 0", 9)))
    content = np.array([0, 1, 1, 0], dtype=np.int64)
    return RequestTable.build(arrival, tokens, tokens, content=content, contents=contents, **columns)


def test_a_repeated_trace_keeps_its_rate_and_shares_only_lasting_texts() -> None:
    session = np.array([-1, 0, 0, -1], dtype=np.int64)
    many = repeated(table(session=session, deadline_ns=np.array([5, -1, 25, -1])), 3)
    assert many.arrival_ns.tolist() == [*range(0, 120, 10)]
    assert many.prompt_tokens.tolist() == [5, 6, 7, 8] * 3
    assert many.deadline_ns.tolist() == [5, -1, 25, -1, 45, -1, 65, -1, 85, -1, 105, -1]
    assert many.session is not None
    assert many.session.tolist() == [-1, 0, 0, -1, -1, 1, 1, -1, -1, 2, 2, -1]
    texts = [[name for name, _ in many.contents[code]] for code in many.content.tolist()]
    assert texts[1] == ["system", "session 0"]
    assert texts[5] == ["system", "session 0~1"]


def test_a_generated_workload_continues_and_begins_as_before() -> None:
    config = configure(model="llama-3.1-8b", num_requests=50, rate=10)
    plain, longer = varied(Job(config)).table, varied(Job(config, Variation(length=4.0))).table
    assert len(longer) == 200
    assert longer.arrival_ns[:50].tolist() == plain.arrival_ns.tolist()


def test_a_generator_with_an_end_of_its_own_is_repeated_as_a_whole() -> None:
    """The first minutes of an hour are not the hour: all of it is generated before any is repeated."""
    spec = {"workload_spec": "workloads/mixed-slo.yaml", "model": "qwen3-14b"}
    whole = varied(Job(configure(**spec))).table
    few = configure(**spec, num_requests=150)
    beyond = round(1.2 * len(whole))
    table = varied(Job(few, Variation(length=beyond / 150))).table
    assert len(table) == pytest.approx(beyond, rel=0.01)
    assert table.arrival_ns[: len(whole)].tolist() == whole.arrival_ns.tolist()
    again = table.prompt_tokens[len(whole) :]
    assert again.tolist() == whole.prompt_tokens[: len(again)].tolist()


def test_a_bootstrap_keeps_the_gaps_of_blocks() -> None:
    rng = np.random.default_rng(1)
    arrival = np.cumsum(rng.integers(1, 1000, 400)).astype(np.int64)
    tokens = np.arange(1, 401, dtype=np.int64)
    table = RequestTable.build(arrival, tokens, tokens)
    drawn, again, other = (resampled(table, seed) for seed in (7, 7, 8))
    assert len(drawn) == 400
    assert (np.diff(drawn.arrival_ns) > 0).all()
    assert (np.diff(drawn.prompt_tokens) == 1).mean() > 0.9
    assert drawn.prompt_tokens.tolist() == again.prompt_tokens.tolist()
    assert drawn.prompt_tokens.tolist() != other.prompt_tokens.tolist()


@pytest.mark.slow
def test_a_cheap_setting_is_tried_before_more_instances_are_bought() -> None:
    """A token budget that keeps decodes waiting needs 4 instances where a quarter of it needs fewer."""
    load = {"model": "qwen3-14b", "rate": 6, "num_requests": 100, "prompt_tokens": 4000, "output_tokens": 60}
    given: dict[str, Any] = {
        **load,
        **SPREAD,
        "prompt_tokens_max": 16000,
        "slo": "tpot.p99=60ms",
        "instances": "1:8",
        "draws": 0,
        "workers": 1,
        "cache": False,
        "most_requests": 400,
    }
    plain, tuned = blis.plan(**given, tune=False), blis.plan(**given)
    assert tuned.knobs is not None
    assert tuned.best.instances < plain.best.instances
    assert tuned.knobs.before is not None
    assert tuned.knobs.before.instances == plain.best.instances
    assert "With the settings as given" in repr(tuned)
    fixed = blis.plan(**given, max_num_batched_tokens=8192)
    assert fixed.knobs is not None
    assert "max_num_batched_tokens" in fixed.knobs.kept


@pytest.mark.slow
def test_confidence_is_a_constraint() -> None:
    given: dict[str, Any] = {
        **LOAD,
        "num_requests": 60,
        "instances": "1:8",
        "workers": 1,
        "cache": False,
        "most_requests": 300,
    }
    sure = blis.plan(**given, draws=5, confidence="100%", tune=False)
    assert sure.probability == 1.0
    assert sure.confidence == 1.0


@pytest.mark.slow
def test_the_answer_of_the_prediction_and_the_range_stand_beside_the_sure_one() -> None:
    given = {"instances": "1:8", "workers": 1, "cache": False, "most_requests": 300, "tune": False}
    load = LOAD | {"tp": 1, "slo": "tpot.p99=8.5ms", "num_requests": 60}
    sure = blis.plan(**load, **given, draws=5, confidence="100%")
    plain = blis.plan(**load, **given, draws=5)
    assert sure.central is not None
    assert sure.central_holds is not None
    assert sure.central.instances == plain.best.instances < sure.best.instances
    assert sure.central_holds == plain.probability < 1
    assert plain.surer is not None
    assert plain.surer.instances == sure.best.instances
    assert sure.fewest is not None
    assert 1 < sure.fewest <= plain.best.instances


@pytest.mark.slow
def test_the_combination_with_the_highest_rate_within_a_budget() -> None:
    found = blis.plan(
        **LOAD,
        num_requests=60,
        vary={"gpu": ["h100", "l40s"]},
        tp=1,
        prices={"h100": 3.0, "l40s": 1.0},
        budget=6.5,
        max_rate=True,
        draws=0,
        workers=1,
        cache=False,
        most_requests=1200,
    )
    assert [(each.candidate.point["gpu"], each.candidate.instances) for each in found.rated]
    counts = {each.candidate.point["gpu"]: each.candidate.instances for each in found.rated}
    assert counts == {"h100": 2, "l40s": 6}
    rates = [each.rate.per_s or 0 for each in found.rated]
    assert rates == sorted(rates, reverse=True)
    assert repr(found).startswith("Configuration with the highest rate: ")


@pytest.mark.slow
def test_the_longest_run_is_as_long_as_may_be() -> None:
    """Between two and four times the workload: what holds is said of all requests that may be simulated."""
    settings = {"draws": 0, "workers": 1, "cache": False, "tune": False, "most_requests": 250}
    found = blis.plan(**LOAD | settings, num_requests=100, gpu="h100", instances="4")
    assert found.sustained is not None
    assert found.sustained.requests == 250


@pytest.mark.slow
def test_throughput_is_judged_without_the_weight_of_the_end_of_a_short_run() -> None:
    """The last answers take seconds of which no request arrives: of 20 s of a load, a sixth."""
    load = {
        "model": "llama-3.1-8b",
        "rate": 100,
        "num_requests": 200,
        "prompt_tokens": 500,
        "output_tokens": 100,
    }
    once: dict[str, Any] = {"instances": [2], "draws": 0, "workers": 1, "cache": False, "tune": False}
    found = blis.plan(**load, **once, at_least="goodput_per_s=88", goodput="ttft:200", most_requests=8000)
    assert found.holds


@pytest.mark.slow
def test_the_end_of_a_short_run_adds_no_instance() -> None:
    """One instance answers 58 of 60 requests/s; over 2,000 requests its end leaves 55.0, that of two 55.1."""
    load = {"model": "llama-3.1-8b", "gpu": "h100", "rate": 60, "num_requests": 2000, "output_tokens": 60}
    once: dict[str, Any] = {"draws": 0, "workers": 1, "cache": False, "tune": False, "most_requests": 4000}
    found = blis.plan(**load, **SPREAD, **once, instances=[1, 2], at_least="requests_per_s=55.05")
    assert found.best.instances == 1
    assert found.holds
    assert found.config.workload.num_requests == found.sustained.requests > 2000  # type: ignore[union-attr]


def test_a_throughput_above_the_load_is_not_sought_in_longer_runs() -> None:
    def cut(measured: float, **facts: Any) -> bool:
        missed = Requirement("goodput_per_s", 90.0, measured, "per s", measured / 90 - 1)
        outcome = JobOutcome(
            figures={"throughput.requests_per_s": 80.0}, facts={"offered_per_s": 100.0, **facts}
        )
        return Sustained(Judgement(False, (missed,)), outcome, 1.0, False).ends_count

    assert cut(72.0)
    assert not cut(71.9)
    assert not cut(72.0, closed=True)


def test_the_bounds_of_a_rate_are_sought_over_as_many_requests_as_a_run_may_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """1,000: a run of the given duration has 10 requests at the given rate, and 20 at twice the rate."""
    monkeypatch.setattr(stationary, "most_requests", lambda *_: 1000.0)
    search: Any = SimpleNamespace(_start=SimpleNamespace(outcome=None), _goal=None, _base=10.0)
    for factor, least, longest in ((2.0, 3.0, 50.0), (0.5, 3.0, 100.0), (2.0, 70.0, 70.0)):
        rate: Any = SimpleNamespace(factor=factor, length=least)
        assert stationary._RateSearch.longest(search, rate) == longest


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
