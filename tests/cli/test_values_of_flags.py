"""Values of flags are checked before any work, and are what they look like."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from blis_py.cli import main
from blis_py.cli.program import BLIS, Command, command_of
from blis_py.cluster.simulation import ClusterSimulation
from blis_py.metrics.record import RunRecord
from blis_py.planning import worker
from blis_py.planning.job import JobOutcome

RUN = ("run", "--model", "llama-3.1-8b", "--num-requests", "2")


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        *(("--xpyd", "٣p1d"), ("--rate", "٣"), ("--tp", "٢"), ("--horizon", "٣s"), ("--goodput", "ttft:٥")),
        *(("--slo-shares", "critical=٠"), ("--time-scale", "²"), ("--prompt-tokens", "५"), ("--seed", "৭")),
        *(("--slo", "ttft.p٩٩=5s"), ("--think-time-dist", "constant:value=٨s"), ("--num-requests", "１")),
    ],
)
def test_numbers_have_the_digits_0_to_9(capsys: pytest.CaptureFixture[str], flag: str, value: str) -> None:
    assert main([*RUN, flag, value]) == 2
    assert flag in capsys.readouterr().err


@pytest.mark.parametrize("value", ["9" * 400, "-1", "nan", "true", "[1]", '{"input": 1e999}', "{}"])
def test_a_ratio_is_a_number_from_0_to_1(capsys: pytest.CaptureFixture[str], value: str) -> None:
    assert main([*RUN, "--random-range-ratio", value]) == 2
    assert "--random-range-ratio: must be from 0 to 1" in capsys.readouterr().err


def test_numbers_of_files_have_the_digits_0_to_9(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for key, value in (("workload", {"rate": "٣"}), ("disaggregation", {"xpyd": "٣p1d"}), ("horizon", "٣s")):
        path = tmp_path / "c.yaml"
        path.write_text(yaml.safe_dump({"model": "llama-3.1-8b", key: value}))
        assert main(["run", "--config", str(path)]) == 2
        assert "٣" in capsys.readouterr().err or value == {"rate": "٣"}


@pytest.mark.parametrize("stat", ["p9", "p0", "p49.9", "p100.1", "p999"])
def test_a_limit_is_on_a_percentile_of_most_requests(capsys: pytest.CaptureFixture[str], stat: str) -> None:
    assert main([*RUN, "--slo", f"ttft.{stat}=5s"]) == 2
    assert "use p50 to p100, such as p99" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["a.b", "a/b", "a\\b", "a\x01b", "a\nb", " a", "a\u202eb", "a:b", "a=b"])
def test_pools_have_names_for_keys_and_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    pools = [{"name": name, "count": 1}, {"name": "other", "count": 1}]
    (tmp_path / "c.yaml").write_text(yaml.safe_dump({"model": "llama-3.1-8b", "pools": pools}))
    assert main(["run", "--config", str(tmp_path / "c.yaml"), "--num-requests", "2"]) == 2
    assert "not a name of a pool" in capsys.readouterr().err


def test_a_plan_checks_its_flags_before_the_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def work(*_: object, **__: object) -> None:
        raise AssertionError("the work began")

    monkeypatch.setattr("blis_py.planning.api.plan", work)
    assert main(["plan", "--model", "llama-3.1-8b", "--slo", "ttft.p99=5s", "--disaggregate", "x"]) == 2
    assert "--disaggregate: unknown value (found 'x'); use auto" in capsys.readouterr().err


@pytest.fixture
def began(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What began to be simulated."""
    runs: list[str] = []
    run = ClusterSimulation.run

    def counted(simulation: ClusterSimulation) -> RunRecord:
        runs.append("a run")
        return run(simulation)

    monkeypatch.setattr(ClusterSimulation, "run", counted)
    return runs


WRONG = ("x", "-1", "nan", "1e400", "", "0", "a=b", "x.p99=5s", "1,,2", "9" * 20, "\x00")


