"""A plan of few flags: words of other planners, lists as axes, widths that are not given, early answers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import blis_py as blis
from blis_py.cli import main
from blis_py.cli.flags.configure import overrides
from blis_py.cli.flags.parser import parse
from blis_py.cli.verbs import plan as plan_verb
from blis_py.cli.verbs import run as run_verb
from blis_py.errors import InputError
from blis_py.metrics.slo import parse_slo
from blis_py.planning import api
from blis_py.planning.axes import axis, grid
from blis_py.planning.goal import Judgement
from blis_py.planning.runner import OutOfTime, Runner
from blis_py.planning.search import Search, SearchLine
from blis_py.planning.study import Study
from blis_py.planning.widths import has_load, held, sensible, unasked

SMALL: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "gpu": "h100",
    "rate": 20,
    "num_requests": 60,
    "prompt_tokens": 200,
    "output_tokens": 20,
    "slo": ["ttft.p99=1s"],
    "workers": 1,
    "cache": False,
    "draws": 0,
    "quick": True,
}


def given(*words: str, verb: Any = run_verb) -> dict[str, Any]:
    """Settings by key, of a command line."""
    flags = parse(words, verb.GROUPS)
    assert flags is not None
    return {key: value for _, key, value in overrides(flags)}


def study(**settings: Any) -> Study:
    return api.study_of(None, settings)


@pytest.mark.parametrize(
    ("words", "targets"),
    [
        (["--ttft", "2s"], ["ttft.p99=2s"]),
        (["--ttft", "2000", "--tpot", "50ms"], ["ttft.p99=2000ms", "tpot.p99=50ms"]),
        (["--itl", "p95=40ms"], ["itl.p95=40ms"]),
        (["--e2e", "mean=9s"], ["e2e.mean=9s"]),
        (["--request-latency", "9.5"], ["e2e.p99=9.5ms"]),
        (["--slo", "critical.ttft.p99=1s", "--tpot", "50"], ["critical.ttft.p99=1s", "tpot.p99=50ms"]),
    ],
)
def test_limits_of_single_metrics_are_targets(words: list[str], targets: list[str]) -> None:
    assert given(*words)["slo"] == targets


def test_a_limit_that_is_no_time_is_refused() -> None:
    with pytest.raises(InputError, match="soon"):
        parse_slo(given("--ttft", "soon")["slo"][0])


def test_lengths_in_the_words_of_aiconfigurator_are_those_of_every_request() -> None:
    of_vllm = given("--random-input-len", "4000", "--random-output-len", "500")
    assert given("--isl", "4000", "--osl", "500") == of_vllm
    assert of_vllm["workload.prompt_tokens_stdev"] == 0


@pytest.mark.parametrize(
    ("words", "axes"),
    [
        (["--gpu", "h200,b200"], ["gpu=h200,b200"]),
        (["--tp", "2,4", "--gpu", "h100"], ["tp=2,4"]),
        (["--tensor-parallel-size", "2,4"], ["tp=2,4"]),
        (["--rate", "10:30:10"], ["rate=10:30:10"]),
        (["--xpyd", "auto:4"], ["xpyd=auto:4"]),
        (["--xpyd", "2p1d"], []),
        (["--vary", "tp=1,2", "--scheduler=fcfs,lpm"], ["tp=1,2", "scheduler=fcfs,lpm"]),
        (["--slo-ttft", "critical=1,batch=2"], []),
        (["--frontend-ms", "1,2,3,4"], []),
        (["--beta-coeffs", "1,2"], []),
        (["--routing-scorers", "queue:1,kv:2"], []),
        (["--goodput", "ttft:1,tpot:2"], []),
    ],
)
def test_a_list_where_one_value_is_expected_is_an_axis_of_a_study(words: list[str], axes: list[str]) -> None:
    flags = parse(words, plan_verb.GROUPS)
    assert flags is not None
    assert flags.get("--vary", []) == axes


def test_a_run_takes_one_value() -> None:
    with pytest.raises(InputError, match="must be a whole number"):
        parse(["--tp", "1,2"], run_verb.GROUPS)


def test_widths_are_searched_where_nothing_says_how_an_instance_is_laid_out(tmp_path: Path) -> None:
    def names(of: Study, *axes: Any) -> list[str]:
        return [each.name for each in unasked(of, axes)]

    assert names(study(model="llama-3.1-8b", gpu="h100")) == ["tp"]
    assert names(study(model="mixtral-8x7b", gpu="h100")) == ["tp", "attention_dp", "ep"]
    assert names(study(gpu="h100"), axis("model", ["llama-3.1-8b", "mixtral-8x7b"]))[0] == "tp"
    for settings in ({"tp": 2}, {"attention_dp": 2}, {"ep": 2}, {"xpyd": "1p1d"}, {"engine": "blis"}):
        assert names(study(model="llama-3.1-8b", gpu="h100", **settings)) == []
    assert names(study(model="llama-3.1-8b", gpu="h100"), axis("tp", [2])) == []
    assert names(Study(sets=("tp=2", "model=llama-3.1-8b"))) == []
    file = tmp_path / "run.yaml"
    file.write_text("model: llama-3.1-8b\ntp: 4\n")
    assert names(Study(file)) == []
    file.write_text("model: llama-3.1-8b\ngpu: h100\n")
    assert names(Study(file)) == ["tp"]
    assert names(held(Study(file), ["tp=2"])) == []


def test_replicas_and_experts_are_over_all_gpus_or_none() -> None:
    points = sensible(grid([axis(name, [1, 2, 4]) for name in ("tp", "attention_dp", "ep")]))
    assert [tuple(point.values()) for point in points] == [
        (1, 1, 1),
        *[(width, dp, ep) for width in (2, 4) for dp in (1, width) for ep in (1, width)],
    ]


@pytest.mark.parametrize("text", ["tp", "tp=1,2", "nosuch=3"])
def test_a_setting_that_is_held_has_one_value(text: str) -> None:
    with pytest.raises(InputError):
        held(Study(), [text])


def test_a_load_is_a_rate_a_trace_a_spec_or_a_closed_loop() -> None:
    assert not has_load(study(model="llama-3.1-8b", num_requests=10), [])
    for settings in ({"rate": 2}, {"concurrency": 4}, {"workload": "mixed-slo"}):
        assert has_load(study(**settings), [])
    assert has_load(study(), [axis("rate", [1, 2])])


def test_the_cheapest_width_is_found_unasked() -> None:
    settings = SMALL | {"model": "llama-3.1-70b", "rate": 1, "tune": False}
    found = api.plan(**settings)
    widths = [api.plan(**settings, tp=tp).best.gpus for tp in (4, 8)]
    assert found.best.config.tp > 1
    assert found.best.gpus <= min(widths)
    assert {each.point["tp"] for each in found.standings} <= {2, 4, 8}  # at 1 it does not fit


def test_gpus_are_the_most_that_are_used() -> None:
    settings = SMALL | {"tune": False, "rate": 60, "slo": ["ttft.p99=200ms"]}
    free = api.plan(**settings)
    limited = api.plan(**settings, gpus=max(free.best.gpus - 1, 1))
    assert free.holds
    assert limited.best.gpus < max(free.best.gpus, 2)
    assert all((each.least or 0) * each.point["tp"] < max(free.best.gpus, 2) for each in limited.standings)


def test_a_line_has_no_size_beyond_its_largest() -> None:
    tried: list[tuple[int, int]] = []

    def evaluate(probes: Any, _: bool) -> list[Judgement]:
        tried.extend(probes)
        return [Judgement(False) for _ in probes]

    search = Search([SearchLine(1.0, 3), SearchLine(1.0, 0)], [1, 2, 4, 8], evaluate)
    assert search.best() is None
    assert {line for line, _ in tried} == {0}
    assert max(size for _, size in tried) == 1


def test_a_quick_plan_is_its_first_answer() -> None:
    quick = api.plan(**SMALL, tp=1)
    assert quick.ended == "quick"
    assert quick.holds
    assert "so far (quick)" in str(quick)
    assert all(each["met"] for each in blis.run(quick.config).summary["slo"])


@pytest.mark.parametrize("after", [6, 7])
def test_an_interrupt_leaves_what_is_known(after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    known, runs = Runner.run, []

    def run(self: Runner, jobs: Any, *more: Any) -> Any:
        runs.append(jobs)
        if len(runs) > after:
            raise KeyboardInterrupt
        return known(self, jobs, *more)

    monkeypatch.setattr(Runner, "run", run)
    plan = api.plan(**SMALL | {"quick": False})
    assert plan.ended == "interrupted"
    assert plan.holds


def test_the_command_prints_what_is_known_and_says_that_it_was_interrupted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known, runs = Runner.run, []

    def run(self: Runner, jobs: Any, *more: Any) -> Any:
        runs.append(jobs)
        if len(runs) > 6:
            raise KeyboardInterrupt
        return known(self, jobs, *more)

    monkeypatch.setattr(Runner, "run", run)
    load = ["--model", "llama-3.1-8b", "--gpu", "h100", "--rate", "20", "--num-requests", "60"]
    more = [
        "--isl",
        "200",
        "--osl",
        "20",
        "--ttft",
        "1s",
        "--workers",
        "1",
        "--no-cache",
        "--format",
        "table",
    ]
    assert main(["plan", *load, *more]) == 130
    assert "so far (interrupted)" in capsys.readouterr().out


def test_an_interrupt_before_anything_passes_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(self: Runner, *more: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(Runner, "run", run)
    with pytest.raises(KeyboardInterrupt):
        api.plan(**SMALL)


def test_a_search_ends_in_time() -> None:
    with pytest.raises(InputError, match="in that time"):
        api.plan(**SMALL, budget="0.000001s")
    runner = Runner(executor=None, store=None, ends_at=time.monotonic())  # type: ignore[arg-type]
    with pytest.raises(OutOfTime):
        runner.run([])


@pytest.mark.parametrize("budget", ["soon", "-3", "0", "nan", "-2s"])
def test_a_budget_is_a_time_or_dollars(budget: str) -> None:
    with pytest.raises(InputError, match="--budget"):
        api.plan(**SMALL, budget=budget)
