"""A simulated run beside a measured one."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from blis_py.api import build
from blis_py.calibrate.compare import as_dict, calibrate
from blis_py.calibrate.read_times import read_token_times
from blis_py.calibrate.token_times import TokenTimes, token_times
from blis_py.cli import main
from blis_py.errors import InputError
from blis_py.figures import predicted_measured
from blis_py.report.calibration import print_calibration
from blis_py.requests.table import Labels
from blis_py.traces.itl import Ragged, read_gaps, write_itl

COLUMNS = (
    "request_id,slo_class,output_tokens,arrival_time_us,send_time_us,"
    "first_chunk_time_us,last_chunk_time_us,status"
)


def trace(path: Path, rows: list[str]) -> Path:
    path.write_text("\n".join([COLUMNS, *rows]) + "\n")
    return path


def times(
    ttft: list[float],
    e2e: list[float],
    tokens: int = 11,
    classes: list[str] | None = None,
    first: int = 0,
    gaps: list[list[float]] | None = None,
) -> TokenTimes:
    count = len(ttft)
    return TokenTimes(
        source="test",
        request_id=np.arange(first, first + count),
        slo_class=Labels.of(classes or [""] * count),
        output_tokens=np.full(count, tokens),
        sent_s=np.arange(count, dtype=np.float64),
        ttft_s=np.array(ttft),
        e2e_s=np.array(e2e),
        incomplete=0,
        gaps=Ragged(np.concatenate(gaps), np.array([len(g) for g in gaps])) if gaps else None,
    )


def test_a_run_compared_with_itself_has_no_error() -> None:
    run = times([0.1, 0.2, 0.4], [1.1, 2.2, 1.4])
    result = calibrate(run, run)
    assert [error.latency for error in result.errors] == ["TTFT", "TPOT", "E2E"]
    for error in result.errors:
        assert error.mape == error.bias == 0
        assert error.pearson_r == pytest.approx(1)
        assert error.quality == "excellent"
        assert all(s.error == 0 for s in error.statistics)
    assert [s.error for s in result.throughput] == [0, 0]


def test_errors_are_predicted_over_measured() -> None:
    measured, predicted = times([0.1, 0.2], [1.1, 2.2]), times([0.11, 0.18], [1.2, 2.0])
    ttft, tpot, e2e = calibrate(measured, predicted).errors
    assert ttft.mape == pytest.approx(0.10)
    assert ttft.bias == pytest.approx(0.0)
    assert ttft.statistics[0].error == pytest.approx(0.145 / 0.15 - 1)
    assert tpot.statistics[0].measured == pytest.approx(0.15)
    assert e2e.statistics[3].predicted == pytest.approx(np.percentile([1.2, 2.0], 99))


def test_network_time_is_added_to_what_is_predicted() -> None:
    run = times([0.1, 0.2], [1.1, 2.2])
    ttft, tpot, e2e = calibrate(run, run, network_rtt_s=0.05).errors
    assert ttft.statistics[0].predicted - ttft.statistics[0].measured == pytest.approx(0.05)
    assert e2e.statistics[0].predicted - e2e.statistics[0].measured == pytest.approx(0.05)
    assert tpot.mape == 0


def test_requests_are_matched_by_id_and_the_others_counted() -> None:
    result = calibrate(times([0.1] * 4, [1.0] * 4), times([0.1] * 4, [1.0] * 4, first=2), warm_up_requests=3)
    assert result.measured.request_id.tolist() == [3]
    assert (result.only_measured, result.only_predicted) == (2, 2)


def test_slo_classes_are_compared_one_by_one() -> None:
    classes = ["critical", "batch", "critical", "batch"]
    measured = times([0.1, 1.0, 0.1, 1.0], [1.0, 2.0, 1.0, 2.0], classes=classes)
    predicted = times([0.1, 2.0, 0.1, 2.0], [1.0, 3.0, 1.0, 3.0], classes=classes)
    by_group = {e.group: e for e in calibrate(measured, predicted).errors if e.latency == "TTFT"}
    assert list(by_group) == ["all", "critical", "batch"]
    assert (by_group["critical"].mape, by_group["batch"].mape) == (0, pytest.approx(1.0))


def test_a_single_token_has_no_tpot() -> None:
    run = times([0.1, 0.2], [0.1, 0.2], tokens=1)
    assert [error.latency for error in calibrate(run, run).errors] == ["TTFT", "E2E"]


def test_itl_is_pooled_over_tokens_and_compared_request_by_request() -> None:
    measured = times([0.1, 0.1], [0.5, 0.3], gaps=[[0.1, 0.1, 0.2], [0.2]])
    predicted = times([0.1, 0.1], [0.5, 0.3], gaps=[[0.1, 0.1, 0.1], [0.3]])
    itl = next(e for e in calibrate(measured, predicted).errors if e.latency == "ITL")
    assert itl.requests == 2
    assert itl.statistics[0].measured == pytest.approx(0.6 / 4)
    assert itl.statistics[1].measured == pytest.approx(np.percentile([0.1, 0.1, 0.2, 0.2], 50))
    assert itl.mape == pytest.approx((0.25 + 0.5) / 2)
    assert itl.bias == pytest.approx((-0.25 + 0.5) / 2)
    assert itl.per_request["p50"] == pytest.approx(0.375)


def test_gaps_follow_their_requests_when_some_are_left_out() -> None:
    run = times([0.1] * 3, [1.0] * 3, gaps=[[1.0, 2.0], [], [3.0]])
    taken = run.take(np.array([2, 0, 1])).gaps
    assert taken is not None
    assert taken.values.tolist() == [3, 1, 2]
    assert taken.counts.tolist() == [1, 2, 0]
    assert taken.means()[:2].tolist() == [3, 1.5]
    assert np.isnan(taken.means()[2])


def test_where_one_run_has_no_itl_a_note_reports_it() -> None:
    with_itl, without = times([0.1], [0.3], gaps=[[0.2]]), times([0.1], [0.3])
    for one, other, word in ((with_itl, without, "--record-itl"), (without, with_itl, "no ITL")):
        result = calibrate(one, other)
        assert "ITL" not in [e.latency for e in result.errors]
        assert word in result.notes[0]
    assert not calibrate(without, without).notes


def test_token_times_are_read_back_in_any_order(tmp_path: Path) -> None:
    file = tmp_path / "itl.csv"
    write_itl(file, np.array([7, 3]), np.array([3, 1]), np.array([1000, 3000, 6000, 500]))
    assert file.read_text().splitlines()[1] == "7,0,1"
    shuffled = file.read_text().splitlines()
    file.write_text("\n".join([shuffled[0], *reversed(shuffled[1:])]) + "\n")
    gaps = read_gaps(file, np.array([3, 5, 7]))
    assert gaps.counts.tolist() == [0, 0, 2]
    assert gaps.values.tolist() == pytest.approx([2e-6, 3e-6])


def test_a_token_timed_twice_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "itl.csv"
    file.write_text("request_id,chunk_index,timestamp_us\n0,0,5\n0,0,6\n")
    with pytest.raises(InputError, match="request_id 0, chunk_index"):
        read_gaps(file, np.array([0]))


def test_a_trace_is_read_as_it_was_measured(tmp_path: Path) -> None:
    rows = [
        "1,batch,5,1000,2000,7000,27000,ok",
        "0,critical,9,1000,0,5000,9000,ok",
        "2,batch,5,1000,2000,0,0,error",
    ]
    read = read_token_times(trace(tmp_path / "t.csv", rows))
    assert read.request_id.tolist() == [0, 1]
    assert read.ttft_s.tolist() == [0.004, 0.005]  # from the arrival where the sending is not known
    assert read.e2e_s.tolist() == [0.008, 0.025]
    assert read.tpot_s.tolist() == [0.004 / 8, 0.02 / 4]
    assert read.slo_class.to_list() == ["critical", "batch"]
    assert read.incomplete == 1


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["0,,5,1000,2000,0,0,ok"], "no request has token times"),
        (["0,,5,1000,2000,3000,4000,ok"] * 2, "the same id"),
        (["0,,5,1000,2000,soon,4000,ok"], "first_chunk_time_us"),
    ],
)
def test_a_trace_without_usable_times_is_refused(tmp_path: Path, rows: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_token_times(trace(tmp_path / "t.csv", rows))


def test_two_runs_without_a_common_request_are_refused() -> None:
    with pytest.raises(InputError, match="both runs"):
        calibrate(times([0.1], [1.0]), times([0.1], [1.0], first=5))


def test_a_simulated_run_calibrates_against_its_own_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, trace_csv = tmp_path / "out", tmp_path / "out" / "trace.csv"
    flags = ["--workload", "chatbot", "--rate", "5", "--num-requests", "20", "--model", "qwen3-8b"]
    assert main(["run", *flags, "--out", str(out), "--no-plots", "--record-itl", "--format", "json"]) == 0
    simulated = json.loads(capsys.readouterr().out)
    report = tmp_path / "report.json"
    assert main(["calibrate", "--trace", str(trace_csv), "--results", str(out), "--report", str(report)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(report.read_text())
    assert printed["requests"] == 20
    assert [latency["latency"] for latency in printed["latencies"]] == ["ttft", "itl", "tpot", "e2e"]
    assert all(latency["mape"] == 0 for latency in printed["latencies"])
    itl = printed["latencies"][1]["seconds"]
    for stat in ("mean", "p50", "p99"):
        assert itl[stat]["measured"] * 1e3 == pytest.approx(simulated["cluster"]["itl_ms"][stat], abs=2e-3)
    assert main(["calibrate", str(out), "--results", str(out)]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["latencies"] == printed["latencies"]


def test_token_times_of_a_run_are_those_that_its_folder_states(tmp_path: Path) -> None:
    result = build(model="qwen3-8b", workload="chatbot", rate=5.0, num_requests=20).run()
    result.save(tmp_path, plots=False, itl=True)
    kept, direct = read_token_times(tmp_path), token_times(result.record, "run")
    for column in ("request_id", "output_tokens"):
        assert getattr(kept, column).tolist() == getattr(direct, column).tolist()
    for column in ("sent_s", "ttft_s", "e2e_s"):
        np.testing.assert_allclose(getattr(kept, column), getattr(direct, column), atol=1e-6)
    assert kept.gaps is not None
    assert direct.gaps is not None
    assert kept.gaps.counts.tolist() == direct.gaps.counts.tolist()
    np.testing.assert_allclose(kept.gaps.values, direct.gaps.values, atol=1e-6)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--results", "x"], "--trace"),
        (["--trace", "x"], "--results"),
        (["--trace-data", "nowhere.csv", "--sim-results", "x"], "no such trace"),
        (["folder", "--trace", "x", "--results", "x"], "given twice"),
        (["--trace", "x", "--results", "x", "--network-rtt-ms=-1"], "negative"),
        (["--trace", "x", "--results", "x", "--format", "tabel"], "did you mean|table"),
        (["--trace", "x", "--results", "x", "--report", "no/such/folder/r.json"], "no such folder"),
    ],
)
def test_wrong_flags_are_bad_input(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["calibrate", *flags]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert any(part in error for part in message.split("|"))


def test_names_of_files_are_not_taken_for_markup() -> None:
    measured, predicted = (times([0.1, 0.2], [1.1, 2.2]) for _ in range(2))
    text = io.StringIO()
    print_calibration(calibrate(replace(measured, source="runs[/b]/[red]"), predicted), text)
    assert "measured in runs[/b]/[red] and" in " ".join(text.getvalue().split())


def test_the_table_and_the_picture_show_every_latency(tmp_path: Path) -> None:
    gaps = [[0.1], [0.2], [0.1]]
    measured = times([0.1, 0.2, 0.3], [1.1, 2.2, 2.0], gaps=gaps)
    predicted = times([0.11, 0.18, 0.3], [1.2, 2.0, 2.0], gaps=gaps)
    result = calibrate(measured, predicted)
    text = io.StringIO()
    print_calibration(result, text)
    for word in ("TTFT", "ITL", "TPOT", "E2E", "p99", "excellent", "requests/s", "-20.000"):
        assert word in text.getvalue()
    picture = predicted_measured(result)
    picture.save(tmp_path / "p.png")
    assert [ax.get_title(loc="left").partition(":")[0] for ax in picture.axes] == [
        "TTFT",
        "ITL",
        "TPOT",
        "E2E",
    ]
    assert (tmp_path / "p.png").stat().st_size > 10_000
    assert as_dict(result)["requests"] == 3
