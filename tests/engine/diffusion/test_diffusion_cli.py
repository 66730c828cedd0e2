"""`blis engine generate` and `bench throughput` with a block-diffusion model."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from blis_py.calibrate.parity import replay_steps
from blis_py.cli import main
from blis_py.traces.steplog import read_step_log
from engine.tiny import checkpoint
from engine.tiny.tasks import check

MODEL = ["--model", str(checkpoint("diffusion")), "--device", "cpu", "--num-kv-blocks", "64"]
AUTOREGRESSIVE = ["--model", str(checkpoint("ar")), "--device", "cpu", "--num-kv-blocks", "64"]


def json_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    capsys.readouterr()
    assert main(["engine", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def test_prompts_are_answered_without_asking_for_temperature_0(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    log = tmp_path / "steps.csv"
    prompts = ["12+30=", "copy: abc -> "]
    given = [word for prompt in prompts for word in ("--prompt", prompt)]
    limits = ["--max-tokens", "40", "--step-log", str(log), "--format", "jsonl"]
    assert main(["engine", "generate", *MODEL, *given, *limits]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [check(row["prompt"], row["text"]) for row in rows] == [True, True]
    parity = replay_steps(read_step_log(log))
    assert parity.first is None
    assert parity.steps > 1


def test_every_algorithm_and_combination_of_the_switches_answers(capsys: pytest.CaptureFixture[str]) -> None:
    switches = ("fdfo", "in-place-reuse", "re-loop")
    texts = set()
    for no in product([True, False], repeat=3):
        flags = [f"--{'no-' if off else ''}dllm-{name}" for name, off in zip(switches, no, strict=True)]
        row = json_of(capsys, "generate", *MODEL, "--prompt", "sort: cab -> ", "--max-tokens", "32", *flags)
        texts.add(row["text"])
    assert len(texts) == 1
    for name in ("LowConfidence", "JointThreshold", "TopKPerStep"):
        flags = ["--prompt", "1+1=", "--max-tokens", "8", "--dllm-algorithm", name]
        assert json_of(capsys, "generate", *MODEL, *flags)["token_ids"]


def test_throughput_shows_rounds(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    parameters = tmp_path / "algorithm.yaml"
    parameters.write_text("tokens_per_step: 16\n")
    sizes = ["--num-prompts", "5", "--input-len", "40", "--output-len", "56", "--max-num-seqs", "2"]
    dllm = ["--dllm-algorithm", "TopKPerStep", "--dllm-config", str(parameters)]
    result = json_of(capsys, "bench", "throughput", *MODEL, *sizes, *dllm)
    assert (result["num_requests"], result["total_num_tokens"]) == (5, 5 * 96)
    # of the first block 8 positions are prompt and 24 open: two rounds and the commit; the second is full
    assert result["diffusion"]["steps_per_block"] == 3


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([*AUTOREGRESSIVE, "--no-dllm-fdfo"], "--no-dllm-fdfo: the model is autoregressive"),
        ([*MODEL, "--dllm-fdfo", "--no-dllm-fdfo"], "contradicts --no-dllm-fdfo"),
        ([*MODEL, "--dllm-algorithm", "Best"], "--dllm-algorithm: unknown algorithm"),
        ([*MODEL, "--block-size", "16"], "a page must hold whole diffusion blocks"),
        ([*MODEL, "--temperature", "1"], "block diffusion takes the best tokens"),
    ],
)
def test_what_cannot_be_is_refused(
    capsys: pytest.CaptureFixture[str], arguments: list[str], problem: str
) -> None:
    assert main(["engine", "generate", *arguments, "--prompt", "1+1="]) == 2
    assert problem in capsys.readouterr().err
