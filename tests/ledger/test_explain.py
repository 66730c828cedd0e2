"""From a question to a page: the request in question, what-ifs, and runs without one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blis_py as blis
from blis_py.config.loader import as_dict
from blis_py.errors import InputError
from blis_py.figures.ledger import ledger as drawn
from blis_py.ledger.question import question_of
from blis_py.ledger.what_if import candidates
from blis_py.metrics.latencies import latencies
from blis_py.outputs.staging import write_text
from blis_py.result import Result

BUSY: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "rate": 40,
    "num_requests": 150,
    "seed": 5,
    "max_num_batched_tokens": 1024,
    "num_kv_blocks": 2500,
}
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def busy() -> Result:
    return blis.run(**BUSY)


@pytest.fixture(scope="module")
def saved(busy: Result, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return busy.save(tmp_path_factory.mktemp("explain") / "busy", plots=False)


# -- the request in question -------------------------------------------------------------------------


@pytest.mark.slow
def test_a_percentile_points_at_the_first_request_that_is_as_slow(busy: Result) -> None:
    report = blis.explain(busy, metric="ttft.p90", what_if=False).as_dict()
    ttft_ns = np.sort(latencies(busy.record).ttft_ns)
    assert report["value_ns"] == np.percentile(ttft_ns, 90)
    assert report["request"]["ttft_ns"] == ttft_ns[ttft_ns >= report["value_ns"]][0]
    assert report["slowest"]["requests"] == (ttft_ns >= report["value_ns"]).sum()
    assert report["typical"] != report["request"]["id"]


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["tpot.max", "e2e.median", "scheduling_delay.p99", "itl.min"])
def test_any_metric_of_a_request_can_be_explained(busy: Result, metric: str) -> None:
    explanation = blis.explain(busy, metric=metric, what_if=False)
    assert explanation.ledger is not None
    assert sum(explanation.ledger.whole.values()) == explanation.ledger.total_ns


def test_the_columns_of_the_page_add_up_to_ttft_and_e2e(busy: Result) -> None:
    report = blis.explain(busy, request="request_77", what_if=False).as_dict()
    request, lines = report["request"], report["ledger"]
    assert sum(line["first_token_ns"] for line in lines) == request["ttft_ns"]
    assert sum(line["whole_ns"] for line in lines) == request["e2e_ns"] == request["total_ns"]


def test_the_slowest_and_the_median_request_have_ledgers_that_add_up_too(busy: Result) -> None:
    explanation = blis.explain(busy, metric="e2e.p95", what_if=False)
    table = latencies(busy.record)
    for ledger in (*explanation.slowest, explanation.typical):
        assert ledger is not None
        row = list(busy.record.table.ids()).index(ledger.request)
        assert sum(ledger.whole.values()) == table.e2e_ns[row]
    assert len(explanation.slowest) == explanation.found.slower


@pytest.mark.parametrize(
    ("question", "problem"),
    [
        ({"metric": "ttft.mean"}, "does not identify a request"),
        ({"metric": "ttft"}, "does not identify a request"),
        ({"metric": "ttft.p101"}, "no such percentile"),
        ({"metric": "critical.ttft.p99", "slo_class": "batch"}, "is another class than that of --metric"),
        ({"request": "request_1", "slo_class": "batch"}, "cannot be combined with a metric or a class"),
    ],
)
def test_a_question_that_is_none_is_refused(question: dict[str, str], problem: str) -> None:
    with pytest.raises(InputError) as caught:
        question_of(**question)
    assert caught.value.problem == problem


def test_a_request_or_class_that_is_not_there_is_refused(busy: Result) -> None:
    with pytest.raises(InputError, match=r"no such request.*request_0 to request_149"):
        blis.explain(busy, request="request_150", what_if=False)
    with pytest.raises(InputError, match="no request is of this SLO class"):
        blis.explain(busy, slo_class="crtical", what_if=False)


def test_requests_that_share_an_id_cannot_be_followed() -> None:
    run = blis.run(model="qwen3-14b", num_requests=3)
    run.record.table = replace(run.record.table, request_id=["a", "b", "a"])
    with pytest.raises(InputError, match=r"several requests have this id.*'a'"):
        blis.explain(run, what_if=False)


@pytest.mark.parametrize(
    ("metric", "part"),
    [
        ("ttft.p99", lambda line: line["first_token_ns"]),
        ("tpot.p90", lambda line: line["whole_ns"] - line["first_token_ns"]),
        ("e2e.p90", lambda line: line["whole_ns"]),
    ],
)
def test_shares_are_of_the_metric_in_question(busy: Result, metric: str, part: Callable[[Any], int]) -> None:
    report = blis.explain(busy, metric=metric, what_if=False).as_dict()
    total = sum(part(line) for line in report["ledger"])
    assert [line["share"] for line in report["ledger"]] == [part(line) / total for line in report["ledger"]]


def test_the_slowest_and_the_median_of_a_ttft_add_up_to_ttfts(busy: Result) -> None:
    explanation = blis.explain(busy, metric="ttft.p90", what_if=False)
    lines = explanation.as_dict()["ledger"]
    assert explanation.typical is not None
    assert sum(line["typical_ns"] for line in lines) == explanation.typical.ttft_ns
    ttfts = [each.ttft_ns or 0 for each in explanation.slowest]
    assert sum(line["slowest_ns"] for line in lines) == pytest.approx(np.mean(ttfts))


def test_the_columns_of_a_tpot_are_per_token_and_add_up_to_tpots(busy: Result) -> None:
    """Otherwise the median request, with a long answer, would look slower than the slowest."""
    explanation = blis.explain(busy, metric="tpot.p90", what_if=False)
    lines = explanation.as_dict()["ledger"]
    assert explanation.typical is not None
    tpot_ms = busy.requests.set_index("request_id").tpot_ms
    for column, requests in (
        ("typical_ns", [explanation.typical]),
        ("slowest_ns", explanation.slowest),
        ("asked_ns", [explanation.ledger]),
    ):
        expected_ns = 1e6 * np.mean([tpot_ms[each.request] for each in requests if each is not None])
        assert sum(line[column] for line in lines) == pytest.approx(expected_ns, rel=1e-3)
    assert "Others (mean of the slowest): TPOT per token." in str(explanation)


def test_the_share_column_names_the_metric(busy: Result) -> None:
    assert "share of TTFT" in str(blis.explain(busy, what_if=False))
    assert "share of E2E" in str(blis.explain(busy, request="request_77", what_if=False))


# -- what-ifs ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_what_if_is_the_run_with_that_setting(busy: Result) -> None:
    report = blis.explain(busy, what_if=["max_num_batched_tokens=512", "scheduler=sjf"]).as_dict()
    found = {next(iter(one["settings"].items())): one["after"]["asked_ns"] for one in report["what_ifs"]}
    for settings, key in (
        ({"max_num_batched_tokens": 512}, ("scheduler.max_num_batched_tokens", 512)),
        ({"scheduler": "sjf"}, ("scheduler.policy", "sjf")),
    ):
        again = blis.run(**(BUSY | settings))
        assert found[key] / 1e6 == again.summary["cluster"]["ttft_ms"]["p99"]
    assert report["before"]["asked_ns"] / 1e6 == busy.summary["cluster"]["ttft_ms"]["p99"]


@pytest.mark.slow
def test_what_ifs_are_ranked_by_the_chosen_metric(busy: Result) -> None:
    report = blis.explain(busy, metric="tpot.p99").as_dict()
    gains = [one["asked"] for one in report["what_ifs"] if "refused" not in one]
    assert len(gains) >= 8
    assert gains == sorted(gains)
    before = report["before"]["asked_ns"]
    for one in report["what_ifs"]:
        if "refused" not in one:
            assert one["asked"] == pytest.approx(one["after"]["asked_ns"] / before - 1)


def test_a_candidate_that_cannot_be_is_reported_with_the_reason() -> None:
    explanation = blis.explain(model="llama-3.1-8b", gpu="rtx4090", tp=8, num_requests=5)
    refused = [one for one in explanation.as_dict()["what_ifs"] if "refused" in one]
    assert [one["change"] for one in refused] == ["--tp 16 instead of 8"]
    assert "not possible" in str(explanation)


def test_candidates_change_what_they_say_and_nothing_else(busy: Result) -> None:
    simulation = blis.build(**BUSY)
    assert len({change.title for change in candidates(simulation)}) == len(candidates(simulation))
    budget = next(each for each in candidates(simulation) if "tokens 256" in each.title)
    config = budget.of(simulation.config)
    assert config.scheduler.max_num_batched_tokens == 256
    assert blis.build(config, max_num_batched_tokens=1024).config == simulation.config


def test_what_ifs_are_named_by_their_flags(busy: Result) -> None:
    titles = [change.title for change in candidates(blis.build(**BUSY))]
    assert "--scheduler sjf instead of fcfs" in titles
    assert "--num-instances 2 instead of 1" in titles
    assert "--no-async-scheduling" in titles
    report = blis.explain(busy, what_if=["max_num_batched_tokens=512,scheduler=sjf"]).as_dict()["what_ifs"]
    assert report[0]["change"] == "--max-num-batched-tokens 512 --scheduler sjf instead of 1024, fcfs"


def test_a_change_within_the_noise_reports_it_and_a_large_one_does_not(busy: Result) -> None:
    report = blis.explain(busy, what_if=["tp=8", "max_num_seqs=200"]).as_dict()["what_ifs"]
    better, same = report
    assert not better["noise"]
    assert better["asked_interval"][1] < 0
    assert same["noise"]
    low, high = same["asked_interval"]
    assert low <= 0 <= high


def test_one_change_for_the_worse_does_not_flatten_the_picture(busy: Result) -> None:
    report = blis.explain(busy, what_if=["tp=2", "max_num_seqs=4"]).as_dict()
    report["what_ifs"][-1] |= {"asked": 80.0, "noise": False}
    axes = drawn(report, as_dict(busy.config)).axes[1]
    assert axes.get_xlim()[1] < 200
    assert any("+8,000.0 % →" in text.get_text() for text in axes.texts)


def test_labels_of_the_picture_fit_beside_its_bars(busy: Result) -> None:
    report = blis.explain(busy, what_if=["max_num_seqs=200"]).as_dict()
    report["ledger"][0]["what"] = "queued: the token budget is used up by running requests"
    picture = drawn(report, as_dict(busy.config))
    picture.canvas.draw()
    for axes in picture.axes:
        for text in axes.get_yticklabels():
            assert text.get_window_extent().x0 > 0
    assert [text.get_text() for text in picture.axes[1].texts] == ["no difference"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("sjf", "not a change"),
        ("schedular=sjf", "unknown setting"),
        ("scheduler=random", "scheduler.policy"),
        ("scheduler.polcy=sjf", "unknown key"),
        ("max_num_seqs=many", "max_num_seqs"),
    ],
)
def test_a_what_if_that_is_none_is_refused_before_anything_runs(text: str, problem: str) -> None:
    def never(what: str) -> None:
        raise AssertionError(f"{what} has begun")

    with pytest.raises(InputError, match=problem):
        blis.explain(**BUSY, what_if=[text], stage=never)


# -- saved runs --------------------------------------------------------------------------------------


def test_a_saved_run_is_simulated_again_and_found_the_same(busy: Result, saved: Path) -> None:
    explanation = blis.explain(saved, what_if=False)
    assert explanation.not_reproduced is None
    assert explanation.as_dict()["ledger"] == blis.explain(busy, what_if=False).as_dict()["ledger"]
    assert "its figures are reproduced" in str(explanation)


def test_a_saved_run_that_comes_out_otherwise_reports_it(busy: Result, tmp_path: Path) -> None:
    folder = busy.save(tmp_path / "edited", plots=False)
    config = (folder / "config.yaml").read_text()
    write_text(
        folder / "config.yaml", config.replace("max_num_batched_tokens: 1024", "max_num_batched_tokens: 512")
    )
    marker = json.loads((folder / "complete.json").read_text())
    del marker["files"]["config.yaml"]
    write_text(folder / "complete.json", json.dumps(marker))
    explanation = blis.explain(folder, what_if=False)
    assert explanation.not_reproduced is not None
    assert "was" in explanation.not_reproduced
    assert "The saved run was not reproduced" in str(explanation)


# -- no such request ---------------------------------------------------------------------------------


def test_a_run_without_requests_has_a_page_that_reports_it(saved: Path) -> None:
    explanation = blis.explain(model="qwen3-14b", trace=str(saved / "trace.csv"), horizon=1)
    assert "Nothing to explain: there are no requests." in str(explanation)
    assert explanation.as_dict()["what_ifs"] == []


def test_without_served_requests_the_page_states_what_became_of_them() -> None:
    explanation = blis.explain(model="qwen3-14b", num_requests=20, prompt_tokens=3000, max_model_len=64)
    assert "none of the 20 requests got an answer: 20 unservable" in str(explanation)
    one = blis.explain(
        model="qwen3-14b",
        num_requests=20,
        prompt_tokens=3000,
        max_model_len=64,
        request="request_3",
        what_if=False,
    )
    assert "unservable" in str(one)
    assert one.ledger is not None
    assert sum(one.ledger.whole.values()) == one.ledger.total_ns


def test_a_class_without_requests_has_a_page_that_reports_it(busy: Result) -> None:
    assert "there are no requests of class critical" in str(blis.explain(busy, slo_class="critical"))


def test_one_request_has_a_page() -> None:
    explanation = blis.explain(model="qwen3-14b", num_requests=1)
    text = str(explanation)
    assert not re.search(r"\bnan\b", text)
    assert "of 1 request\n" in text
    assert explanation.typical == explanation.ledger


@pytest.mark.parametrize("metric", ["tpot.p99", "itl.p50"])
def test_answers_of_one_token_have_no_time_per_token_and_the_page_reports_it(metric: str) -> None:
    settings = {"output_tokens": 1, "output_tokens_stdev": 0, "output_tokens_min": 1}
    explanation = blis.explain(model="qwen3-14b", num_requests=5, **settings, metric=metric)
    assert "none of the 5 requests has one: 5 completed" in str(explanation)
    assert explanation.plot() is not None


def test_pages_of_block_diffusion_and_of_a_closed_loop(tmp_path: Path) -> None:
    loop = blis.explain(model="qwen3-14b", concurrency=3, num_requests=12, request="request_9", what_if=False)
    assert "its client waited" in str(loop)
    (tmp_path / "dllm.yaml").write_text("kind: diffusion\nblock_size: 32\nsteps: {mean: 6, cv: 0.5}\n")
    blocks = blis.explain(
        model="qwen3-14b",
        num_requests=12,
        block_size=32,
        max_num_seqs=64,
        dllm_workload=tmp_path / "dllm.yaml",
    )
    assert any("--no-dllm-fdfo" in one.change.title for one in blocks.what_ifs)
    assert blocks.ledger is not None
    assert sum(blocks.ledger.whole.values()) == blocks.ledger.total_ns


# -- the command -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_writes_the_page_as_json_and_as_pictures(
    saved: Path, tmp_path: Path, command: Command
) -> None:
    out = tmp_path / "out"
    code, printed, _ = command("explain", saved, "--metric", "ttft.p99", "--no-what-ifs", "--out", out)
    assert code == 0
    assert json.loads(printed) == json.loads((out / "explain.json").read_text())
    assert (out / "explain.png").read_bytes()[:4] == b"\x89PNG"
    assert "<svg" in (out / "explain.svg").read_text()
    again = tmp_path / "again"
    command("explain", saved, "--metric", "ttft.p99", "--no-what-ifs", "--out", again)
    for name in ("explain.json", "explain.png", "explain.svg"):
        assert (out / name).read_bytes() == (again / name).read_bytes()


def test_the_command_runs_from_flags_as_run_does(command: Command) -> None:
    flags = ("--model", "qwen3-14b", "--num-requests", 20, "--rate", 4, "--no-what-ifs")
    code, printed, said = command("explain", *flags, "--class", "standard")
    assert code == 0
    assert "KV capacity" in said
    report = json.loads(printed)
    assert report["question"] == "TTFT p99 of class standard"
    assert (
        report["value_ns"] / 1e6
        == blis.run(model="qwen3-14b", num_requests=20, rate=4).summary["cluster"]["ttft_ms"]["p99"]
    )


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "nothing to explain"),
        (("nowhere",), "no such folder"),
        (("SAVED", "--tp", 2), "changes the run, which is saved"),
        (("SAVED", "--force"), "needs a folder to write to"),
        (("SAVED", "--format", "vllm"), "unknown format"),
        (("SAVED", "--no-what-ifs", "--what-if", "tp=2"), "is given beside --what-if"),
        (("--model", "qwen3-14b", "--lora-config", "x"), "--lora-config"),
    ],
)
def test_what_cannot_be_explained_is_refused(
    saved: Path, command: Command, arguments: tuple[object, ...], complaint: str
) -> None:
    code, printed, said = command("explain", *(saved if word == "SAVED" else word for word in arguments))
    assert (code, printed) == (2, "")
    assert complaint in said
