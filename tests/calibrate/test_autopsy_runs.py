"""The autopsy of two folders: what the engine left, and what the simulation left."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from planted_run import CONFIG, COSTS, Arrival, chat, record_run

from blis_py.calibrate.autopsy_runs import autopsy_of_runs, read_prediction
from blis_py.calibrate.rerun import rerun_record
from blis_py.cli import main
from blis_py.errors import InputError
from blis_py.latency.linear import Linear
from blis_py.traces.steplog import write_step_log
from blis_py.traces.tracev2_write import write

TIGHT = dataclasses.replace(CONFIG, num_kv_blocks=100)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with 100 blocks, whose true prices are known."""
    folder: Path = tmp_path_factory.mktemp("measured")
    arrivals = [Arrival(a.time_ns, a.prompt, a.output, []) for a in chat(80, 11.0)]
    log = record_run(arrivals, TIGHT)
    write_step_log(log, folder / "steps.csv.gz")
    record = rerun_record(log, Linear(COSTS))
    write(record.table, folder / "trace.yaml", folder / "trace.csv", record=record)
    return folder


def simulate(measured: Path, out: Path, *flags: object) -> Path:
    settings = {"gpu": dataclasses.asdict(COSTS.gpu), "host": dataclasses.asdict(COSTS.host)}
    prices = [
        f"latency.linear.{part}.{name}={value}"
        for part, of in settings.items()
        for name, value in of.items()
        if value
    ]
    arguments: list[object] = ["replay", "--trace", measured / "trace.csv", "--model", "qwen3-0.6b"]
    arguments += ["--latency-model", "linear", *(word for price in prices for word in ("--set", price))]
    arguments += ["--max-num-seqs", 16, "--max-num-batched-tokens", 256, "--max-model-len", 1600]
    arguments += ["--no-plots", "--out", out, *flags]
    assert main([str(argument) for argument in arguments]) == 0
    return out


def figures(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    capsys.readouterr()
    assert main(["calibrate", *map(str, arguments), "--autopsy", "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)["autopsy"]


@pytest.mark.slow
def test_the_command_names_the_wrong_capacity(
    measured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = simulate(measured, tmp_path / "sim", "--num-kv-blocks", 200, "--record-itl")
    data = figures(capsys, measured, "--results", results)
    assert data["first_cause"] == "kv_capacity"
    fixes = {cause["cause"]: cause["fix"] for cause in data["causes"]}
    assert fixes["kv_capacity"] == "--num-kv-blocks 100"
    assert fixes["scheduler"] == "--max-model-len 2048"
    contributing = [cause["cause"] for cause in data["causes"] if cause["contributes"]]
    assert contributing == ["kv_capacity"]
    assert data["notes"] == ["the client has no ITL: that of the engine is used"]
    for metric, error in data["error_ns"].items():
        assert error == sum(cause["share_ns"][metric] for cause in data["causes"])

    assert (
        main(["calibrate", str(measured), "--results", str(results), "--autopsy", "--format", "table"]) == 0
    )
    assert "first cause: KV capacity" in capsys.readouterr().out


def test_requests_before_the_warm_up_do_not_count(
    measured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = simulate(measured, tmp_path / "sim", "--num-kv-blocks", 100)
    data = figures(capsys, measured, "--results", results, "--warm-up-requests", 30)
    assert (data["requests"], data["left_out"]) == (50, 0)
    # A trace has whole microseconds.
    assert all(abs(error) < 1000 for error in data["error_ns"].values())


@pytest.mark.slow
def test_other_lengths_are_read_from_the_simulated_run(measured: Path, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    arrivals = [Arrival(a.time_ns, a.prompt, 2 * a.output, []) for a in chat(80, 11.0)]
    record = rerun_record(record_run(arrivals, CONFIG), Linear(COSTS))
    write(record.table, folder / "trace.yaml", folder / "trace.csv")
    results = simulate(folder, tmp_path / "sim", "--num-kv-blocks", 100)
    made = read_prediction(results)
    assert made.scheduler == dataclasses.replace(TIGHT, max_model_len=1600)
    assert made.lengths[3] == (arrivals[3].prompt, arrivals[3].output)
    result = autopsy_of_runs(measured, results)
    assert result.first.name == "token_counts"
    assert "outputs are 50.0% shorter" in result.first.found


def test_what_cannot_be_taken_apart_is_refused(measured: Path, tmp_path: Path) -> None:
    results = simulate(measured, tmp_path / "two", "--num-kv-blocks", 200, "--num-instances", 2)
    with pytest.raises(InputError, match="one instance"):
        autopsy_of_runs(measured, results)
    with pytest.raises(InputError, match="not a step log"):
        autopsy_of_runs(results, results)
    with pytest.raises(InputError, match="no step log"):
        autopsy_of_runs(tmp_path, results)
    with pytest.raises(InputError, match="not the folder of a simulated run"):
        autopsy_of_runs(measured, measured)
