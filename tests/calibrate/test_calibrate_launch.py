"""A measured run is compared with the simulated servers of a launch file, in one command."""

from __future__ import annotations

import csv
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


def test_a_closed_loop_sends_when_the_simulated_server_has_ended(blis: Blis, tmp_path: Path) -> None:
    """The requests of a slow server's loop come faster to a fast one, and its own agrees with itself."""
    server = {"model": "qwen3-14b", "gpu": "h200", "max_num_seqs": 64, "prefix_cache": "none"}
    for name, more in {"slow": {"tp": 1}, "fast": {"tp": 4}}.items():
        loop = {"num_requests": 40, "concurrency": 4, "output_tokens": 30}
        run(**server, **more, **loop).save(tmp_path / name, plots=False)
    line = "vllm serve Qwen/Qwen3-14B -tp 4 --max-num-seqs 64 --no-enable-prefix-caching"
    ends = {}
    for name in ("slow", "fast"):
        out = tmp_path / f"out-{name}"
        words = ("calibrate", tmp_path / name, "--launch", line, "--gpu", "h200", "--concurrency", "4")
        code, _, err = blis(*words, "--out", out)
        assert code == 0, err
        ends[name] = _end_s(out)
    own = _end_s(tmp_path / "fast")
    assert ends["fast"] == pytest.approx(own, rel=1e-6)
    assert ends["slow"] == pytest.approx(own, rel=0.02)


def _end_s(folder: Path) -> float:
    with (folder / "requests.csv").open() as file:
        return max(float(row["finish_s"]) for row in csv.DictReader(file))


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
