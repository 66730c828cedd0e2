"""Runs beside each other: the same requests or a refusal, changes that are sure or chance, who paid."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import blis_py as blis
from blis_py.comparison.compare import Comparison
from blis_py.comparison.groups import groups
from blis_py.comparison.pairs import pairs
from blis_py.errors import InputError
from blis_py.metrics.bootstrap import MIN, changes
from blis_py.result import Result

BUSY: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "workload": "mixed-slo",
    "num_requests": 400,
    "rate": 12,
    "seed": 5,
}
SMALL: dict[str, Any] = {"model": "qwen3-14b", "num_requests": 60, "rate": 8, "seed": 3}
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def fcfs() -> Result:
    return blis.run(**BUSY)


@pytest.fixture(scope="module")
def shortest() -> Result:
    return blis.run(**BUSY, scheduler="sjf")


@pytest.fixture(scope="module")
def small() -> Result:
    return blis.run(**SMALL)


def shown(**columns: Any) -> SimpleNamespace:
    """A run with the given columns alone."""
    rows = len(columns["request_id"])
    frame = {
        "prompt_tokens": np.full(rows, 10),
        "output_tokens": np.full(rows, 5),
        "outcome": ["completed"] * rows,
        "slo_class": ["standard"] * rows,
        "tenant": ["default"] * rows,
        "arrival_s": np.arange(rows, dtype=float),
        **{f"{name}_ms": np.ones(rows) for name in ("ttft", "tpot", "e2e", "scheduling_delay")},
    } | columns
    settings = frame.pop("settings", {"seed": 1, "workload": {"rate": 1.0}})
    counts = dict.fromkeys(("rejected", "unservable", "timed_out", "still_queued", "still_running"), 0)
    cluster = {"requests": {"completed": rows, **counts}}
    return SimpleNamespace(
        requests=pd.DataFrame(frame),
        settings=settings,
        summary={"cluster": cluster, "load": {"verdict": "stable"}},
    )


IDS = [f"r{index}" for index in range(80)]


# -- the same requests -------------------------------------------------------------------------------


def test_requests_are_matched_by_name_in_whatever_order() -> None:
    turned = shown(request_id=IDS[::-1], arrival_s=np.arange(80.0)[::-1], e2e_ms=np.arange(80.0)[::-1])
    found = pairs(shown(request_id=IDS, e2e_ms=np.arange(80.0)), turned, ("a", "b"))
    one, other = found.values("e2e_ms")
    assert len(found) == 80
    assert np.array_equal(one, other)


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"request_id": [f"s{i}" for i in range(80)]}, "no request of one is in the other"),
        ({"request_id": [*IDS[:20], *(f"s{i}" for i in range(60))]}, "20 of 80 requests"),
        (
            {"request_id": IDS, "prompt_tokens": np.r_[np.full(79, 10), 11]},
            "r79 has 10 prompt tokens in one and 11 in the other",
        ),
        (
            {"request_id": IDS, "output_tokens": np.r_[np.full(79, 5), 4]},
            "r79 has 5 output tokens in one and 4 in the other",
        ),
        (
            {"request_id": IDS, "arrival_s": np.arange(80) + 0.5},
            "r0 arrives at 0 s in one and at 0.5 s in the other, which no setting explains",
        ),
        ({"request_id": [*IDS[:79], "r0"]}, "two requests have this name"),
    ],
    ids=["ids", "few", "prompts", "answers", "arrivals", "twice"],
)
def test_runs_of_other_requests_are_refused_with_the_reason(other: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=re.escape(why)):
        pairs(shown(request_id=IDS), shown(**other), ("a", "b"))


def test_another_seed_is_refused_and_another_rate_is_reported(small: Result) -> None:
    with pytest.raises(InputError, match="not runs of the same requests"):
        blis.compare(small, blis.run(**(SMALL | {"seed": 4})))
    compared = blis.compare(small, blis.run(**(SMALL | {"rate": 16})))
    assert compared.pairwise[0].pairs.note == "the same requests come at other times: workload.rate 8 and 16"


def test_in_a_closed_loop_the_same_requests_are_sent_at_other_times() -> None:
    settings = {"model": "qwen3-14b", "num_requests": 50, "concurrency": 4}
    compared = blis.compare(blis.run(**settings), blis.run(**settings, tp=2))
    note = compared.pairwise[0].pairs.note
    assert note is not None
    assert "closed loop" in note


def test_so_are_turns_that_wait_for_answers(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(
        "version: '2'\naggregate_rate: 4\nnum_requests: 60\nclients:\n"
        "- {id: chat, rate_fraction: 1, arrival: {process: poisson},\n"
        "   reasoning: {multi_turn: {max_rounds: 3}},\n"
        "   input_distribution: {type: constant, params: {value: 90}},\n"
        "   output_distribution: {type: constant, params: {value: 30}}}\n"
    )
    settings = {"model": "qwen3-14b", "workload_spec": tmp_path / "spec.yaml"}
    compared = blis.compare(blis.run(**settings), blis.run(**settings, tp=2))
    note = compared.pairwise[0].pairs.note
    assert note is not None
    assert "closed loop" in note


def test_a_shorter_run_is_compared_on_what_both_have(small: Result) -> None:
    end_s = float(small.requests.arrival_s[45])
    shorter = blis.run(**SMALL, horizon=f"{end_s}s")
    found = blis.compare(small, shorter).pairwise[0].pairs
    assert found.only == (len(small.requests) - len(found), 0)
    assert len(found) == len(shorter.requests) < 60


# -- changes -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_figures_are_those_of_the_runs(fcfs: Result, shortest: Result) -> None:
    report = blis.compare(fcfs, shortest).as_dict()
    for metric in ("ttft_ms", "e2e_ms", "tpot_ms", "scheduling_delay_ms"):
        for statistic in ("mean", "p50", "p90", "p99"):
            change = report["compared"][0]["metrics"][metric][statistic]
            summaries = [run.summary["cluster"][metric][statistic] for run in (fcfs, shortest)]
            assert [change["first"], change["second"]] == pytest.approx(summaries)
            assert change["relative"] == pytest.approx(summaries[1] / summaries[0] - 1)


def test_a_shift_is_sure_and_noise_is_chance() -> None:
    rng = np.random.default_rng(1)
    base = rng.lognormal(5, 1, 400)
    shifted = changes(base, base * rng.normal(0.9, 0.02, 400), ("mean", "p50", "p99"))
    assert all(change.sure for change in shifted.values())
    assert all(
        change.interval and change.interval[0] <= -0.1 <= change.interval[1] for change in shifted.values()
    )
    noise = changes(base, base * rng.normal(1.0, 0.2, 400), ("mean", "p50"))
    assert not any(change.sure for change in noise.values())


@pytest.mark.slow
def test_intervals_of_the_mean_hold_the_truth_as_often_as_they_say() -> None:
    """Independent pairs, 10 % more on average: 95 % intervals, of 200, hold it 190 times or so."""
    held = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        base = rng.gamma(3, 10, 240)
        interval = changes(base, base * rng.normal(1.1, 0.3, 240), ("mean",))["mean"].interval
        assert interval is not None
        held += interval[0] <= 0.1 <= interval[1]
    assert 176 <= held <= 199  # binomial: 4.5 standard deviations below, and never all


def test_neighbours_that_move_together_make_a_wider_interval() -> None:
    """The change of each block of ten is one draw: ten times fewer independent ones than there are pairs."""
    rng = np.random.default_rng(3)
    base = np.full(400, 100.0)
    alone = base * rng.normal(1, 0.2, 400)
    together = base * np.repeat(rng.normal(1, 0.2, 40), 10)

    def width(other: np.ndarray) -> float:
        interval = changes(base, other, ("mean",))["mean"].interval
        assert interval is not None
        return interval[1] - interval[0]

    assert width(together) > 2 * width(alone)


def test_below_some_pairs_nothing_is_said_of_chance() -> None:
    few = np.arange(1.0, MIN)
    assert changes(few, few * 2, ("mean",))["mean"].sure is None
    assert changes(np.arange(1.0, MIN + 1), np.arange(1.0, MIN + 1) * 2, ("mean",))["mean"].sure


@pytest.mark.slow
def test_the_same_run_has_no_change(fcfs: Result) -> None:
    compared = blis.compare(fcfs, fcfs)
    assert "Every latency is the same in both." in str(compared)
    metrics = compared.as_dict()["compared"][0]["metrics"]
    assert all(metrics[name]["p99"]["relative"] == 0 and not metrics[name]["p99"]["sure"] for name in metrics)


def test_where_everything_was_zero_there_is_no_relative_change() -> None:
    zeros = np.zeros(80)
    assert changes(zeros, zeros + 1, ("mean",))["mean"].relative is None
    assert changes(zeros, zeros, ("mean",))["mean"].relative == 0


# -- who got better and who paid ---------------------------------------------------------------------


def test_groups_show_gains_and_losses() -> None:
    classes = ["critical", "batch"] * 40
    tokens = np.repeat(np.arange(1, 9) * 100, 10)
    slower = np.where(np.array(classes) == "critical", 0.5, 2.0) * 100.0
    first = shown(request_id=IDS, slo_class=classes, prompt_tokens=tokens, e2e_ms=np.full(80, 100.0))
    second = shown(request_id=IDS, slo_class=classes, prompt_tokens=tokens, e2e_ms=slower)
    report = {group.name: group for group in groups(pairs(first, second, ("a", "b"))) if group.by == "class"}
    assert (report["critical"].verdict, report["batch"].verdict) == ("better", "paid")
    assert (report["critical"].better, report["critical"].worse) == (1.0, 0.0)
    assert (report["batch"].better, report["batch"].worse) == (0.0, 1.0)


@pytest.mark.slow
def test_tenths_of_the_prompts_hold_every_request_once(fcfs: Result, shortest: Result) -> None:
    lines = [group for group in blis.compare(fcfs, shortest).pairwise[0].groups if group.by == "prompt"]
    assert 5 <= len(lines) <= 10
    assert sum(group.requests for group in lines) == 400
    same_length = pairs(shown(request_id=IDS), shown(request_id=IDS), ("a", "b"))
    assert not groups(same_length)


def test_requests_completed_in_one_run_alone_are_counted() -> None:
    gave_up = np.where(np.arange(80) < 30, "timed_out", "completed")
    e2e = np.where(np.arange(80) < 30, np.nan, 1.0)
    compared = Comparison(
        [shown(request_id=IDS), shown(request_id=IDS, outcome=gave_up, e2e_ms=e2e)], ("a", "b")
    )
    assert compared.pairwise[0].overall.completed == (80, 50)
    assert compared.as_dict()["compared"][0]["metrics"]["e2e_ms"]["requests"] == 50


# -- settings, several runs, nothing to compare --------------------------------------------------------


@pytest.mark.slow
def test_settings_that_differ_are_listed_and_no_others(fcfs: Result, shortest: Result) -> None:
    report = blis.compare(fcfs, shortest, names=("fcfs", "shortest first")).as_dict()
    assert report["settings"] == [{"key": "scheduler.policy", "values": ["fcfs", "sjf"]}]
    assert report["runs"] == ["fcfs", "shortest first"]


def test_what_json_cannot_hold_is_written_in_words() -> None:
    odd = {"seed": 1, "workload": {"rate": float("-inf")}}
    huge = np.full(80, 1e308)
    compared = Comparison(
        [shown(request_id=IDS), shown(request_id=IDS, settings=odd, e2e_ms=huge)], ("a", "b")
    )
    report = json.loads(json.dumps(compared.as_dict(), allow_nan=False))
    assert report["settings"] == [{"key": "workload.rate", "values": [1.0, "-inf"]}]
    assert report["compared"][0]["metrics"]["e2e_ms"]["mean"]["second"] is None
    assert "-inf" in str(compared)


@pytest.mark.slow
def test_several_runs_are_all_compared_with_the_first(small: Result) -> None:
    others = [blis.run(**SMALL, tp=tp) for tp in (2, 4)]
    report = blis.compare(small, *others).as_dict()
    assert [each["run"] for each in report["compared"]] == ["run 2", "run 3"]
    first = [each["metrics"]["e2e_ms"]["mean"]["first"] for each in report["compared"]]
    assert first[0] == first[1]
    assert {"key": "tp", "values": [1, 2, 4]} in report["settings"]
    assert blis.compare(small, *others).plot() is not None


def test_the_picture_has_every_run_and_the_tail(small: Result) -> None:
    others = [blis.run(**SMALL, max_num_batched_tokens=tokens) for tokens in (512, 1024)]
    ttft, *_ = blis.compare(small, *others, names=("a", "b", "c")).plot().axes
    assert [line.get_label() for line in ttft.lines] == ["a", "b", "c"]
    widths = [line.get_linewidth() for line in ttft.lines]
    assert widths == sorted(widths, reverse=True)
    assert len(set(widths)) == 3  # so that none hides an equal one
    assert ttft.get_yscale() == "log"
    assert min(ttft.get_ylim()) == pytest.approx(1 / 60)  # down to the slowest of 60 requests


def test_one_request_is_too_few_to_tell() -> None:
    runs = [blis.run(model="qwen3-14b", num_requests=1, tp=tp) for tp in (1, 2)]
    compared = blis.compare(*runs)
    text = str(compared)
    assert "too few to tell" in text
    assert not re.search(r"\bnan\b", text)
    assert compared.plot() is not None


def test_without_served_requests_the_page_reports_it() -> None:
    runs = [
        blis.run(model="qwen3-14b", num_requests=20, prompt_tokens=3000, max_model_len=64, tp=tp)
        for tp in (1, 2)
    ]
    compared = blis.compare(*runs)
    assert "No request has a latency in both runs" in str(compared)
    assert not re.search(r"\bnan\b", str(compared))
    assert compared.plot() is not None


def test_runs_without_requests_have_a_page_too(small: Result, tmp_path: Path) -> None:
    folder = small.save(tmp_path / "small", plots=False)
    empty = blis.run(model="qwen3-14b", trace=str(folder / "trace.csv"), horizon=1)
    text = str(blis.compare(empty, empty))
    assert "neither run has any request" in text
    assert blis.compare(empty, empty).plot() is not None
    with pytest.raises(InputError, match="not runs of the same requests"):
        blis.compare(small, empty)


# -- the command -------------------------------------------------------------------------------------


@pytest.fixture
def folders(fcfs: Result, shortest: Result, tmp_path: Path) -> list[Path]:
    names = {"fcfs": fcfs, "sjf": shortest}
    return [run.save(tmp_path / "runs" / name, plots=False) for name, run in names.items()]


@pytest.mark.slow
def test_saved_runs_compare_as_they_did_before(folders: list[Path], fcfs: Result, shortest: Result) -> None:
    saved, live = blis.compare(*folders).as_dict(), blis.compare(fcfs, shortest).as_dict()
    assert saved["runs"] == ["fcfs", "sjf"]
    for metric, figures in live["compared"][0]["metrics"].items():
        for name, change in figures.items():
            if name != "requests":
                again = saved["compared"][0]["metrics"][metric][name]
                assert again["second"] == pytest.approx(change["second"], rel=1e-9)
    assert saved["whole"] == live["whole"]


@pytest.mark.slow
def test_the_command_writes_json_and_pictures_and_the_same_bytes_again(
    folders: list[Path], tmp_path: Path, command: Command
) -> None:
    for out in ("one", "other"):
        code, printed, _ = command("compare", *folders, "--out", tmp_path / out)
        assert code == 0
    assert json.loads(printed) == json.loads((tmp_path / "one" / "compare.json").read_text())
    for name in ("compare.json", "compare.png", "compare.svg"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()


def test_what_cannot_be_compared_is_refused(folders: list[Path], tmp_path: Path, command: Command) -> None:
    for arguments, complaint in (
        ((), "needs two runs or more"),
        ((folders[0],), "needs two runs or more"),
        ((folders[0], tmp_path / "nowhere"), "no such folder"),
        ((*folders, "--format", "csv"), "unknown format"),
        ((*folders, "--force"), "needs a folder to write to"),
    ):
        code, printed, said = command("compare", *arguments)
        assert (code, printed) == (2, "")
        assert complaint in said


def test_a_change_of_a_thousandth_is_no_gain_however_sure_it_is() -> None:
    """A group whose E2E hardly changes is judged by its TTFT."""
    first = shown(request_id=IDS, slo_class=["critical", "batch"] * 40, e2e_ms=np.full(80, 100.0))
    second = shown(request_id=IDS, slo_class=["critical", "batch"] * 40, e2e_ms=np.full(80, 99.9))
    assert {group.verdict for group in groups(pairs(first, second, ("a", "b")))} == {"no sure difference"}
