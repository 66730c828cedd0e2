"""`blis sweep` and `blis plan` on the command line: stdout is data, refusals go to stderr."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import blis_py as blis_module

Blis = Callable[..., tuple[int, str, str]]
LOAD = (
    "--model",
    "qwen3-14b",
    "--num-requests",
    "40",
    "--output-tokens",
    "40",
    "--workers",
    "1",
    "--no-cache",
)
SWEEP = ("sweep", *LOAD, "--vary", "scheduler=fcfs,sjf", "tp=1,3")
PLAN = ("plan", *LOAD, "--rate", "20", "--slo", "ttft.p99=500ms", "--draws", "0", "--instances", "1:3")


@pytest.mark.slow
def test_a_pipe_gets_every_row_as_json(blis: Blis) -> None:
    code, out, err = blis(*SWEEP, "--rate", 20)
    rows = json.loads(out)
    assert code == 0
    assert [(row["scheduler"], row["tp"], row["status"]) for row in rows] == [
        ("fcfs", 1, "ok"),
        ("fcfs", 3, "refused"),
        ("sjf", 1, "ok"),
        ("sjf", 3, "refused"),
    ]
    assert "--tp: does not divide" in rows[1]["reason"]
    assert "4 runs over scheduler (2), tp (2), 2 refused" in err


def test_a_row_is_what_the_run_by_itself_comes_to(blis: Blis) -> None:
    row = json.loads(blis(*SWEEP, "--rate", 20)[1])[2]
    settings = {"model": "qwen3-14b", "num_requests": 40, "output_tokens": 40, "rate": 20, "scheduler": "sjf"}
    alone = blis_module.run(**settings).summary["cluster"]
    assert row["ttft_ms.p99"] == alone["ttft_ms"]["p99"]
    assert row["throughput.output_tokens_per_s"] == alone["throughput"]["output_tokens_per_s"]


@pytest.mark.slow
def test_csv_and_the_folder_hold_the_same_table(blis: Blis, tmp_path: Path) -> None:
    code, out, _ = blis(
        *SWEEP, "--vary", "rate=10,20", "--seeds", 2, "--format", "csv", "--out", tmp_path / "s"
    )
    assert code == 0
    rows = list(csv.DictReader(io.StringIO(out)))
    assert len(rows) == 2 * 2 * 2 * 2
    assert (tmp_path / "s" / "sweep.csv").read_text() == out
    assert {path.name for path in (tmp_path / "s").iterdir()} >= {"sweep.yaml", "curves.png"}
    pandas, parquet = pytest.importorskip("pandas"), tmp_path / "s" / "sweep.parquet"
    if parquet.exists():
        assert len(pandas.read_parquet(parquet)) == len(rows)
    fcfs = [row for row in rows if (row["scheduler"], row["rate"], row["tp"]) == ("fcfs", "10", "1")]
    assert len({row["ttft_ms.p99"] for row in fcfs}) == 2


def test_a_list_of_runs_from_a_file(blis: Blis, tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text("runs: [{tp: 1, rate: 5}, {tp: 2, rate: 9}]")
    rows = json.loads(blis("sweep", *LOAD, "--space", tmp_path / "space.yaml")[1])
    assert [(row["tp"], row["rate"]) for row in rows] == [(1, 5), (2, 9)]


def test_the_best_are_printed_on_a_terminal(blis: Blis) -> None:
    out = blis(*SWEEP, "--rate", 20, "--metric", "throughput.output_tokens_per_s", "--format", "table")[1]
    assert "ranked by output tokens per s" in out
    assert "2 × refused: --tp: does not divide" in out


@pytest.mark.slow
def test_a_plan_is_json_for_a_pipe_and_words_for_a_terminal(blis: Blis, tmp_path: Path) -> None:
    plan = (*PLAN, "--vary", "tp=1,2", "--price", "h100=2", "--draws", "2", "--most-requests", "400")
    code, out, _ = blis(*plan, "--out", tmp_path / "plan")
    report = json.loads(out)
    assert code == 0
    assert report["holds"]
    assert report["best"]["dollars_per_hour"] == 2
    assert json.loads((tmp_path / "plan" / "plan.json").read_text()) == report
    words = blis(*plan, "--format", "table")[1]
    assert words.startswith(
        "Cheapest configuration that meets all targets: 1 instance of qwen3-14b on h100 TP1\n"
    )
    again = json.loads(blis("run", "--config", tmp_path / "plan" / "config.yaml")[1])
    tightest = report["best"]["requirements"][0]
    assert again["slo"][0]["measured_ms"] == tightest["measured"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("sweep", *LOAD), "nothing is varied"),
        ((*SWEEP, "--gpu", "l40s", "--vary", "gpu=h100,l40s"), "gpu: is varied, and given by --gpu, too"),
        ((*SWEEP, "--intervals", "10"), "--intervals: is for one run"),
        ((*SWEEP, "--format", "xml"), "unknown format"),
        ((*SWEEP, "--metric", "ttft.p42", "--format", "table"), "no such metric"),
        ((*SWEEP, "--force"), "needs a folder"),
        ((*SWEEP, "--cache", "x"), "contradicts --cache"),
        ((*SWEEP, "--seeds", "0"), "--seeds: must be at least 1"),
        ((*SWEEP, "--random", "0"), "--random: must be at least 1"),
        ((*SWEEP[:-1], "--workers", "0"), "--workers"),
        (("sweep", *LOAD, "--space", "none.yaml"), "none.yaml: No such file"),
        (("sweep", *LOAD, "--vary", "tp=3,5", "--format", "table", "--metric", "x"), None),
        ((*PLAN[:-2], "--num-instances", "2"), "a plan chooses the number of instances"),
        (("plan", *LOAD), "no target is given"),
        ((*PLAN, "--price", "h100"), "is not the price of a GPU"),
        ((*PLAN, "--max-rate"), "contradicts --max-rate"),
        ((*PLAN[:-2], "--max-rate", "--confidence", "90%"), "--confidence: does not apply to --max-rate"),
        ((*PLAN[:-2], "--max-rate", "--trials", "5"), "--trials: does not apply to --max-rate"),
        ((*PLAN[:-2], "--max-rate", "--concurrency", "4"), "a closed loop has no rate"),
        ((*PLAN, "--max-lost", "2"), "is not a share"),
        ((*PLAN, "--enable-eplb"), "cannot be honoured"),
    ],
)
def test_bad_flags_are_one_line(blis: Blis, arguments: tuple[str, ...], message: str | None) -> None:
    code, _, err = blis(*arguments)
    if message is None:
        assert code == 0
        return
    assert code == 2
    assert message in err
    assert sum(line.startswith("error: ") for line in err.splitlines()) == 1


@pytest.mark.slow
def test_processes_are_gone_when_the_command_is_stopped(tmp_path: Path) -> None:
    """The whole process group ends, and what was done is kept."""
    import os
    import signal
    import time

    command = [sys.executable, "-m", "blis_py", "sweep", "--model", "qwen3-14b", "--num-requests", "300"]
    command += ["--vary", "seed=1:400", "--workers", "2", "--cache", str(tmp_path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        while not list(tmp_path.rglob("*.json")):
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=600) == 143
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


@pytest.mark.parametrize(
    "flag", [("--draws", "3"), ("--confidence", "90%"), ("--no-tuning",), ("--trials", "9")]
)
def test_what_a_pareto_front_has_no_use_for_is_refused(blis: Blis, flag: tuple[str, ...]) -> None:
    code, _, err = blis("plan", "--pareto", "--model", "llama-3.1-8b", *flag)
    assert code == 2
    assert f"{flag[0]}: does not apply to --pareto" in err


def test_notes_of_a_sweep_are_printed_once_below_its_table(blis: Blis) -> None:
    given = ("sweep", "--model", "llama-3.1-8b", "--gpu", "mi300x", "--num-requests", "4", "--rate", "2,4")
    code, out, err = blis(*given, "--workers", "1", "--no-cache", "--format", "table")
    assert code == 0
    assert " p99 TTFT " in out
    assert " ms " in out
    assert err.count("note: the MI300X is known by its datasheet alone") == 1
