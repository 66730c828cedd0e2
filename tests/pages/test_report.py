"""Reports: one file that needs nothing else, with the numbers of the result's own files."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from reading import Page, at

import blis_py as blis
from blis_py.cli import main
from blis_py.errors import InputError
from blis_py.pages.document import asset, bundle, html
from blis_py.pages.opening import report_of
from blis_py.pages.run import report


@pytest.fixture(scope="module")
def page(saved: Path) -> Page:
    return Page(report_of([saved / "fcfs"]))


@pytest.mark.slow
def test_every_number_in_a_report_is_the_one_of_summary_json(saved: Path, page: Page) -> None:
    summary = json.loads((saved / "fcfs" / "summary.json").read_text())
    found = [(source, value) for source, value, _ in page.cells if source.startswith("summary.json: ")]
    assert len(found) > 100
    for source, value in found:
        assert at(summary, source.removeprefix("summary.json: ")) == value, source
    assert page.data["files"]["summary.json"] == summary


def test_the_shown_text_of_a_number_is_its_value_rounded(page: Page) -> None:
    shown = {source: text for source, _, text in page.cells}
    p99 = page.data["files"]["summary.json"]["cluster"]["ttft_ms"]["p99"]
    assert shown["summary.json: cluster.ttft_ms.p99"].startswith(f"{p99:,.0f}")


def test_pools_and_hand_overs_have_tables_and_the_p99_its_ledger(tmp_path: Path) -> None:
    settings = {"model": "llama-3.1-8b", "rate": 10, "num_requests": 60, "xpyd": "2p1d"}
    result = blis.run(**settings)
    result.save(tmp_path / "run", plots=False)
    page = Page(report_of([tmp_path / "run"]))
    shown = {source: value for source, value, _ in page.cells}
    for pool in ("prefill", "decode"):
        assert shown[f"summary.json: pools.{pool}.visits"] == 60
    assert shown["summary.json: handovers.handovers"] == 60
    assert shown["config.yaml: num_instances × tp"] == 3
    assert "2 prefill and 1 decode instance of llama-3.1-8b on H100" in page.text
    assert "2 (decode)" in page.text
    assert "Each nanosecond of it is on one line" in page.text
    curves = {chart["title"]: chart.get("series") for chart in page.data["charts"]}
    own = result.summary["pools"]
    for title, key in (
        ("Time to first token, by pool", "ttft_ms"),
        ("End-to-end latency, by pool", "e2e_ms"),
    ):
        stated = [name for name in own if own[name][key]["p50"] is not None]
        assert [one["name"] for one in curves[title]] == stated, "vLLM's prefill emits no token"
        for one in curves[title]:
            drawn = dict(zip(one["y"], one["x"], strict=True))
            assert drawn[50] == pytest.approx(own[one["name"]][key]["p50"], rel=1e-4)
            assert drawn[99] == pytest.approx(own[one["name"]][key]["p99"], rel=1e-4)


def test_a_report_needs_no_other_file(page: Page) -> None:
    assert all(link.startswith(("#", "data:")) for link in page.links)
    assert "default-src 'none'" in page.html
    assert "http" not in bundle("report.js").replace("http://www.w3.org/2000/svg", "")


def test_the_verdict_and_warnings_come_first(page: Page) -> None:
    order = ["verdict", "The question", "The answer", "How sure, and why", "By class", "Where the time of"]
    order += ["Configuration", "Where the numbers are from", "To get it again"]
    places = [page.html.index(each, page.html.index("<main")) for each in order]
    assert places == sorted(places)
    assert "Misses 1 of 2 targets" in page.text
    assert "misses tpot.p90=1us" in page.text


def test_distributions_pass_through_the_percentiles_of_the_summary(page: Page) -> None:
    chart = page.data["charts"][0]
    own = page.data["files"]["summary.json"]["cluster"]["ttft_ms"]
    everyone = chart["series"][0]
    assert everyone["name"] == "all requests"
    assert everyone["x"][0] == pytest.approx(own["min"], rel=1e-4)
    assert everyone["x"][-1] == pytest.approx(own["max"], rel=1e-4)
    assert np.interp(50, everyone["y"], everyone["x"]) == pytest.approx(own["p50"], rel=0.05)


def test_the_command_in_a_report_gives_the_same_numbers(
    saved: Path, tmp_path: Path, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = page.text.index("cat > config.yaml")
    command = page.text[start : page.text.index("--out again", start) + len("--out again")]
    text = command.split("<<'YAML'\n")[1].split("\nYAML\n")[0]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text(text)
    assert main([*command.splitlines()[-1].split()[1:], "--no-plots"]) == 0
    again = json.loads((tmp_path / "again" / "summary.json").read_text())
    assert again["cluster"] == page.data["files"]["summary.json"]["cluster"]


@pytest.mark.slow
def test_two_runs_are_compared(saved: Path) -> None:
    page = Page(report_of([saved / "fcfs", saved / "sjf"]))
    comparison = blis.compare(saved / "fcfs", saved / "sjf").as_dict()
    assert page.data["files"]["compare.json"] == json.loads(json.dumps(comparison))
    assert "scheduler.policy" in page.text
    assert [one["name"] for one in page.data["charts"][0]["series"]] == ["fcfs", "sjf"]


@pytest.mark.slow
def test_a_folder_of_a_comparison_is_a_report_too(saved: Path, tmp_path: Path) -> None:
    assert main(["compare", str(saved / "fcfs"), str(saved / "sjf"), "--out", str(tmp_path / "both")]) == 0
    page = Page(report_of([tmp_path / "both"]))
    assert "Who gains, who loses" in page.text


@pytest.mark.slow
def test_a_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLIS_CACHE", str(tmp_path / "cache"))
    plan = blis.plan(
        rate=20,
        num_requests=60,
        model="llama-3.1-8b",
        slo="ttft.p99=500ms",
        instances="1:2",
        draws=2,
        most_requests=240,
        tune=False,
        workers=1,
    )
    plan.save(str(tmp_path / "plan"), plots=False)
    page = Page(report_of([tmp_path / "plan"]))
    best = json.loads((tmp_path / "plan" / "plan.json").read_text())["best"]
    values = {source: value for source, value, _ in page.cells}
    assert values["plan.json: best.dollars_per_hour"] == best["dollars_per_hour"]
    assert best["what"] in page.text


def test_a_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLIS_CACHE", str(tmp_path / "cache"))
    sweep = blis.sweep(
        vary={"rate": [5, 10]}, num_requests=40, model="llama-3.1-8b", slo="ttft.p99=9s", workers=1
    )
    sweep.save(tmp_path / "sweep", plots=False)
    page = Page(report_of([tmp_path / "sweep"]))
    assert "2 of 2 runs meet their targets." in page.text
    shown = [value for source, value, _ in page.cells if source.endswith("ttft_ms.p99")]
    assert shown == pytest.approx(sweep.table["ttft_ms.p99"].tolist())


def test_a_calibration(saved: Path, tmp_path: Path) -> None:
    measured, predicted = saved / "fcfs", saved / "sjf"
    arguments = ["calibrate", str(measured), "--results", str(predicted)]
    assert main([*arguments, "--report", str(tmp_path / "calibration.json")]) == 0
    found = json.loads((tmp_path / "calibration.json").read_text())
    page = Page(report_of([tmp_path / "calibration.json"]))
    values = {source: value for source, value, _ in page.cells}
    mean = found["latencies"][0]["seconds"]["mean"]["measured"]
    assert values["calibration.json: latencies[0].seconds.mean.measured"] == mean


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"num_requests": 1}, "A single request"),
        (
            {"num_requests": 5, "prompt_tokens": 7000, "prompt_tokens_min": 7000, "max_model_len": 100},
            "All 5 req",
        ),
    ],
)
def test_a_result_of_little_is_shown_as_what_it_is(settings: dict[str, object], says: str) -> None:
    result = blis.run(model="llama-3.1-8b", rate=5, **settings)
    page = Page(html(report(result)))
    assert says in page.text
    assert "latencies are of the others" not in page.text
    assert "-0" not in {text for _, _, text in page.cells}


def test_an_empty_result_reports_it() -> None:
    simulation = blis.build(model="llama-3.1-8b", rate=1, num_requests=5)
    result = replace(simulation, table=simulation.table.take(slice(0, 0))).run()
    page = Page(html(report(result)))
    assert "No requests: the workload is empty" in page.text
    assert page.data["charts"][0]["series"] == []


@pytest.mark.slow
def test_100_000_requests_stay_below_a_megabyte() -> None:
    lengths = {"prompt_tokens": 32, "output_tokens": 2, "prompt_tokens_max": 64, "output_tokens_max": 3}
    result = blis.run(model="llama-3.1-8b", rate=4000, num_requests=100_000, num_instances=8, **lengths)
    assert len(html(report(result)).encode()) < 1_000_000


def test_names_from_outside_do_nothing_to_the_page(tmp_path: Path) -> None:
    name = "<script>alert(1)</script>"
    result = blis.run(model="llama-3.1-8b", rate=5, num_requests=3)
    result.notes = (name,)
    text = html(report(result))
    assert name not in text
    assert Page(text).data["files"]["summary.json"]["notes"] == [name]


def test_what_is_no_result_is_one_clear_error(tmp_path: Path) -> None:
    for paths in ([], [tmp_path], [tmp_path / "none"]):
        with pytest.raises(InputError, match="name the folder"):
            report_of(paths)
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(InputError, match="no result that a report can be made of"):
        report_of([tmp_path])


def test_the_command_writes_the_file_and_prints_its_name(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "report.html"
    assert main(["report", str(saved / "sjf"), "-o", str(out), "--no-explain"]) == 0
    assert capsys.readouterr().out == f"{out}\n"
    assert "Where the time of" not in out.read_text()
    assert main(["report", str(saved / "sjf")]) == 2


def test_scripts_are_valid_as_one_file(tmp_path: Path) -> None:
    (tmp_path / "report.mjs").write_text(bundle("report.js"))
    assert "import " not in bundle("report.js")
    names = [line.split("(")[0] for line in bundle("report.js").splitlines() if line.startswith("function ")]
    assert len(names) == len(set(names)), "modules that are joined share a name"
    assert asset("style.css").count("{") == asset("style.css").count("}")
    try:
        subprocess.run(["node", "--check", tmp_path / "report.mjs"], check=True)
    except FileNotFoundError:
        pytest.skip("no node to check the syntax with")
