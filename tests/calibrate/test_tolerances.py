"""Verdicts on tolerances, with the flags of BLIS's calibrate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import blis_py as blis
from blis_py.cli import main


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, its metrics, and another of the same requests on a slower GPU."""
    folder = tmp_path_factory.mktemp("tolerances")
    settings = {"model": "qwen3-14b", "num_requests": 30, "rate": 4}
    blis.run(**settings).save(folder / "real", plots=False)
    blis.run(**settings, gpu="l40s").save(folder / "slow", plots=False)
    (folder / "metrics.json").write_text(json.dumps({"cache_hit_rate": 0.30}))
    return folder


def calibrate(runs: Path, capsys: pytest.CaptureFixture[str], *flags: object) -> tuple[int, str, str]:
    arguments = ["calibrate", runs / "real", "--results", runs / "slow", *flags, "--format", "table"]
    code = main([str(each) for each in arguments])
    return code, *capsys.readouterr()


def observed(runs: Path, tmp_path: Path, rate: object) -> Path:
    header = tmp_path / "trace.yaml"
    own = (runs / "real" / "trace.yaml").read_text()
    header.write_text(f"{own}observed_kv_metrics: {{hit_rate: {rate}}}\n")
    return header


def test_an_error_beyond_its_tolerance_exceeds_it(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--ttft-mape-threshold", 0.15, "--throughput-tolerance-pct", 90, "--num-gpus", 4)
    code, out, _ = calibrate(runs, capsys, *flags)
    assert code == 0
    assert "exceeds 15 %" in out
    assert "within 90 %" in out
    assert "of each of 4 GPUs" in out


@pytest.mark.parametrize(("tolerance", "verdict"), [(5, "exceeds 5 points"), (10, "within 10 points")])
def test_hit_rates_are_compared_in_points(
    tolerance: float, verdict: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header = observed(runs, tmp_path, 0.38)
    flags = ("--sim-metrics", runs / "metrics.json", "--hit-rate-tolerance-pp", tolerance)
    _, out, _ = calibrate(runs, capsys, "--trace-header", header, *flags)
    assert f"KV cache hit rate: 0.38 measured, 0.3 predicted: 8.0 points, {verdict}" in out


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (("--sim-metrics", "metrics.json"), "has no observed_kv_metrics"),
        (("--ttft-mape-threshold", "-1"), "--ttft-mape-threshold: must be a number of at least 0"),
        (("--num-gpus", "-1"), "--num-gpus"),
    ],
)
def test_what_cannot_be_judged_is_refused(
    flags: tuple[str, ...], complaint: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = calibrate(runs, capsys, *flags)
    assert code == 2
    assert complaint in err


def test_a_hit_rate_that_is_no_share_is_refused(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = calibrate(runs, capsys, "--trace-header", observed(runs, tmp_path, 38))
    assert code == 2
    assert "observed_kv_metrics.hit_rate: must be a share" in err