@pytest.mark.parametrize("verb", ["run", "replay", "explain", "sweep"])
def test_no_value_of_a_flag_is_refused_after_a_run(
    verb: str,
    began: list[str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of every flag one value in turn; what it says is read before anything is simulated."""
    (tmp_path / "t.csv").write_text("arrival_s,input_tokens,output_tokens\n0,9,2\n1,8,2\n")
    own = {"replay": "--trace t.csv", "sweep": "--vary max_num_seqs=4 --num-requests 2"}
    own["explain"] = "--no-what-ifs --num-requests 2"
    more = own.get(verb, "--num-requests 2").split()
    command = command_of(verb, BLIS.verbs[verb])
    assert isinstance(command, Command)
    monkeypatch.chdir(tmp_path)
    named = [flag.name for _, flags in command.groups for flag in flags if flag.kind is not bool]
    late = []
    for number, name in enumerate(named):
        if not name.startswith("--") or name == "--out":
            continue
        value = WRONG[(number + len(verb)) % len(WRONG)]
        began.clear()
        if main([verb, *RUN[1:3], *more, name, value]) == 2 and began:
            late.append((name, value, capsys.readouterr().err))
    assert not late


@pytest.mark.parametrize(
    ("flag", "value"), [("--request", "zzz"), ("--class", "gold"), ("--metric", "gold.ttft.p99")]
)
def test_a_question_without_an_answer_is_refused_before_the_run(
    flag: str, value: str, began: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", *RUN[1:], flag, value]) == 2
    assert flag.replace("--metric", "--class") in capsys.readouterr().err
    assert not began


_PLAN = ("plan", "--model", "llama-3.1-8b", "--num-requests", "2", "--no-cache", "--workers", "1")


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (("--attainment", "99%"), "--attainment: no request has a goodput target"),
        (
            ("--attainment", "gold=99%", "--goodput", "ttft:500"),
            "--attainment: no request of class gold has a goodput target",
        ),
        (
            ("--attainment", "99%", "--slo-ttft", "critical=500ms"),
            "--attainment: no request has a goodput target",
        ),
        (("--slo", "critical.ttft.p99=5s"), "--slo: applies to no request"),
        (("--slo", "critical.ttft.p99=5s", "--max-rate"), "--slo: applies to no request"),
        (("--slo", "critical.ttft.p99=5s", "--max-rate", "--gpus", "2"), "--slo: applies to no request"),
        (("--slo", "critical.ttft.p99=5s", "--pareto"), "--slo: applies to no request"),
        (("--slo", "ttft.p99=5s", "--max-rate", "--budget", "nan"), "--budget: must be a finite number"),
        (("--slo", "ttft.p99=5s", "--max-rate", "--budget", "inf"), "--budget: must be a finite number"),
        (("--slo", "ttft.p99=5s", "--max-rate", "--gpus", "-1"), "--gpus: must be at least 1"),
    ],
)
def test_a_target_without_requests_is_refused_before_a_plan(
    flags: tuple[str, ...], problem: str, began: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*_PLAN, *flags]) == 2
    assert problem in capsys.readouterr().err
    assert not began


def test_no_value_of_a_flag_is_refused_after_a_run_of_a_plan(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every flag one value in turn; all runs of the plan have the outcome of one."""
    monkeypatch.chdir(tmp_path)
    jobs: list[bytes] = []
    outcomes: list[JobOutcome] = []
    run = worker.run

    def known(job: bytes) -> JobOutcome:
        jobs.append(job)
        if not outcomes:
            outcomes.append(run(job))
        return outcomes[0]

    monkeypatch.setattr(worker, "run", known)
    plan = [*_PLAN, "--slo", "ttft.p99=5s", "--instances", "1:2", "--most-requests", "4", "--draws", "2"]
    command = command_of("plan", BLIS.verbs["plan"])
    assert isinstance(command, Command)
    named = [flag.name for _, flags in command.groups for flag in flags if flag.kind is not bool]
    late = []
    for number, name in enumerate(named):
        if not name.startswith("--") or name in ("--out", "--dask", "--workers"):
            continue
        jobs.clear()
        if main([*plan, name, WRONG[number % len(WRONG)]]) and jobs:
            late.append((name, capsys.readouterr().err))
    assert not late


CLIENT = "arrival_s,input_tokens,output_tokens,ttft_ms,e2e_ms\n0,9,2,5,9\n1,8,2,5,9\n"


@pytest.mark.parametrize(
    ("command", "flag", "value"),
    [
        *(("observe", "--rtt-ms", value) for value in ("-1", "nan", "inf")),
        *(("observe", "--warmup-requests", value) for value in ("-1", "3", "9" * 20)),
        *(("observe", "--scrape-metrics", value) for value in ("", "metrics", "/a\r\nb: c")),
        *(("observe", name, "inf") for name in ("--request-timeout", "--scrape-interval")),
        *(("observe", "--out", value) for value in ("", "\0")),
        *(("calibrate", "--hit-rate-tolerance-pp", value) for value in ("-1", "nan")),
        *(("calibrate", name, "-1") for name in ("--ttft-mape-threshold", "--throughput-tolerance-pct")),
        *(("calibrate", "--num-gpus", "-1"), ("calibrate", "--itl-data", "no.csv")),
        *(("calibrate", "--sim-metrics", "no.json"), ("fit", "--seed", "1"), ("fit", "--bootstrap", "5")),
        *(("serve", "--allowed-host", value) for value in ("", "http://a.example", "a.example:80", "a b")),
        *(("serve", "--served-model-name", value) for value in ("", "a\nb")),
        *(("serve", name, "9") for name in ("--text-file", "--kv-events-topic", "--kv-events-seed")),
        ("serve", "--intervals", "5"),
    ],
)
def test_a_value_is_refused_before_the_work(
    command: str,
    flag: str,
    value: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def work(*_: object, **__: object) -> None:
        raise AssertionError("the work began")

    for place in (
        *("blis_py.observe.session.Observation.run", "blis_py.cli.verbs._serve_fleet.run"),
        *("blis_py.calibrate.compare.calibrate", "blis_py.cli.verbs.profile.fit_server"),
    ):
        monkeypatch.setattr(place, work)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.csv").write_text(CLIENT)
    words = {
        "observe": "observe --server-url http://127.0.0.1:1 --num-requests 3 --out o",
        "serve": "serve --model llama-3.1-8b --port 0",
        "calibrate": "calibrate c.csv --results c.csv",
        "fit": "profile fit c.csv --model llama-3.1-8b",
    }[command].split()
    if flag in words:
        words = words[: words.index(flag)]
    assert main([*words, flag, value]) == 2
    assert flag in capsys.readouterr().err
