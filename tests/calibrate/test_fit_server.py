"""A server that was planted is found again from the times of its clients."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from blis_py.api import build, run
from blis_py.calibrate.fit.by_instance import by_instance
from blis_py.calibrate.fit.linearised import kept
from blis_py.calibrate.fit.server import FittedServer, ServerFit, fit_server
from blis_py.calibrate.fit.server_file import engine_file
from blis_py.calibrate.fit.server_runs import NAMES, ServerRun, ServerRuns, frontend_ms
from blis_py.calibrate.fit.single_requests import with_front_end
from blis_py.calibrate.measured_header import at_the_server
from blis_py.calibrate.read_times import read_token_times
from blis_py.calibrate.token_times import TokenTimes, token_times
from blis_py.cli import main
from blis_py.config.engine import load_engine
from blis_py.config.loader import dump, load_config
from blis_py.errors import InputError
from blis_py.report.server_fit import server_fit_lines
from blis_py.requests.table import Labels
from blis_py.setup.setup import Setup

LOAD = {"num_requests": 300, "rate": 6.0}
SERVER = {"latency": {"step_scale": 1.3}, "frontend_ms": [14.0, 0.0, 0.047, 0.001]}


def served(**settings: object) -> TokenTimes:
    """What the planted server's clients see, with some noise."""
    result = run(model="llama-3.1-8b", seed=7, timeout=None, **(SERVER | LOAD | settings))
    times = token_times(result.record, "planted")
    noise = np.random.default_rng(3).normal(1.0, 0.02, (2, len(times.ttft_s)))
    ttft = times.ttft_s * noise[0]
    return replace(times, gaps=None, ttft_s=ttft, e2e_s=ttft + (times.e2e_s - times.ttft_s) * noise[1])


@pytest.fixture(scope="module")
def found() -> ServerFit:
    return fit_server(build(model="llama-3.1-8b"), served())


@pytest.mark.slow
def test_the_planted_server_is_found_again(found: ServerFit) -> None:
    assert found.numbers["step_scale"].value == pytest.approx(1.3, rel=0.03)
    assert found.numbers["frontend_ms"].value == pytest.approx(14, abs=1)
    assert [found.numbers[name].value for name in ("gap_us", "gap_seq_us")] == [0, 0]
    for number in found.numbers.values():
        assert number.low <= number.value <= number.high


def test_the_fitted_server_predicts_the_run(found: ServerFit) -> None:
    for name in ("TTFT mean", "TPOT mean", "E2E mean"):
        assert abs(found.before[name]) > 0.15
        assert abs(found.after[name]) < 0.02
    assert found.held_out["TPOT"] < 0.03 < 0.15 < found.held_out_before["TPOT"]


