"""`blis engine` from the command line, with random weights."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from blis_py.calibrate.parity import replay_steps
from blis_py.cli import main
from blis_py.traces.steplog import read_step_log


def json_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main(["engine", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def test_generate_prints_one_line_of_json_per_prompt(
    model: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one\ntwo\n")
    sampling = ["--temperature", "0", "--max-tokens", "4", "--ignore-eos"]
    assert main(["engine", "generate", *model, "--prompts-file", str(prompts), *sampling]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["prompt"] for row in rows] == ["one", "two"]
    assert all(len(row["token_ids"]) == 4 for row in rows)


def test_a_stream_gives_step_by_step_what_generate_gives_at_the_end(
    model: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    options = [
        "--prompt",
        "one",
        "--prompt",
        "two",
        "--temperature",
        "0",
        "--max-tokens",
        "4",
        "--ignore-eos",
    ]
    assert main(["engine", "generate", *model, *options]) == 0
    whole = {row["request_id"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    assert main(["engine", "generate", *model, *options, "--stream"]) == 0
    deltas = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for name, row in whole.items():
        own = [delta for delta in deltas if delta["request_id"] == name]
        assert [token for delta in own for token in delta["token_ids"]] == row["token_ids"]
        assert "".join(delta["text"] for delta in own) == row["text"]
        assert own[-1]["finish_reason"] == row["finish_reason"] == "length"
    assert len(deltas) == len(whole) * 5


def test_throughput_has_the_shape_of_vllms(model: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--num-prompts", "6", "--input-len", "20", "--output-len", "5", "--prefix-len", "32"]
    result = json_of(capsys, "bench", "throughput", *model, *sizes)
    assert (result["num_requests"], result["total_num_tokens"]) == (6, 6 * (20 + 32 + 5))
    assert result["tokens_per_second"] == pytest.approx(result["total_num_tokens"] / result["elapsed_time"])


def test_latency_has_the_shape_of_vllms(model: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--batch-size", "2", "--input-len", "8", "--output-len", "4", "--num-iters", "3"]
    result = json_of(capsys, "bench", "latency", *model, *sizes, "--clock", "cpu")
    assert len(result["latencies"]) == 3
    assert result["percentiles"]["50"] == sorted(result["latencies"])[1]


def test_a_replay_has_the_shape_of_vllms_and_its_step_log_replays_in_the_simulator(
    model: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    load = ["--num-requests", "12", "--rate", "50", "--prompt-tokens", "60", "--prompt-tokens-max", "90"]
    load += ["--output-tokens", "8", "--output-tokens-max", "16", "--prefix-tokens", "40"]
    log = tmp_path / "steps.csv"
    result = json_of(
        capsys, "bench", "replay", *model, *load, "--no-warm-up", "--clock", "cpu", "--step-log", str(log)
    )
    assert (result["completed"], result["failed"]) == (12, 0)
    assert 0 < result["mean_ttft_ms"] <= result["mean_e2el_ms"]
    recorded = read_step_log(log)
    assert replay_steps(recorded).share == 1.0
    assert sum(recorded.requests["cached_tokens"]) >= 11 * 32, "the shared prefix was found"
    assert sum(recorded.requests["output_tokens"]) == result["total_output_tokens"]


def test_a_replay_as_fast_as_possible_waits_for_no_arrival(
    model: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    load = ["--num-requests", "5", "--rate", "0.001", "--prompt-tokens", "20", "--output-tokens", "4"]
    load += ["--prompt-tokens-stdev", "0", "--output-tokens-stdev", "0", "--as-fast-as-possible"]
    result = json_of(capsys, "bench", "replay", *model, *load, "--no-warm-up")
    assert (result["completed"], result["request_rate"]) == (5, "inf")
    assert result["duration"] < 1000


def test_info_states_what_would_run(model: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    facts = json_of(capsys, "info", *model, "--block-size", "32")
    assert (facts["kv_blocks"], facts["kv_tokens"], facts["dtype"]) == (200, 6400, "float32")
    assert facts["attention_norm_mlp"] == "reference"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["fly"], "no such command"),
        (["bench", "fly"], "throughput, latency, replay"),
        (["generate"], "no prompts"),
        (
            ["generate", "--prompt", "a", "--prompt", "b", "--stream", "--format", "text"],
            "run into each other",
        ),
        (["generate", "--prompt", "x"], "no model given"),
        (["info", "--model", "/nowhere/at/all"], "neither a folder nor a bundled model"),
        (["info", "--model", "qwen3-0.6b", "--block-size", "20"], "not a page size"),
        (["info", "--model", "qwen3-0.6b", "--format", "csv"], "unknown format"),
        (["bench", "latency", "--model", "llada2.0-mini", "--load-format", "dummy"], "block-diffusion"),
        (["generate", "--prompt", "x", "--temperature", "hot"], "must be a number"),
    ],
    ids=" ".join,
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["engine", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert complaint in captured.err
    assert captured.err.count("\n") == 1


def test_without_torch_it_states_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import blis_py.cli.engine

    def find_spec(name: str) -> None:
        assert name == "torch"

    monkeypatch.setattr(blis_py.cli.engine, "find_spec", find_spec)
    assert importlib.util.find_spec("torch") is not None
    assert main(["engine", "info"]) == 1
    assert "pip install 'blis-py[engine]'" in capsys.readouterr().err
