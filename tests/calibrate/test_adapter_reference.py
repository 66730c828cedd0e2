"""`calibrate --adapter-reference`: runs with LoRA adapters against a reference, as BLIS compares them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from blis_py.cli import main

REFERENCE: dict[str, Any] = {
    "model": "Llama-3.1-8B-Instruct",
    "adapter_aware": {"ttft": 100.0, "output_throughput": 2000.0, "total_throughput": 4000.0},
    "adapter_blind": {"ttft": 80.0, "output_throughput": 2500.0, "total_throughput": 5000.0},
}
Files = dict[str, Path]


def metrics(ttft_ms: float, tokens: int) -> dict[str, Any]:
    return {"ttft_mean_ms": ttft_ms, "total_output_tokens": tokens, "vllm_estimated_duration_s": 10.0}


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """110 ms and 1,500 tokens/s with adapters; 88 ms and 2,000 without."""
    documents = {"reference": REFERENCE, "aware": metrics(110.0, 15_000), "blind": metrics(88.0, 20_000)}
    for name, document in documents.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    return {name: tmp_path / f"{name}.json" for name in (*documents, "report")}


def calibrate(*words: object) -> int:
    return main(["calibrate", *map(str, words)])


def test_each_metric_is_compared_with_its_reference_and_the_limit(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--adapter-reference", files["reference"], "--sim-metrics", files["aware"])
    assert calibrate(*flags, "--format", "table") == 0
    out = capsys.readouterr().out
    assert "Llama-3.1-8B-Instruct" in out
    assert "mean TTFT: 100 ms in the reference, 110 simulated: error 10.0%, within 20%\n" in out
    line = "output throughput: 2,000 tokens/s in the reference, 1,500 simulated: error 25.0%, exceeds 20%\n"
    assert line in out


def test_the_report_is_that_of_blis(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    """Ratios: 110 / 88 is the reference's 100 / 80; 0.75 against 0.8 is 6.25 % off."""
    flags = ("--adapter-reference", files["reference"], "--sim-metrics", files["aware"])
    more = (
        "--sim-metrics-blind",
        files["blind"],
        "--adapter-mape-threshold",
        0.3,
        "--report",
        files["report"],
    )
    assert calibrate(*flags, *more) == 0
    report = json.loads(files["report"].read_text())
    assert report["model"] == "Llama-3.1-8B-Instruct"
    assert report["mape_threshold"] == 0.3
    assert report["all_within_threshold"] is True
    ttft, throughput = report["metrics"]
    assert ttft == pytest.approx(
        {"metric": "ttft", "dt_value": 100.0, "blis_value": 110.0, "mape": 0.1}
        | {"within_threshold": True, "delta_mape": 0.0}
    )
    assert throughput == pytest.approx(
        {"metric": "throughput", "dt_value": 2000.0, "blis_value": 1500.0, "mape": 0.25}
        | {"within_threshold": True, "delta_mape": 0.0625}
    )


def test_a_ratio_without_a_base_is_left_out_and_named(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    files["reference"].write_text(json.dumps(REFERENCE | {"adapter_blind": {"ttft": 80.0}}))
    flags = ("--adapter-reference", files["reference"], "--sim-metrics", files["aware"])
    assert calibrate(*flags, "--sim-metrics-blind", files["blind"], "--format", "json") == 0
    out, err = capsys.readouterr()
    ttft, throughput = json.loads(out)["metrics"]
    assert "delta_mape" in ttft
    assert "delta_mape" not in throughput
    assert "note: no ratio of throughput: it is 0 without adapters" in err


def test_flags_of_the_other_comparison_are_named_not_refused(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    """BLIS accepts them beside the reference and does not read them."""
    flags = ("--adapter-reference", files["reference"], "--sim-metrics", files["aware"])
    assert calibrate(*flags, "--trace-data", "none.csv", "--num-gpus", 4) == 0
    assert (
        "note: --adapter-reference compares totals alone; not used: --trace, --num-gpus"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--adapter-reference", "reference"), "--sim-metrics: needs the run with adapters"),
        (("--sim-metrics-blind", "blind"), "--sim-metrics-blind: belongs to --adapter-reference"),
        (("--adapter-mape-threshold", "0.1"), "--adapter-mape-threshold: belongs to --adapter-reference"),
        (("--adapter-reference", "reference", "--sim-metrics", "reference"), "vllm_estimated_duration_s"),
        (("--adapter-reference", "aware", "--sim-metrics", "aware"), "adapter_aware.ttft: must be a number"),
        (
            ("--adapter-reference", "reference", "--sim-metrics", "aware", "--adapter-mape-threshold", "0"),
            "must be a number above 0",
        ),
        (
            ("--adapter-reference", "reference", "--sim-metrics", "aware", "--plot", "x.png"),
            "--plot: draws requests",
        ),
    ],
)
def test_what_is_missing_is_refused_by_name(
    words: tuple[str, ...], complaint: str, files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    assert calibrate(*(files.get(word, word) for word in words)) == 2
    assert complaint in capsys.readouterr().err
