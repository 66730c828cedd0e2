"""A measured run is compared with the simulated servers of a launch file, in one command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from blis_py.api import run

Blis = Callable[..., tuple[int, str, str]]
LINE = "vllm serve Qwen/Qwen3-14B -tp 2 --max-num-seqs {} --no-enable-prefix-caching"


@pytest.fixture
def blis(command: Blis) -> Blis:
    """Runs one command line in this process."""
    return command


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """The run of a server with eight requests at a time."""
    server = {"model": "qwen3-14b", "tp": 2, "gpu": "h200", "max_num_seqs": 8, "prefix_cache": "none"}
    run(num_requests=40, rate=30, output_tokens=30, **server).save(tmp_path / "measured", plots=False)
    return tmp_path / "measured"


def test_the_launch_file_of_the_measured_server_agrees_and_another_one_does_not(
    blis: Blis, measured: Path, tmp_path: Path
) -> None:
    path = tmp_path / "serve.sh"
    path.write_text(LINE.format("${SEQS:-8}"))
    errors = []
    for seqs in (8, 2):
        words = ("calibrate", measured, "--launch", path, "--launch-env", f"SEQS={seqs}", "--gpu", "h200")
        code, out, err = blis(*words, "--format", "json")
        assert code == 0, err
        assert "note: launch: vLLM, Qwen/Qwen3-14B, TP2" in err
        ttft = json.loads(out)["latencies"][0]
        assert ttft["latency"] == "ttft"
        errors.append(ttft["seconds"]["mean"]["error"])
    assert errors[0] == pytest.approx(0, abs=1e-3)
    assert errors[1] > 0.2


def test_out_keeps_the_simulated_run(blis: Blis, measured: Path, tmp_path: Path) -> None:
    words = ("calibrate", measured, "--launch", LINE.format(8), "--gpu", "h200", "--autopsy")
    code, out, err = blis(*words, "--out", tmp_path / "predicted")
    assert code == 0, err
    assert "TTFT" in out
    again, same, _ = blis("calibrate", measured, "--results", tmp_path / "predicted", "--autopsy")
    assert again == 0
    assert same.splitlines()[1:] == out.splitlines()[1:]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--launch", LINE.format(8), "--results", "x"), "--launch: is simulated here, and --results is a"),
        (("--gpu", "h200", "--results", "x"), "--gpu: is of servers that are simulated here"),
        (("--launch", "gone.sh"), "--launch: no such file"),
        ((), "give --results PATH, or --launch FILE of the servers"),
    ],
)
def test_what_contradicts_itself_is_refused(
    blis: Blis, measured: Path, words: tuple[str, ...], complaint: str
) -> None:
    code, out, err = blis("calibrate", measured, *words)
    assert (code, out) == (2, "")
    assert complaint in err
