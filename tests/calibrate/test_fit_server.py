"""A server that was planted is found again from the times of its clients."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from blis_py.api import build, run
from blis_py.calibrate.fit.by_instance import by_instance
from blis_py.calibrate.fit.server import ServerFit, fit_server
from blis_py.calibrate.fit.server_file import engine_file
from blis_py.calibrate.read_times import read_token_times
from blis_py.calibrate.token_times import TokenTimes, token_times
from blis_py.cli import main
from blis_py.config.engine import load_engine
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
    engine = load_engine("vllm")
    path = tmp_path / "mine.yaml"
    path.write_text(engine_file(found, engine.on({"gpu": "h100"}), engine.sources, engine.title))
    mine = load_engine(str(path))
    assert mine.title == "vLLM 0.15, fitted to a server"
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
    engine = load_engine("vllm")
    given = {"scheduler.max_num_seqs": 77, "scheduler.num_kv_blocks": 3000}
    path = tmp_path / "mine.yaml"
    path.write_text(engine_file(found, engine.on({"gpu": "h100"}), engine.sources, engine.title, given))
    scheduler = build(model="llama-3.1-8b", engine=str(path), num_requests=1).scheduler
    assert (scheduler.max_num_seqs, scheduler.num_kv_blocks) == (77, 3000)
    assert load_engine(str(path)).sources["scheduler.max_num_seqs"] == "given when the server was fitted"


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
    with pytest.raises(InputError, match="50 requests are too few"):
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
