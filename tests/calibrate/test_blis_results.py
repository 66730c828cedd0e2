"""What BLIS writes of a run's requests, and the flags of its `calibrate`."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blis_py.calibrate.read_times import read_token_times
from blis_py.cli import main
from blis_py.errors import InputError

Calibrate = Callable[..., tuple[dict[str, Any], str]]
RUN = ["run", "--model", "qwen3-8b", "--workload", "chatbot", "--rate", "5", "--num-requests", "40"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder, and beside it what BLIS would have written of it, and of another run."""
    folder = tmp_path_factory.mktemp("runs")
    for name, more in (("out", []), ("other", ["--seed", "7"])):
        flags = ["--out", name, "--no-plots", "--format", "json", "--no-cross-check"]
        paths = [str(folder / word) if word == name else word for word in flags]
        written = ["--results-path", str(folder / f"{name}.results.json")]
        written += ["--metrics-path", str(folder / f"{name}.metrics.json")]
        assert main([*RUN, *more, *paths, *written]) == 0
    return folder


@pytest.fixture
def calibrate(capsys: pytest.CaptureFixture[str]) -> Calibrate:
    def call(*words: object) -> tuple[dict[str, Any], str]:
        capsys.readouterr()
        assert main(["calibrate", *map(str, words), "--format", "json"]) == 0
        out, err = capsys.readouterr()
        return json.loads(out), err

    return call


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["results", "metrics"])
def test_a_run_is_the_same_by_its_folder_and_by_what_blis_writes_of_it(
    kind: str, files: Path, calibrate: Calibrate
) -> None:
    """As measured run, too; E2E of BLIS counts what comes behind the last token."""
    written = files / f"out.{kind}.json"
    for measured, predicted in ((files / "out", written), (written, files / "out")):
        report, err = calibrate(measured, "--results", predicted)
        assert report["requests"] == 40
        assert all(latency["mape"] < 0.02 for latency in report["latencies"])
        read_as = {written: f"{kind} of BLIS (--{kind}-path)", files / "out": "TraceV2"}
        first, second = read_as[measured], read_as[predicted]
        assert f"{measured} is read as {first}, {predicted} as {second}\n" in err
        assert report["requests_per_s"]["predicted"] == pytest.approx(
            report["requests_per_s"]["measured"], rel=0.01
        )
        lines = [note for note in report["notes"] if "matched by number and lengths alone" in note]
        assert len(lines) == (kind == "results")


def test_blis_in_the_words_of_blis(files: Path, calibrate: Calibrate, tmp_path: Path) -> None:
    words = ["--trace-header", files / "out" / "trace.yaml", "--trace-data", files / "out" / "trace.csv"]
    words += ["--sim-results", files / "out.results.json", "--report", tmp_path / "report.json"]
    report, _ = calibrate(*words, "--warmup-requests", 4, "--network-rtt-us", 250_000)
    assert report == json.loads((tmp_path / "report.json").read_text())
    assert report["requests"] == 36
    ttft = report["latencies"][0]["seconds"]["mean"]
    assert ttft["predicted"] - ttft["measured"] == pytest.approx(0.25, abs=1e-3)


@pytest.mark.parametrize("kind", ["results", "metrics"])
def test_runs_of_other_requests_are_still_refused(kind: str, files: Path) -> None:
    """The same numbers, and as many of them."""
    from blis_py.calibrate.compare import calibrate as compare

    measured, other = (read_token_times(files / name) for name in ("out", f"other.{kind}.json"))
    with pytest.raises(InputError, match="not of the same requests"):
        compare(measured, other)


def test_the_header_states_the_warm_up_and_the_network_unless_flags_do(
    files: Path, calibrate: Calibrate, tmp_path: Path
) -> None:
    header = tmp_path / "header.yaml"
    text = (files / "out" / "trace.yaml").read_text().replace("warm_up_requests: 0", "warm_up_requests: 10")
    header.write_text(text + "network: {measured_rtt_ms: 100}\ngoodput_slo_targets: {default: {e2e_ms: 1}}\n")
    words = [files / "out", "--results", files / "out", "--trace-header", header]
    report, _ = calibrate(*words)
    ttft = report["latencies"][0]["seconds"]["mean"]
    assert (report["requests"], report["goodput"][0]["measured"]) == (30, 0.0)
    assert ttft["predicted"] - ttft["measured"] == pytest.approx(0.1)
    again, _ = calibrate(*words, "--warmup-requests", 0, "--network-rtt-us", 0, "--slo-e2e", "default=1000s")
    assert (again["requests"], again["goodput"][0]["predicted"]) == (40, 1.0)
    assert all(latency["mape"] == 0 for latency in again["latencies"])


def test_the_bandwidth_of_the_network_counts_four_bytes_a_token(files: Path, calibrate: Calibrate) -> None:
    report, _ = calibrate(files / "out", "--results", files / "out", "--network-bandwidth-mbps", 0.1)
    run = read_token_times(files / "out")
    assert run.prompt_tokens is not None
    up_s, down_s = (float(tokens.mean()) * 32 / 1e5 for tokens in (run.prompt_tokens, run.output_tokens))
    added = {
        latency["latency"]: latency["seconds"]["mean"]["predicted"] - latency["seconds"]["mean"]["measured"]
        for latency in report["latencies"]
    }
    assert added["ttft"] == pytest.approx(up_s)
    assert added["e2e"] == pytest.approx(up_s + down_s)


def test_results_of_the_peer_are_those_of_its_recorded_run(
    shared_data: Path, calibrate: Calibrate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it wrote with --results-path beside what it wrote with --metrics-path."""
    folder = shared_data / "peer_runs" / "26_goodput_multi_model"
    for name in ("results", "metrics"):
        (tmp_path / f"{name}.json").write_bytes(gzip.decompress((folder / f"{name}.json.gz").read_bytes()))
    report, _ = calibrate(tmp_path / "metrics.json", "--results", tmp_path / "results.json")
    assert report["requests"] == 153
    assert all(latency["mape"] < 1e-6 for latency in report["latencies"])


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "no request completed"),
        ([{"request_id": 1, "ttft_us": 1, "e2e_us": 2}], "input_tokens: must be a number"),
        ([{"request_id": 1, "ttft_us": "x", "e2e_us": 2}], "ttft_us: must be a number"),
        ([7], "must be a JSON object|not a run"),
        ({"requests": [{"requestID": "request_1", "e2e_ms": 0}]}, "no request completed"),
        ({"requests": [{"requestID": "request_1", "e2e_ms": 5}]}, "arrived_at: must be a number"),
    ],
)
def test_results_that_lack_something_are_refused(document: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text(json.dumps(document))
    with pytest.raises(InputError, match=message):
        read_token_times(path)


def test_the_same_request_twice_is_refused(tmp_path: Path) -> None:
    one = {"request_id": 3, "ttft_us": 10, "e2e_us": 20, "input_tokens": 4, "output_tokens": 2}
    (tmp_path / "results.json").write_text(json.dumps([one, one]))
    with pytest.raises(InputError, match="the same request twice"):
        read_token_times(tmp_path / "results.json")
