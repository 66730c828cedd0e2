"""The cheapest configuration that keeps its targets, and what is reported of it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

import blis_py as blis
from blis_py.config.loader import load_config
from blis_py.errors import InputError
from blis_py.planning.plan import Plan

LOAD: dict[str, Any] = {"model": "llama-3.1-8b", "num_requests": 80, "rate": 60, "output_tokens": 48}
LOAD |= {"prompt_tokens_stdev": 256, "output_tokens_stdev": 256}
SLO = "ttft.p99=120ms tpot.p99=20ms"
PRICES = {"h100": 3.0, "l40s": 1.2}


def plan(**settings: Any) -> Plan:
    """Of two plans that need the same run, the second takes it from the store of the test session."""
    given = {
        "draws": 0,
        "workers": 1,
        "instances": "1:6",
        "prices": PRICES,
        "tune": False,
        "most_requests": 320,
    }
    return blis.plan(**LOAD | {"slo": SLO} | given | settings)


def exhaustive(
    vary: dict[str, Sequence[Any]], sizes: Sequence[int]
) -> tuple[float, tuple[Any, ...], int] | None:
    """The cheapest of all, each run as long as a plan may run it; of equals the one with the most to
    spare."""
    found = []
    for order, point in enumerate(itertools.product(*vary.values())):
        settings = LOAD | {"slo": SLO, "num_requests": 320} | dict(zip(vary, point, strict=True))
        for size in sizes:
            try:
                summary = blis.run(**settings, num_instances=size).summary
            except InputError:
                continue
            slack = min(1 - each["measured_ms"] / each["limit_ms"] for each in summary["slo"])
            requests = summary["cluster"]["requests"]
            done = requests["completed"] == requests["injected"]
            if slack >= 0 and done and summary["load"]["verdict"] != "saturated":
                cost = PRICES[settings["gpu"]] * settings["tp"] * size
                found.append((cost, -slack, order, point, size))
    if not found:
        return None
    cost, _, _, point, size = min(found)
    return cost, point, size


@pytest.mark.slow
def test_it_finds_what_running_everything_finds() -> None:
    vary = {"gpu": ("h100", "l40s"), "tp": (1, 2, 3), "scheduler": ("fcfs", "sjf")}
    found = plan(vary=vary)
    best = (found.best.dollars_per_hour, tuple(found.best.point.values()), found.best.instances)
    assert found.holds
    assert best == exhaustive(vary, range(1, 7))
    assert "does not divide" in next(each.why for each in found.standings if each.point["tp"] == 3)


@pytest.mark.slow
def test_the_same_comes_out_however_many_do_the_work_and_from_the_store(tmp_path: Path) -> None:
    first = plan(vary={"tp": (1, 2)}, draws=3, workers=1, cache=tmp_path)
    again = plan(vary={"tp": (1, 2)}, draws=3, workers=2, cache=tmp_path)
    alone = plan(vary={"tp": (1, 2)}, draws=3, workers=2, cache=False)
    assert again.simulated == 0
    for each in (again, alone):
        assert each.summary | {"search": 0} == first.summary | {"search": 0}
    assert first.known == 0
    assert alone.simulated == first.simulated


@pytest.mark.slow
def test_the_configuration_that_is_reported_is_the_one_that_was_run(tmp_path: Path) -> None:
    found = plan(vary={"gpu": ("h100", "l40s")})
    found.save(tmp_path / "plan")
    again = blis.run(tmp_path / "plan" / "config.yaml").summary
    tightest = found.best.judgement.tightest
    assert tightest is not None
    measured = {each["slo"].partition("=")[0]: each["measured_ms"] for each in again["slo"]}
    assert measured[tightest.what] == tightest.measured
    assert load_config(tmp_path / "plan" / "config.yaml") == found.config
    assert blis.run(found.config).summary["cluster"] == again["cluster"]


@pytest.mark.slow
def test_above_the_highest_rate_a_target_is_missed_and_there_it_is_kept() -> None:
    found = plan(max_rate=True, instances=None, num_instances=2)
    factor = found.max_rate_factor
    assert factor is not None
    assert found.broken is not None
    assert "(target 20 ms)" in str(found.broken)
    assert found.rate is not None
    from blis_py.planning.job import Job, Variation
    from blis_py.planning.worker import outcome_of, varied

    def met(at: float) -> bool:
        variation = Variation(rate=at, length=found.rate.length * max(at, 1.0))  # type: ignore[union-attr]
        run = outcome_of(varied(Job(found.config, variation)).run())
        return all(each["met"] for each in run.slo)

    assert met(factor)
    assert not met(factor * 1.3)


@pytest.mark.slow
def test_a_cluster_that_holds_at_no_rate_reports_it() -> None:
    found = plan(max_rate=True, instances=None, slo="ttft.p99=1us")
    assert found.max_rate_factor is None
    assert not found.holds


@pytest.mark.slow
def test_where_nothing_holds_the_best_candidate_and_the_bottleneck_are_shown() -> None:
    found = plan(slo="tpot.p99=3ms", vary={"tp": (1, 2)}, instances="1:2")
    assert not found.holds
    assert found.best.point == {"tp": 2}
    assert found.best.instances == 2
    report = repr(found)
    assert report.startswith(
        "No configuration tried meets all targets; nearest: 2 instances of llama-3.1-8b on h100 TP2"
    )
    assert "✗ p99 TPOT" in report
    assert "Bottleneck: GPU compute" in report
    assert found.runner_up is None


@pytest.mark.slow
def test_memory_binds_where_memory_is_short() -> None:
    scarce = {"num_kv_blocks": 260, "rate": 12, "instances": "1:4"}
    assert plan(**scarce, slo="ttft.p99=300ms").binding == "KV"
    assert plan(slo="ttft.p99=300ms", rate=40).binding == "compute"


@pytest.mark.slow
def test_the_runner_up_is_of_another_combination_and_states_why_it_lost() -> None:
    found = plan(vary={"gpu": ("h100", "l40s")}, slo="ttft.p99=300ms")
    assert found.runner_up is not None
    assert found.runner_up.judgement.holds
    assert found.runner_up.point != found.best.point
    assert "more" in str(found.summary["why_runner_up_lost"])


@pytest.mark.slow
def test_without_a_price_it_takes_the_fewest_gpus_and_reports_it() -> None:
    found = plan(vary={"gpu": ("h100", "mi300x")}, prices={})
    assert found.objective == "GPUs"
    assert found.summary["best"]["dollars_per_hour"] is None or found.best.config.gpu == "h100"
    assert any("no price is known for mi300x" in note for note in found.notes)


@pytest.mark.slow
def test_bundled_prices_come_with_their_source() -> None:
    found = plan(prices={})
    assert found.best.price is not None
    assert found.best.price.per_hour == pytest.approx(3.348)
    assert any("docs.runpod.io" in note for note in found.notes)
    assert found.summary["best"]["dollars_per_hour"] == pytest.approx(3.348 * found.best.gpus)


@pytest.mark.slow
def test_cost_per_million_tokens_is_what_the_hour_costs_over_what_it_serves() -> None:
    found = plan()
    cost = found.best.dollars_per_million("output")
    per_s = blis.run(found.config).summary["cluster"]["throughput"]["output_tokens_per_s"]
    assert cost == pytest.approx(3.0 * found.best.gpus / (per_s * 3600) * 1e6)


@pytest.mark.slow
def test_attainment_by_class_is_kept() -> None:
    shares = {"workload": "mixed-slo", "rate": 3, "num_requests": 200}
    load = {"model": LOAD["model"]}
    given: dict[str, Any] = {
        "goodput_by_class": {"ttft": "critical=300ms"},
        "draws": 0,
        "workers": 1,
        "cache": False,
        "tune": False,
        "most_requests": 300,
    }
    found = blis.plan(**load | shares | given, attainment="critical=90%", instances="1:4")
    assert found.holds
    assert next(each.what for each in found.best.judgement.requirements) == "critical.attainment"
    with pytest.raises(InputError, match="no request of class gold has a goodput target"):
        blis.plan(**load | shares | given, attainment="gold=99%")


@pytest.mark.slow
def test_lost_requests_are_reported_and_allowed_only_where_that_is_set() -> None:
    long = {"prompt_tokens": 3000, "prompt_tokens_stdev": 2000, "max_model_len": 5000, "rate": 4}
    found = plan(**long, slo="ttft.p99=5s", instances="1:2")
    assert not found.holds
    assert "of the requests are lost" in repr(found)
    assert plan(**long, slo="ttft.p99=5s", instances="1:2", max_lost="50%").holds


@pytest.mark.slow
def test_without_served_requests_it_reports_it_and_draws_what_there_is(tmp_path: Path) -> None:
    found = plan(max_model_len=40, prompt_tokens_min=50, num_requests=20, slo="ttft.p99=5s", instances="1:2")
    assert not found.holds
    assert "100.00 % of the requests are lost" in repr(found)
    assert "✗ p99 TTFT is never reached (target 5 s)" in repr(found)
    found.save(tmp_path / "plan")
    assert found.binding is None


@pytest.mark.slow
def test_one_request_is_a_workload_too() -> None:
    found = plan(num_requests=1, instances="1:2")
    assert found.holds
    assert found.sustained is not None
    assert found.sustained.requests > 50


@pytest.mark.slow
def test_a_profile_of_measured_steps_has_the_price_of_what_it_was_measured_on() -> None:
    profile = str(Path(__file__).resolve().parents[2] / "profiles" / "fits" / "cpu" / "tiny-ar")
    load = {"profile": profile, "num_requests": 20, "rate": 2, "prompt_tokens": 20, "output_tokens": 10}
    lengths = {
        "prompt_tokens_max": 40,
        "output_tokens_max": 20,
        "prompt_tokens_stdev": 2,
        "output_tokens_stdev": 2,
    }
    found = blis.plan(
        **load,
        **lengths,
        slo="ttft.p99=5s",
        instances="1:2",
        draws=2,
        workers=1,
        cache=False,
        most_requests=20,
    )
    assert found.holds
    assert found.objective == "GPUs"
    assert found.error is not None
    assert "cross-validation of the profile" in found.error.source


@pytest.mark.slow
def test_more_than_three_settings_are_searched_as_optuna_suggests_and_the_same_every_time() -> None:
    pytest.importorskip("optuna")
    vary = {
        "gpu": ("h100", "l40s"),
        "tp": (1, 2),
        "scheduler": ("fcfs", "sjf"),
        "max_num_seqs": (64, 128),
    }
    few = {"num_requests": 60, "instances": "1:3"}
    found = plan(vary=vary, trials=8, **few)
    assert found.lines == 16
    assert len(found.standings) == 8
    assert "a combination that was not tried may be cheaper" in repr(found)
    assert plan(vary=vary, trials=8, **few).summary | {"search": 0} == found.summary | {"search": 0}


@pytest.mark.slow
def test_the_probability_is_the_share_of_draws_that_meet_all_targets() -> None:
    found = plan(draws=6)
    held = [case.judgement.holds for case in found.draws]
    assert len(held) == 6
    assert found.probability == sum(held) / 6
    assert found.error is not None
    assert "H100" in found.error.source


@pytest.mark.slow
def test_a_model_of_unknown_errors_has_no_probability() -> None:
    found = plan(latency_model="roofline", draws=5)
    assert found.probability is None
    assert "unknown, no runs validate roofline" in repr(found)


@pytest.mark.slow
def test_everything_is_in_the_folder(tmp_path: Path) -> None:
    found = plan(vary={"scheduler": ("fcfs", "priority-fcfs"), "tp": (1, 2)})
    found.save(tmp_path / "plan")
    names = {path.name for path in (tmp_path / "plan").iterdir()}
    assert names == {
        *("plan.json", "plan.txt", "config.yaml", "standings.csv", "plan.png", "plan.svg", "complete.json"),
        *("vllm.sh", "sglang.sh", "trtllm.sh", "llm-d-values.yaml"),
    }
    values = yaml.safe_load((tmp_path / "plan" / "llm-d-values.yaml").read_text())
    assert values["decode"]["replicas"] == found.best.instances
    assert values["decode"]["parallelism"]["tensor"] == found.best.config.tp
    assert json.loads((tmp_path / "plan" / "plan.json").read_text())["holds"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"slo": ()}, "no target is given"),
        ({"slo": "critical.ttft.p99=1s"}, "applies to no request"),
        ({"horizon": "10s"}, "would hide the requests that are still waiting"),
        ({"attainment": "101%"}, "is not a share"),
        ({"confidence": "90"}, "write 90% or 0.9"),
        ({"attainment": "99%"}, "no request has a goodput target"),
        ({"prices": {"h100": -1}}, "is not a price"),
        ({"instances": "0:4"}, "must be whole numbers from 1"),
        ({"instances": "4", "vary": {"num_instances": (1, 2)}}, "given by --instances, too"),
        ({"vary": {"tp": (3, 5)}}, "no configuration can be run: --tp: does not divide"),
        ({"vary": {"gpu": ("h1000",)}}, "unknown gpu (found"),
        ({"vary": {"prompt_tokens": (10, 20)}}, "cannot be chosen by a plan"),
        ({"vary": {"latency_model": ("trained", "roofline")}}, "cannot be chosen by a plan"),
        ({"max_rate": True}, "contradicts --max-rate"),
        ({"draws": -1}, "must be at least 0"),
        ({"trials": 0}, "must be at least 1"),
        ({"modle": "x"}, "did you mean 'model'?"),
    ],
)
def test_what_cannot_be_planned_is_one_clear_error(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        plan(**settings)
    assert message in str(error.value)


@pytest.mark.slow
def test_a_plan_waits_for_requests_that_the_horizon_of_a_spec_would_cut_off(tmp_path: Path) -> None:
    client = (
        "{id: c, rate_fraction: 1.0, arrival: {process: constant}, "
        "input_distribution: {type: constant, params: {value: 2000}}, "
        "output_distribution: {type: constant, params: {value: 200}}}"
    )
    (tmp_path / "spec.yaml").write_text(
        f'version: "2"\naggregate_rate: 30\nhorizon: 10000000\nclients: [{client}]\n'
    )
    found = blis.plan(
        workload_spec=str(tmp_path / "spec.yaml"),
        model="llama-3.1-8b",
        slo="e2e.max=60s",
        instances=[1, 2],
        draws=0,
        tune=False,
        most_requests=600,
        workers=1,
        cache=False,
    )
    runs = [found.best.outcome, *(case.outcome for case in found.sensitivity)]
    assert found.best.outcome.figures["requests.completed"] == 600, "twice the ten seconds of the spec"
    assert all(run.figures["requests.completed"] == run.facts["requests"] for run in runs)
    assert found.config.drain, "the configuration that it writes does so, too"


FEW = {"model": "llama-3.1-8b", "rate": 5, "num_requests": 60, "draws": 0, "tune": False, "most_requests": 60}


@pytest.mark.parametrize("figure", ["output_tokens_per_s", "goodput_per_s"])
def test_more_throughput_than_is_offered_is_no_lack_of_instances(figure: str) -> None:
    found = blis.plan(**FEW, instances=[1, 2], at_least=f"{figure}=1e6", goodput="ttft:200")
    assert not found.holds
    assert found.rate is None
    assert found.binding is None
    (note,) = [note for note in found.notes if "the load offers no more" in note]
    assert note.startswith(f"{figure} ")
    assert note.endswith("raise --rate, or use --max-rate")


def test_a_gpu_that_does_not_exist_is_refused_and_does_not_change_the_objective() -> None:
    with pytest.raises(InputError, match="unknown gpu"):
        blis.plan(**FEW, instances=[1], slo="ttft.p99=1s", vary={"gpu": ["h100", "a11g"]})
