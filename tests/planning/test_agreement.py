"""Whether a model agrees with a measured run is said in one line, with what is known of the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from blis_py.api import configure
from blis_py.calibrate.tried_advice import config_of
from blis_py.cli import main
from blis_py.planning.agreement import Agreement, client_lateness, known_errors

RUN = ["run", "--model", "llama-3.1-8b", "--rate", "6", "--num-requests", "60"]
QUICK = ["--no-cross-check", "--no-plots", "--format", "json"]


def simulated(folder: Path, *flags: str) -> Path:
    assert main([*RUN, *flags, *QUICK, "--out", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return simulated(tmp_path_factory.mktemp("results") / "sim")


def verdict(measured: Path, results: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["calibrate", str(measured), "--results", str(results), "--format", "json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)["agreement"]
    return found


def test_a_run_agrees_with_itself(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = verdict(results, results, capsys)
    assert found["agrees"]
    assert found["line"].startswith("the model agrees within its known error: mean TTFT +0.0% (known ")
    assert set(found["known_errors"]) == {"TTFT", "TPOT", "E2E"}


def test_a_server_of_other_step_times_is_beyond_the_known_error(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = simulated(tmp_path / "other", "--set", "latency.step_scale=3")
    found = verdict(other, results, capsys)
    assert found["agrees"] is False
    assert found["line"].startswith("the model is off by more than its known error in ")


def test_the_known_error_is_that_of_validated_runs() -> None:
    known, source = known_errors(configure(model="llama-3.1-8b"))
    assert 0.0 < known["TPOT"] < 0.3
    assert "measured runs" in source
    assert known_errors(configure(model="llama-3.1-8b", latency_model="roofline"))[0] == {} or known


def test_without_a_configuration_the_verdict_is_open(results: Path) -> None:
    assert config_of(results / "trace.csv") is not None
    assert config_of(results.parent / "none") is None
    line = Agreement({"TTFT": 0.5}, {}, "x has no configuration", {}).line
    assert line == (
        "whether the model agrees within its known error is open, x has no configuration: mean TTFT +50.0%"
    )


def test_that_the_client_was_late_is_in_the_verdict(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(
        "client: {send_error: {p99_ms: 36.9, mean_ms: 9.0, moves_ttft_mean_percent: 12.5}}\n"
    )
    late = client_lateness(tmp_path)
    assert late["p99_ms"] == 36.9
    line = Agreement({"TTFT": 0.01}, {"TTFT": 0.1}, "20 runs", late).line
    assert line.endswith(
        "the client itself was late, p99 36.9 ms: counted from the due times mean TTFT is 12.5 % longer"
    )
    punctual = Agreement({"TTFT": 0.01}, {"TTFT": 0.1}, "20 runs", {"p99_ms": 0.2}).line
    assert "late" not in punctual


def test_a_folder_without_a_client_says_nothing_of_lateness(tmp_path: Path) -> None:
    assert client_lateness(tmp_path) == {}
    (tmp_path / "run.yaml").write_text("schema: 1\n")
    assert client_lateness(tmp_path / "trace.csv") == {}


def test_a_latency_whose_error_is_not_known_leaves_the_verdict_open_or_negative() -> None:
    errors = {"TTFT": 4.8, "TPOT": -0.09}
    assert Agreement(errors, {"TPOT": 0.11}, "", {}).agrees is None
    assert Agreement(errors, {"TPOT": 0.05}, "", {}).agrees is False
    assert Agreement(errors, {"TPOT": 0.11, "TTFT": 0.11}, "", {}).agrees is False
    assert Agreement(errors, {"TPOT": 0.11, "TTFT": 5.0}, "", {}).agrees is True
    assert Agreement({}, {"TPOT": 0.11}, "", {}).agrees is None