def test_the_engine_file_simulates_the_fitted_server(found: ServerFit, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(engine_file(found, build(model="llama-3.1-8b").config))
    mine = load_engine(str(path))
    assert mine.title == "vLLM 0.33, fitted to a server"
    assert (
        "fitted to 300 requests of planted; 90 % intervals: step_scale" in mine.sources["latency.step_scale"]
    )
    predicted = run(model="llama-3.1-8b", seed=7, timeout=None, engine=str(path), **LOAD)
    tpot_ms = predicted.summary["cluster"]["tpot_ms"]["mean"]
    assert tpot_ms == pytest.approx(float(np.nanmean(served().tpot_s)) * 1e3, rel=0.02)


@pytest.mark.slow
def test_a_closed_loop_is_fitted_as_one() -> None:
    measured = replace(served(concurrency=16, rate=None, num_requests=160), concurrency=16)
    closed = fit_server(build(model="llama-3.1-8b"), measured)
    assert abs(closed.before["TPOT mean"]) > 0.15
    assert abs(closed.after["TPOT mean"]) < abs(closed.before["TPOT mean"]) / 3


@pytest.mark.slow
def test_gaps_are_distinguished_from_a_factor_where_the_load_varies() -> None:
    """A quiet half and a busy one: what every sequence adds shows in the busy one alone."""
    spec = {"latency": {"step_gap_us": [0.0, 150.0]}, "frontend_ms": [5.7, 0.0, 0.047, 0.001]}
    halves = [
        token_times(
            run(model="llama-3.1-8b", seed=s, rate=rate, num_requests=150, timeout=None, **spec).record, "x"
        )
        for s, rate in ((1, 1.0), (2, 12.0))
    ]
    later = halves[0].sent_s.max() + 60
    together = {
        name: np.concatenate([getattr(half, name) for half in halves])
        for name in ("output_tokens", "ttft_s", "e2e_s", "prompt_tokens")
    }
    measured = replace(
        halves[0],
        gaps=None,
        request_id=np.arange(300),
        slo_class=Labels.constant("", 300),
        sent_s=np.concatenate([halves[0].sent_s, halves[1].sent_s + later]),
        **together,
    )
    fit = fit_server(build(model="llama-3.1-8b"), measured)
    assert fit.numbers["gap_seq_us"].value == pytest.approx(150, rel=0.1)
    assert fit.numbers["step_scale"].value == pytest.approx(1, abs=0.05)


def test_a_server_like_the_preset_keeps_the_preset() -> None:
    """A deviation of 2 % is no more than the scatter between runs of one server."""
    times = served(latency={"step_scale": 1.02}, frontend_ms=[5.75, 0.0, 0.047, 0.001])
    fit = fit_server(build(model="llama-3.1-8b"), times)
    assert fit.numbers["step_scale"].value == 1.0
    assert fit.numbers["frontend_ms"].value == pytest.approx(5.7)
    assert fit.after == fit.before


@pytest.mark.slow
def test_several_runs_of_a_server_are_fitted_together(found: ServerFit) -> None:
    other = replace(served(rate=3.0, num_requests=200), source="another")
    both = fit_server(build(model="llama-3.1-8b"), [served(), other])
    assert both.requests == 500
    assert both.source == "planted, another"
    assert both.numbers["step_scale"].value == pytest.approx(1.3, rel=0.03)
    width = {fit.requests: fit.numbers["step_scale"] for fit in (found, both)}
    assert width[500].high - width[500].low < 1.5 * (width[300].high - width[300].low)


def test_the_engine_file_keeps_the_limits_of_the_fit(found: ServerFit, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    given = build(model="llama-3.1-8b", max_num_seqs=77, num_kv_blocks=3000)
    path.write_text(engine_file(found, given.config))
    scheduler = build(model="llama-3.1-8b", engine=str(path), num_requests=1).scheduler
    assert (scheduler.max_num_seqs, scheduler.num_kv_blocks) == (77, 3000)
    assert load_engine(str(path)).sources["scheduler.max_num_seqs"] == "of the server that was fitted"


def test_a_gap_per_sequence_does_not_grow_beyond_what_was_seen() -> None:
    def served_by(gap: list[float], rate: float) -> tuple[float, list[str]]:
        done = run(model="llama-3.1-8b", num_requests=60, rate=rate, latency={"step_gap_us": gap})
        return done.summary["cluster"]["tpot_ms"]["mean"], [n for n in done.notes if "gap per sequence" in n]

    limited, notes = served_by([0.0, 500.0, 4], 50.0)
    assert len(notes) == 1
    assert "was seen up to 4" in notes[0]
    assert limited < served_by([0.0, 500.0], 50.0)[0]
    assert served_by([0.0, 500.0, 64], 50.0) == (served_by([0.0, 500.0], 50.0)[0], [])


def test_what_cannot_be_fitted_is_refused(found: ServerFit) -> None:
    measured = served()
    setup: Setup = build(model="llama-3.1-8b")
    unknown = replace(measured, sent_s=np.full(len(measured.sent_s), np.nan))
    with pytest.raises(InputError, match="does not say when requests were sent"):
        fit_server(setup, unknown)
    with pytest.raises(InputError, match="50 requests with two or more tokens are too few"):
        fit_server(setup, measured.take(np.arange(50)))
    with pytest.raises(InputError, match="has no lengths of prompts"):
        fit_server(setup, replace(measured, prompt_tokens=None))
    with pytest.raises(InputError, match="only trained step times"):
        fit_server(build(model="llama-3.1-8b", latency_model="roofline"), measured)


def test_steps_do_not_take_the_flags_of_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(Path(__file__).resolve().parents[2] / "docs" / "recorded" / "tiny-profile")
    assert main(["profile", "fit", folder, "--gpu", "h100"]) == 2
    assert "--gpu: goes with what a client measured" in capsys.readouterr().err


@pytest.fixture(scope="module")
def cluster() -> TokenTimes:
    """The log of two planted servers behind a router."""
    result = run(
        model="llama-3.1-8b", seed=7, timeout=None, num_instances=2, **(SERVER | LOAD | {"rate": 12})
    )
    record = result.record
    names = Labels.of(f"pod-{instance}" for instance in record.instance.tolist())
    return replace(token_times(record, "cluster.csv"), gaps=None, instance=names)


def test_the_log_of_a_cluster_is_one_run_of_each_instance(cluster: TokenTimes) -> None:
    """As the log of one instance it has twice the load, and the step times come out too short."""
    fit = fit_server(build(model="llama-3.1-8b"), cluster)
    assert fit.instances == 2
    assert fit.requests == 300
    assert fit.numbers["step_scale"].value == pytest.approx(1.3, rel=0.03)
    assert next(server_fit_lines(fit)) == "300 requests of cluster.csv, served by 2 instances"
    as_one = fit_server(build(model="llama-3.1-8b"), replace(cluster, instance=None))
    assert next(server_fit_lines(as_one)) == "300 requests of cluster.csv, taken as served by one instance"
    assert as_one.numbers["step_scale"].value < fit.numbers["step_scale"].value


def test_several_instances_that_a_log_does_not_name_are_refused(cluster: TokenTimes) -> None:
    setup = build(model="llama-3.1-8b", num_instances=2)
    with pytest.raises(InputError, match="does not say which of the 2 instances served a request"):
        fit_server(setup, replace(cluster, instance=None))
    logs, notes = by_instance([cluster], 2)
    assert [log.source for log in logs] == ["cluster.csv instance pod-0", "cluster.csv instance pod-1"]
    assert notes == []


def test_an_instance_with_few_requests_is_left_out_with_a_note(cluster: TokenTimes) -> None:
    assert cluster.instance is not None
    names = Labels.of(["a"] * 260 + ["b"] * 40)
    logs, (note,) = by_instance([replace(cluster, instance=names)], 1)
    assert [len(log.request_id) for log in logs] == [260]
    assert note == "cluster.csv: left out, with fewer than 100 requests: b"


def test_the_instance_of_each_request_is_read_from_a_table(tmp_path: Path) -> None:
    rows = "".join(f"{i},100,5,30,90,pod-{i % 2}\n" for i in range(4))
    path = tmp_path / "log.csv"
    path.write_text(f"arrival_s,input_tokens,output_tokens,ttft_ms,e2e_ms,pod\n{rows}")
    found = read_token_times(path)
    assert found.instance is not None
    assert found.instance.to_list() == ["pod-0", "pod-1", "pod-0", "pod-1"]


TERMS: dict[str, dict[str, object]] = {
    "step_scale": {"latency": {"step_scale": 1.25}},
    "gap_us": {"latency": {"step_gap_us": [3000.0]}},
    "gap_seq_us": {"latency": {"step_gap_us": [0.0, 150.0]}},
    "frontend_ms": {"frontend_ms": [21.0, 0.0, 0.047, 0.001]},
    "frontend_seq_ms": {"frontend_ms": [5.7, 0.0, 0.5, 0.001]},
    "frontend_token_ms": {"frontend_ms": [5.7, 0.0, 0.047, 0.02]},
}
"""Settings of a server whose number of that name is not the preset's."""


def planted(name: str, fit: ServerFit, **server: object) -> tuple[ServerFit, dict[str, object]]:
    """A fit that found that term, and the settings of its server."""
    setup = build(model="llama-3.1-8b", **server, **TERMS[name])
    found = ServerRun.numbers_of(replace(one_run(), setup=setup), setup)
    numbers = {
        key: FittedServer.of(value, value, value) for key, value in zip(NAMES, found.tolist(), strict=True)
    }
    front = frontend_ms(found, setup.config.frontend_ms)
    return replace(fit, numbers=numbers, frontend_ms=front, in_flight=10**6), {**server, **TERMS[name]}


def one_run() -> ServerRun:
    return ServerRun.of(build(model="llama-3.1-8b"), served(), 0.0)


@pytest.mark.parametrize("server", [{}, {"async_scheduling": False}, {"gpu": "h200", "tp": 2}])
@pytest.mark.parametrize("name", TERMS)
def test_the_file_of_a_fit_runs_as_the_fit_says(
    name: str, server: dict[str, object], found: ServerFit, tmp_path: Path
) -> None:
    fit, settings = planted(name, found, **server)
    path = tmp_path / "mine.yaml"
    path.write_text(engine_file(fit, build(model="llama-3.1-8b", **server).config))
    load = {"model": "llama-3.1-8b", "num_requests": 60, "rate": 20.0, "seed": 3}
    expected = run(**load, **settings).requests
    for given in ({}, {"async_scheduling": server.get("async_scheduling", True)}):
        from_file = run(**load, engine=str(path), **given).requests
        for column in ("ttft_ms", "e2e_ms"):
            assert from_file[column].to_numpy() == pytest.approx(expected[column].to_numpy(), rel=1e-6)


def test_the_file_of_a_fit_survives_the_configuration_of_a_run(found: ServerFit, tmp_path: Path) -> None:
    """A run that is written and run again, or taken over with other settings, keeps the gap."""
    path = tmp_path / "mine.yaml"
    path.write_text(engine_file(planted("gap_us", found)[0], build(model="llama-3.1-8b").config))
    config = load_config(overrides={"engine": str(path), "model": "llama-3.1-8b"})
    (tmp_path / "run.yaml").write_text(dump(config))
    again = load_config(tmp_path / "run.yaml")
    assert again.latency.step_gap_us == (3000.0, 0.0)
    other = load_config(overrides={"tp": 2}, base=again)
    assert other.latency.step_gap_us == (3000.0, 0.0)
    assert load_config(overrides={"engine": "vllm"}, base=again).latency.step_gap_us == ()


def test_a_front_end_learned_with_the_operators_is_not_counted_twice(tmp_path: Path) -> None:
    server = {"model": "qwen3-30b-a3b", "gpu": "h100"}
    load = {**server, "num_requests": 120, "rate": 4.0, "seed": 2, "timeout": None}
    late = [40.0, 0.0, 0.047, 0.001]
    times = replace(token_times(run(**load, frontend_ms=late).record, "late"), gaps=None)
    fit = fit_server(build(**server), times)
    assert fit.numbers["frontend_ms"].value == pytest.approx(40, rel=0.02)
    path = tmp_path / "mine.yaml"
    path.write_text(engine_file(fit, build(**server).config))
    mean_ms = run(**load, engine=str(path)).requests.ttft_ms.mean()
    assert mean_ms == pytest.approx(float(times.ttft_s.mean()) * 1e3, rel=2e-3)


def test_settings_of_the_server_that_were_given_are_in_the_file(found: ServerFit, tmp_path: Path) -> None:
    given: dict[str, object] = {
        "memory": "sglang",
        "kv_cache_dtype": "fp8",
        "latency": {"cuda_graphs": False},
        "frontend_ms": [1.0, 7.0],
        "gpu": "h200",
    }
    config = build(model="llama-3.1-8b", **given).config
    path = tmp_path / "mine.yaml"
    path.write_text(engine_file(found, config))
    again = build(model="llama-3.1-8b", engine=str(path)).config
    assert (again.memory, again.kv_cache_dtype, again.gpu) == ("sglang", "fp8", "h200")
    assert not again.latency.cuda_graphs


def test_a_fit_that_predicts_worse_than_the_preset_writes_nothing(
    found: ServerFit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    worse = replace(
        found, held_out={"TTFT": 0.164, "TPOT": 0.06}, held_out_before={"TTFT": 0.083, "TPOT": 0.25}
    )
    monkeypatch.setattr("blis_py.cli.verbs.profile.fit_server", lambda *_: worse)
    log = tmp_path / "log.csv"
    log.write_text("arrival_s,input_tokens,output_tokens,ttft_ms,e2e_ms\n0,10,5,20,90\n")
    out = tmp_path / "mine.yaml"
    assert main(["profile", "fit", str(log), "--model", "llama-3.1-8b", "--out", str(out)]) == 1
    assert not out.exists()
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(
        "refused: no numbers are better than the preset's, nothing is written: held-out TTFT"
    )


def degenerate(kind: str) -> TokenTimes:
    times = served()
    count = len(times.sent_s)
    if kind == "one token each":
        return replace(times, output_tokens=np.ones(count, dtype=np.int64))
    if kind == "all tokens at once":
        return replace(times, e2e_s=times.ttft_s)
    if kind == "no time to the first token":
        return replace(times, ttft_s=np.zeros(count))
    assert times.prompt_tokens is not None
    return times.take(np.arange(1))


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("one token each", "0 requests with two or more tokens are too few"),
        ("all tokens at once", "the TPOT of 300 of 300 requests is 0"),
        ("no time to the first token", "the TTFT of 300 of 300 requests is 0"),
        ("one request", "1 requests with two or more tokens are too few"),
    ],
)
def test_times_that_say_nothing_of_a_server_are_refused(kind: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        fit_server(build(model="llama-3.1-8b"), degenerate(kind))


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
def test_a_constant_gap_is_found_as_a_gap() -> None:
    times = served(latency={"step_gap_us": [3000.0]}, frontend_ms=[5.7, 0.0, 0.047, 0.001], rate=12.0)
    fit = fit_server(build(model="llama-3.1-8b"), times)
    assert fit.numbers["gap_us"].value == pytest.approx(3000, rel=0.02)
    assert (fit.numbers["step_scale"].value, fit.numbers["gap_seq_us"].value) == (1.0, 0.0)
    assert fit.worse == ""


def test_the_round_trip_that_a_client_measured_is_not_taken_for_a_front_end(tmp_path: Path) -> None:
    """`blis calibrate` adds it to what is simulated, and leaves out the warm-up, too."""
    trace = tmp_path / "trace.csv"
    header = "request_id,arrival_time_us,send_time_us,input_tokens,output_tokens"
    header += ",first_chunk_time_us,last_chunk_time_us,status"
    rows = [f"{i},{i}000,{i}000,10,5,{i}000000,{i + 2}000000,ok" for i in range(1, 40)]
    trace.write_text("\n".join([header, *rows]) + "\n")
    (tmp_path / "trace.yaml").write_text("warm_up_requests: 11\nnetwork: {measured_rtt_ms: 30}\n")
    times = read_token_times(trace)
    inside, since_s = at_the_server(times, trace)
    assert inside.ttft_s == pytest.approx(times.ttft_s - 0.03)
    assert inside.tpot_s == pytest.approx(times.tpot_s)
    assert since_s == pytest.approx(0.01)
    (tmp_path / "trace.yaml").write_text("network: {measured_rtt_ms: 999999}\n")
    with pytest.raises(InputError, match="is longer than the shortest TTFT"):
        at_the_server(times, trace)
    assert at_the_server(times, tmp_path / "other.csv")[1] == 0.0


def test_a_file_under_another_latency_model_says_that_its_corrections_do_not_count(
    found: ServerFit, tmp_path: Path
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(engine_file(planted("gap_us", found)[0], build(model="llama-3.1-8b").config))
    load = {"model": "llama-3.1-8b", "engine": str(path), "num_requests": 3}
    notes = run(**load, latency_model="roofline").notes
    assert any("latency.step_gap_us of" in note and "not roofline" in note for note in notes)
    assert not any("correct `trained` alone" in note for note in run(**load).notes)


def two_terms(*names: str, **load_of: object) -> tuple[dict[str, float], TokenTimes]:
    """Numbers of a server with these terms, and what clients see of it without noise, quiet and busy."""
    numbers = {"step_scale": 1.0, "gap_us": 0.0, "gap_seq_us": 0.0}
    numbers |= {"frontend_ms": 5.7, "frontend_seq_ms": 0.047, "frontend_token_ms": 0.001}
    numbers |= {name: PLANTED[name] for name in names}
    values = list(numbers.values())
    server = {
        "latency": {"step_scale": values[0], "step_gap_us": values[1:3]},
        "frontend_ms": [values[3], 0.0, *values[4:]],
    }
    load = {"num_requests": 800, "rate": 8.0, "arrival": "gamma", "cv": 4.0, "seed": 7, "timeout": None}
    load |= {"prompt_tokens": 800, "prompt_tokens_stdev": 256} | load_of
    load |= {"output_tokens": 150, "output_tokens_stdev": 256}
    record = run(model="llama-3.1-8b", **load, **server).record
    return numbers, replace(token_times(record, "planted"), gaps=None)


PLANTED = {"step_scale": 1.25, "gap_us": 3000.0, "gap_seq_us": 150.0}
PLANTED |= {"frontend_ms": 21.0, "frontend_seq_ms": 0.5, "frontend_token_ms": 0.02}


@pytest.mark.slow
@pytest.mark.parametrize("names", [("step_scale", "gap_us"), ("gap_us", "gap_seq_us")])
def test_two_terms_of_steps_are_both_found(names: tuple[str, str]) -> None:
    numbers, times = two_terms(*names)
    fit = fit_server(build(model="llama-3.1-8b"), times)
    for name in NAMES[:3]:
        assert fit.numbers[name].value == pytest.approx(numbers[name], rel=0.02), name
    assert fit.worse == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "load"),
    [
        (("step_scale", "gap_us"), {"num_requests": 500}),
        (("gap_seq_us", "frontend_ms"), {"num_requests": 500, "rate": 30.0}),  # a queue all the time
        (("gap_us", "frontend_ms", "frontend_seq_ms"), {"num_requests": 150, "rate": 30.0}),
        (("step_scale", "gap_us", "gap_seq_us"), {"num_requests": 150, "rate": 30.0}),
        (("step_scale", "gap_us", "frontend_seq_ms"), {"num_requests": 150, "rate": 30.0}),
    ],
)
def test_all_terms_of_a_simulated_server_are_found_by_few_requests(
    names: tuple[str, ...], load: dict[str, object]
) -> None:
    numbers, times = two_terms(*names, **load)
    fit = fit_server(build(model="llama-3.1-8b"), times)
    for name in NAMES:
        assert fit.numbers[name].value == pytest.approx(numbers[name], rel=0.02), name


def test_a_change_is_kept_by_how_much_it_exceeds_the_scatter() -> None:
    """Just beyond the scatter nearly none, from twice as much on all, without a jump in between."""
    assert [kept(change, 0.03) for change in (0.0, 0.02, 0.03)] == [0, 0, 0]
    assert kept(0.0305, 0.03) * 0.0305 == pytest.approx(0.001)
    assert [kept(change, 0.03) for change in (0.06, 0.3)] == [1, 1]
    assert kept(0.01, 0.0) == 1
    changes = np.linspace(0, 0.1, 1001)
    sizes = [kept(change, 0.03) * change for change in changes.tolist()]
    assert 0 <= np.diff(sizes).min() <= np.diff(sizes).max() < 2.001 * (changes[1] - changes[0])


@pytest.mark.slow
def test_delays_of_the_front_end_are_all_found_where_steps_are_known() -> None:
    numbers, times = two_terms("frontend_ms", "frontend_token_ms")
    fit = fit_server(build(model="llama-3.1-8b"), times)
    for name in NAMES:
        assert fit.numbers[name].value == pytest.approx(numbers[name], rel=0.02), name
    assert fit.held_out["TTFT"] < 0.02


def test_least_absolute_errors_go_by_the_requests_that_are_exact() -> None:
    """Two of three requests wait for a step for longer or shorter than simulated, one is exact."""
    numbers, times = two_terms("frontend_token_ms")
    setup = build(model="llama-3.1-8b")
    one = ServerRun.of(setup, times, 0.0)
    there = one.times(one.numbers_of(setup))
    off = np.random.default_rng(1).normal(0, 0.01, len(times.ttft_s)) * (np.arange(len(times.ttft_s)) % 3 > 0)
    noisy = replace(times, ttft_s=times.ttft_s + off)
    found = with_front_end(ServerRuns.of([ServerRun.of(setup, noisy, 0.0)]), [there])
    assert found == pytest.approx(list(numbers.values()), rel=0.02)
