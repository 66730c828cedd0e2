"""`--launch` on the command line: under the flags beside it, in results, and in plans."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from blis_py.cli.flags.configure import configure, overrides
from blis_py.cli.flags.parser import parse
from blis_py.cli.verbs import plan, run

Blis = Callable[..., tuple[int, str, str]]
LINE = "vllm serve Qwen/Qwen3-14B --tensor-parallel-size 2 --max-num-seqs 32 --frob 1 --port 80 --enable-lora"


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "serve.sh"
    path.write_text("vllm serve $MODEL -tp ${TP:-2} --max-num-seqs 32 --no-enable-prefix-caching\n")
    return str(path)


def resolved(*words: str) -> dict[str, object]:
    flags = parse(list(words), run.GROUPS)
    assert flags is not None
    config = configure(flags)
    return {
        "model": config.model,
        "tp": config.tp,
        "seqs": config.scheduler.max_num_seqs,
        "engine": config.engine,
    }


def test_a_script_is_read_with_the_variables_that_are_given(script: str) -> None:
    words = ("--launch", script, "--launch-env", "MODEL=Qwen/Qwen3-14B")
    assert resolved(*words) == {"model": "Qwen/Qwen3-14B", "tp": 2, "seqs": 32, "engine": "vllm"}
    assert resolved(*words, "--launch-env", "TP=4")["tp"] == 4


def test_flags_beside_it_win(script: str) -> None:
    words = ("--launch", script, "--model", "qwen3-8b", "--tp", "1", "--set", "scheduler.max_num_seqs=8")
    assert resolved(*words, "--engine", "vllm-0.12") == {
        "model": "qwen3-8b",
        "tp": 1,
        "seqs": 8,
        "engine": "vllm-0.12",
    }
    flags = parse([*words, "--enable-prefix-caching"], run.GROUPS)
    assert flags is not None
    assert configure(flags).scheduler.prefix_cache == "hash"


def test_what_was_read_is_said_once_and_stands_in_the_result(blis: Blis) -> None:
    code, out, err = blis("run", "--launch", LINE, "--num-requests", "5", "--no-cross-check")
    assert code == 0, err
    lines = [
        "launch: vLLM, Qwen/Qwen3-14B, TP2, GPU not named (--launch:1)",
        "not modelled: --enable-lora: adapters take memory and time",
        "not known, and not counted: --frob 1",
        "changes nothing: --port",
    ]
    for each in lines:
        assert err.count(f"note: {each}") == 1
        assert each in json.loads(out)["notes"]


def test_pools_of_a_launch_file_run_and_take_flags_for_all_of_them(blis: Blis, tmp_path: Path) -> None:
    path = tmp_path / "pair.sh"
    line = "sglang serve --model-path Qwen/Qwen3-14B --disaggregation-mode $role --max-running-requests 64"
    path.write_text(f"for role in prefill decode; do\n{line}\ndone\n")
    words = ("run", "--launch", path, "--num-requests", "5", "--max-num-seqs", "16")
    code, _, err = blis(*words, "--no-plots", "--out", tmp_path / "out")
    assert code == 0, err
    saved = (tmp_path / "out" / "config.yaml").read_text()
    assert "role: prefill" in saved
    assert "max_num_seqs: 16" in saved
    assert "max_num_seqs: 64" not in saved


def test_a_saved_run_of_a_launch_file_runs_again_without_it(blis: Blis, tmp_path: Path) -> None:
    first = blis("run", "--launch", LINE, "--num-requests", "5", "--no-cross-check", "--out", tmp_path / "a")
    assert first[0] == 0, first[2]
    again = blis("run", "--config", tmp_path / "a" / "config.yaml", "--no-cross-check")
    ours, theirs = (json.loads(each[1]) for each in (first, again))
    assert ours["cluster"] == theirs["cluster"]


def test_a_plan_varies_what_a_launch_file_says_and_chooses_the_number_of_instances(tmp_path: Path) -> None:
    path = tmp_path / "two.sh"
    path.write_text("vllm serve Qwen/Qwen3-14B -tp 2\n" * 2)
    flags = parse(["--launch", str(path), "--vary", "tp=1,2"], plan.GROUPS)
    assert flags is not None
    keys = {key for _, key, _ in overrides(flags, ("num_instances",))}
    assert {"model", "engine"} <= keys
    assert not {"tp", "num_instances"} & keys
    assert "num_instances" in {key for _, key, _ in overrides(flags)}


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--launch", "gone.sh"), "--launch: no such file"),
        (("--launch", LINE, "--launch-env", "X"), "--launch-env: must look like NAME=VALUE"),
        (("--model", "qwen3-14b", "--launch-env", "X=1"), "--launch-env: has no script to be for"),
        (("--launch", "vllm serve Qwen/Qwen3-14B -tp $TP"), "give it with --launch-env TP=…"),
        (
            ("--launch", "vllm serve Qwen/Qwen3-14B --block-size 0"),
            "--launch: --block-size: must be at least 1",
        ),
        (("--launch", "vllm serve Org/Unknown-1B"), "unknown model"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(
    blis: Blis, words: tuple[str, ...], complaint: str
) -> None:
    code, out, err = blis("run", *words)
    assert (code, out) == (2, "")
    assert complaint in err
