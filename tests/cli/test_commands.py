"""Every command does its smallest job; what each is about has tests of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from blis_py.cli import main
from blis_py.cli.program import BLIS

Blis = Callable[..., tuple[int, str, str]]
SMALL = "--model llama-3.1-8b --num-requests 20 --rate 8 --output-tokens 30 --output-tokens-stdev 9"
FEW = "--most-requests 80 --workers 1 --no-cache"
JOBS = {
    "run": (SMALL, '"completed": 20'),
    "replay": ("--model llama-3.1-8b --trace one/trace.csv", '"completed": 20'),
    "serve": ("--model llama-3.1-8b --port 99999", "--port: must be from 0 to 65,535"),
    "observe": ("--server-url http://127.0.0.1:1", "--out: is needed"),
    "plan": (f"{SMALL} --slo ttft.p99=2s --max-rate {FEW} --no-tuning --draws 0", '"holds": true'),
    "sweep": (f"{SMALL} --vary num_instances=1,2 --workers 1 --no-cache", '"status": "ok"'),
    "convert": ("one/trace.csv mooncake.jsonl --to mooncake", "20 requests"),
    "compose": ("--from one/trace.csv --from two/trace.csv --out both.csv", "40 requests"),
    "plot": ("one --out figures --figure latency_cdf", "latency_cdf.png"),
    "report": ("one --out report.html", "report.html"),
    "ui": ("--port 99999", "--port: must be a port"),
    "explain": ("one", '"question": "TTFT p99"'),
    "compare": ("one two", '"settings"'),
    "calibrate": ("one --results two", "ttft"),
    "parity": ("one", "not a step log"),
    "models": ("", '"name": "llama-3.1-8b"'),
    "gpus": ("", '"name": "h100"'),
    "engines": ("", '"name": "sglang"'),
    "profile": ("show cpu/tiny-ar", '"provenance"'),
    "engine": ("-h", "The real engine"),
}
"""Flags of every command, and what it says."""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the results of two runs of the same requests."""
    folder = tmp_path_factory.mktemp("results")
    for name, scheduler in (("one", "fcfs"), ("two", "sjf")):
        flags = (*SMALL.split(), "--scheduler", scheduler, "--no-plots", "--out", str(folder / name))
        assert main(["run", *flags]) == 0
    return folder


@pytest.mark.parametrize("verb", BLIS.verbs)
def test_it_does_its_job(verb: str, blis: Blis, results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if verb == "serve":
        pytest.importorskip("fastapi", reason="the extra serve is not installed")
    monkeypatch.chdir(results)
    flags, said = JOBS[verb]
    _, out, err = blis(verb, *flags.split())
    assert said in out + err
