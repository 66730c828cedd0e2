"""The flags for the form of outputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from blis_py.cli import main
from blis_py.traces import read_trace
from blis_py.traces.steplog import read_step_log
from engine.tiny import checkpoint

TINY = ["--model", str(checkpoint("ar")), "--device", "cpu", "--num-kv-blocks", "64"]
LENGTHS = ["--prompt-tokens", "12", "--output-tokens", "8", "--output-tokens-stdev", "0"]
LOAD = ["--rate", "200", "--num-requests", "12", *LENGTHS, "--no-warm-up"]


def generated(capsys: pytest.CaptureFixture[str], *flags: str) -> list[dict[str, Any]]:
    assert main(["engine", "generate", *TINY, "--format", "jsonl", "--prompt", "sort: ba -> ", *flags]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("name", ["--regex", "--guided-regex"])
def test_generate_holds_outputs_to_a_form(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("xgrammar")
    (row,) = generated(capsys, name, "[xyz]{4}")
    assert len(row["text"]) == 4
    assert set(row["text"]) <= set("xyz")


def test_a_form_can_stand_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("xgrammar")
    (tmp_path / "schema.json").write_text('{"type": "integer", "minimum": 100, "maximum": 999}\n')
    (row,) = generated(capsys, "--json-schema", f"@{tmp_path / 'schema.json'}")
    assert 100 <= int(row["text"]) <= 999


def test_run_constrains_a_share_of_the_requests_and_reports_it(tmp_path: Path) -> None:
    pytest.importorskip("xgrammar")
    form = ["--regex", "[a-c ]+", "--constrained-share", "0.5"]
    assert main(["engine", "run", *TINY, *LOAD, *form, "--out", str(tmp_path / "run")]) == 0
    report = yaml.safe_load((tmp_path / "run" / "run.yaml").read_text())["structured_outputs"]
    assert report.items() >= {"form": "regex", "share": 0.5}.items()
    assert 0 < report["requests"] < 12
    log = read_step_log(tmp_path / "run" / "steps.csv.gz")
    assert sum(log.steps["constrained_rows"]) == 8 * report["requests"], "each of them has 8 tokens"
    assert sum(log.steps["emitted_rows"]) == 8 * 12
    assert sum(log.requests["constrained"]) == report["requests"]
    trace = read_trace(tmp_path / "run" / "trace.csv")
    assert trace.constrained is not None
    assert trace.constrained.tolist() == [bool(one) for one in log.requests["constrained"]]


def test_a_run_without_a_form_states_nothing_of_forms(tmp_path: Path) -> None:
    assert main(["engine", "run", *TINY, *LOAD, "--out", str(tmp_path / "run")]) == 0
    assert "structured_outputs" not in yaml.safe_load((tmp_path / "run" / "run.yaml").read_text())
    assert "mask_ns" not in read_step_log(tmp_path / "run" / "steps.csv.gz").steps


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--regex", "a", "--grammar", "b"], "--regex and --grammar"),
        (["--constrained-share", "0.5"], "add --json-schema, --regex or --grammar"),
        (["--regex", "a", "--constrained-share", "1.5"], "--constrained-share"),
        (["--regex", "a", "--structured-output-ratio", "-1"], "--structured-output-ratio"),
        (["--json-schema", "@missing.json"], "missing.json"),
    ],
    ids=str,
)
def test_wrong_flags_are_bad_input(
    flags: list[str], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["engine", "run", *TINY, *LOAD, *flags, "--out", str(tmp_path / "run")]) == 2
    assert problem in capsys.readouterr().err


def test_a_form_that_does_not_compile_is_reported_before_anything_is_served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("xgrammar")
    assert main(["engine", "run", *TINY, *LOAD, "--regex", "(a", "--out", str(tmp_path / "run")]) == 2
    assert "does not compile" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_block_diffusion_has_no_form_of_outputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    diffusion = ["--model", str(checkpoint("diffusion")), "--device", "cpu", "--num-kv-blocks", "64"]
    assert main(["engine", "generate", *diffusion, "--prompt", "1+1=", "--regex", "a"]) == 2
    assert "is not there for block diffusion" in capsys.readouterr().err
    assert main(["engine", "run", *diffusion, *LOAD, "--regex", "a", "--out", str(tmp_path / "run")]) == 2
    assert "block diffusion" in capsys.readouterr().err
