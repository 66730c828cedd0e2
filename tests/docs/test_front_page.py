"""The commands of the front page's table run as they stand; a plan's are those of its guide."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

import blis_py as blis
from blis_py.calibrate.token_times import token_times
from blis_py.cli import main

PAGE = Path(__file__).resolve().parents[2] / "README.md"
TABLE = re.compile(r"^\| an? [^|]*\|[^|]*\| `blis ([^`]*)` \| \[", re.MULTILINE)
SERVERS, SLOW = ("serve",), ("plan",)


def commands() -> list[list[str]]:
    found = [shlex.split(text) for text in TABLE.findall(PAGE.read_text(encoding="utf-8"))]
    return [command for command in found if command[0] not in (*SERVERS, *SLOW)]


def test_each_kind_of_reader_has_a_command_and_a_guide() -> None:
    text = PAGE.read_text(encoding="utf-8").partition("## Where to start")[2].partition("## ")[0]
    for reader in ("a planner", "an SRE", "a researcher", "an engine author"):
        assert f"| {reader} |" in text
    for guide in ("plan", "launch", "explain", "calibrate"):
        assert f"](docs/{guide}.md" in text
    assert {command[0] for command in commands()} == {"run", "explain", "profile", "sweep", "parity"}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace, what a client of vLLM saw of 120 requests, and a launch script."""
    folder = tmp_path_factory.mktemp("front-page")
    run = blis.run(model="llama-3.1-8b", num_requests=120, rate=8, output_tokens=40, seed=3)
    seen, prompts = token_times(run.record, "run"), run.record.table.prompt_tokens.tolist()
    sent, outputs = seen.sent_s.tolist(), seen.output_tokens.tolist()
    rows = [",".join(map(str, row)) for row in zip(sent, prompts, outputs, strict=True)]
    (folder / "trace.csv").write_text("\n".join(["arrival_s,input_tokens,output_tokens", *rows, ""]))
    decoding = (seen.e2e_s - seen.ttft_s).tolist()
    result = {
        "start_times": sent,
        "ttfts": seen.ttft_s.tolist(),
        "itls": [
            [all_s / (n - 1)] * (n - 1) if n > 1 else [] for all_s, n in zip(decoding, outputs, strict=True)
        ],
        "input_lens": prompts,
        "output_lens": outputs,
    }
    (folder / "result.json").write_text(json.dumps(result))
    (folder / "serve.sh").write_text("vllm serve meta-llama/Llama-3.1-8B-Instruct --max-num-seqs 64\n")
    return folder


@pytest.mark.parametrize("command", commands(), ids=lambda command: command[0])
def test_a_command_of_the_front_page_runs_as_it_stands(
    command: list[str], recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(recorded)
    assert main(command) == 0
