"""A metric of requests is one registration: a column, a figure, a limit, a target, rows, pictures, labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import blis_py as blis
from blis_py.metrics.record import RunRecord
from blis_py.metrics.registry import METRICS, Floats, Metric, Places, Unit, where
from blis_py.pages.opening import report_of
from blis_py.pages.run import STATISTICS
from blis_py.pages.run import report as run_page
from blis_py.report.html import summary_html
from blis_py.ui import points

PROMPTS, OUTPUTS = (100, 200, 400), (1, 2, 5)
SHARES = [100 * prompt / (prompt + output) for prompt, output in zip(PROMPTS, OUTPUTS, strict=True)]
SETTINGS = {"model": "qwen3-14b", "max_num_seqs": 1, "async_scheduling": False}
VARIED = {"max_num_seqs": [1, 2]}
LABELS = ("wait per token", "prompt share")


def queueing_per_prompt_token(record: RunRecord) -> Floats:
    """The wait for the first step, shared among the tokens of the prompt."""
    waited = record.scheduled_ns - record.table.arrival_ns
    return where(record.scheduled_ns >= 0, waited, record.table.prompt_tokens)


def prompt_share(record: RunRecord) -> Floats:
    """The share of the prompt in all tokens of a request, in percent: a metric that is not a time."""
    prompt = record.table.prompt_tokens
    return where(record.finish_ns >= 0, 100 * prompt, prompt + record.emitted_tokens)


@pytest.fixture(autouse=True)
def _mine(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = Metric("wait_per_token", "wait per token", "Wait per prompt token", queueing_per_prompt_token)
    share = Metric(
        *("prompt_share", "prompt share", "Share of the prompt in all tokens", prompt_share), unit=Unit("pct")
    )
    monkeypatch.setitem(METRICS, mine.name, mine)
    monkeypatch.setitem(METRICS, share.name, share)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Three requests at once, of two classes and tenants."""
    rows = [
        f"0,{n},{m},{name}"
        for n, m, name in zip(PROMPTS, OUTPUTS, ("batch", "batch", "critical"), strict=True)
    ]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["arrival_s,input_tokens,output_tokens,slo_class", *rows, ""]))
    return path


@pytest.fixture
def result(trace: Path) -> blis.Result:
    """The requests at an instance that runs one at a time."""
    return blis.replay(
        trace,
        **SETTINGS,
        slo=["wait_per_token.max=1us", "prompt_share.min=99.5pct", "prompt_share.max=0.5"],
        goodput="wait_per_token:0.01ms prompt_share:99",
    )


def expected_ms(result: blis.Result) -> list[float]:
    return [
        delay / tokens for delay, tokens in zip(result.requests["scheduling_delay_ms"], PROMPTS, strict=True)
    ]


def test_it_is_a_column_of_the_requests(result: blis.Result) -> None:
    found = result.requests["wait_per_token_ms"]
    assert found.tolist() == pytest.approx(expected_ms(result), abs=1e-6)
    assert found[0] < found[1] < found[2]


def test_it_is_in_the_summary_and_can_be_limited(result: blis.Result) -> None:
    expected = expected_ms(result)
    figures = result.summary["cluster"]["wait_per_token_ms"]
    assert figures["count"] == 3
    assert figures["mean"] == pytest.approx(np.mean(expected), abs=1e-6)
    limit = result.summary["slo"][0]
    assert limit["measured_ms"] == pytest.approx(max(expected), abs=1e-6)
    assert limit["met"] is False
    good = [wait <= 0.01 and share <= 99 for wait, share in zip(expected, SHARES, strict=True)]
    assert result.summary["cluster"]["goodput"]["good"] == sum(good)


def test_its_unit_is_that_of_its_column_its_figures_and_its_limits(result: blis.Result) -> None:
    assert result.requests["prompt_share_pct"].tolist() == pytest.approx(SHARES, abs=1e-6)
    assert result.summary["cluster"]["prompt_share_pct"]["mean"] == pytest.approx(np.mean(SHARES))
    least, most = result.summary["slo"][1:]
    assert (least["limit_pct"], most["limit_pct"]) == (99.5, 0.5)
    assert least["measured_pct"] == pytest.approx(min(SHARES))
    assert (least["met"], most["met"]) == (True, False)


@pytest.mark.parametrize("text", ["prompt_share.max=0", "prompt_share.max=5ms", "prompt_share.max=half"])
def test_a_limit_in_another_unit_is_refused(text: str) -> None:
    with pytest.raises(blis.InputError, match=r"a positive number.*write it like 0\.5pct"):
        blis.build(model="qwen3-14b", num_requests=1, slo=text)


def test_it_is_in_the_tables_of_groups_and_instances(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from blis_py.report.table import print_summary

    summary = blis.replay(trace, **SETTINGS, num_instances=2).summary
    print_summary(summary, width=200)
    out = capsys.readouterr().out
    assert all(out.count(rest) == 2 for rest in ("per token p99", "share p99")), out
    page = summary_html({**summary, "notes": []}, "")
    assert all(f">{label} p99<" in page for label in LABELS)


@pytest.mark.slow
def test_it_is_in_a_comparison_and_its_picture(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from blis_py.report.compare import print_comparison

    runs = [blis.replay(trace, **SETTINGS), blis.replay(trace, **{**SETTINGS, "max_num_seqs": 2})]
    compared = blis.compare(*runs)
    print_comparison(compared.as_dict())
    out = capsys.readouterr().out
    parts = ("wait per token p99 ", "prompt share p99, pct ", "mean wait", "mean prompt")
    assert all(part in out for part in parts), out
    titles = {ax.get_title(loc="left").replace("\n", " ") for ax in compared.plot().figure.axes}
    assert {"Wait per prompt token", "Mean wait per token", "Mean prompt share"} <= titles


def test_it_is_beside_the_latency_models_and_in_the_what_ifs(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from blis_py.report.cross_check import print_cross_check
    from blis_py.sensitivity.cross_check import cross_check

    simulation = blis.build(trace=str(trace), **SETTINGS)
    print_cross_check(cross_check(simulation, simulation.run().summary))
    explained = blis.explain(simulation, metric="prompt_share.max", what_if=["max_num_seqs=2"])
    print(explained)
    out = capsys.readouterr().out.replace("\n", " ")
    assert out.count("wait per token p99") >= 1, out
    assert "prompt share max" in out


@pytest.mark.slow
def test_it_is_in_the_curves_of_a_sweep_and_over_the_throughput(trace: Path) -> None:
    from blis_py.figures import throughput_latency
    from blis_py.planning.curves import curves

    swept = blis.sweep(vary=VARIED, trace=str(trace), model="qwen3-14b", cache=False)
    drawn = curves(swept.table, VARIED)
    assert drawn is not None
    assert {"wait per token p99, ms", "prompt share p99, pct"} <= {
        ax.get_title(loc="left") for ax in drawn.figure.axes
    }
    over = [ax.get_title(loc="left") for ax in throughput_latency(swept).figure.axes]
    assert {"Wait per prompt token, p99", "Share of the prompt in all tokens, p99"} <= {*over}


@pytest.mark.slow
def test_it_is_a_row_of_the_tables_and_a_picture(
    result: blis.Result, capsys: pytest.CaptureFixture[str]
) -> None:
    from blis_py.report.table import print_summary

    print_summary(result.summary)
    assert "wait per token" in capsys.readouterr().out
    assert "wait per token" in summary_html({**result.summary, "notes": []}, "")
    for picture in (result.plot.wait_per_token(), result.plot.latency_cdf()):
        assert "Wait per prompt token" in [ax.get_title(loc="left") for ax in picture.figure.axes]


def test_it_is_in_the_page_of_a_run(result: blis.Result) -> None:
    page = run_page(result)
    texts = [each.text for each in page.findings]
    assert "misses prompt_share.max=0.5: 99.0 pct (limit 0.50 pct)" in texts
    tiles, charts = page.sections[1].tiles, page.sections[1].charts
    mean_ms = np.mean(expected_ms(result))
    shown = {f"{tile.name}, {tile.unit}" for tile in tiles}
    assert {"wait per token p99, ms", "prompt share p50, pct"} <= shown
    titles = {each["title"] for each in charts}
    assert {"Wait per prompt token", "Share of the prompt in all tokens"} <= titles
    assert [each["x"]["label"] for each in charts if each["title"].startswith("Share")] == ["pct"]
    tables = {table.caption: table for section in page.sections for table in section.tables}
    whole = tables["Latencies of the whole cluster"]
    means = {row[0].text: row[1 + STATISTICS.index("mean")].value for row in whole.rows}
    assert means["wait per token, ms"] == pytest.approx(mean_ms, abs=1e-6)
    assert means["prompt share, pct"] == pytest.approx(np.mean(SHARES))
    assert "prompt share p99, pct" in tables["By SLO class"].headings


def test_it_is_in_the_page_and_the_picture_of_pools() -> None:
    result = blis.run(model="qwen3-14b", num_requests=4, xpyd="1p1d")
    tables = {table.caption: table for section in run_page(result).sections for table in section.tables}
    assert {"wait per token p99, ms", "prompt share p50, pct"} <= {*tables["By pool"].headings}
    titles = {ax.get_title(loc="left") for ax in result.plot.pools().figure.axes}
    assert {"Wait per prompt token", "Mean wait of a hand-over"} <= titles


@pytest.mark.slow
def test_it_is_in_the_page_of_a_comparison(trace: Path, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "other")]
    for folder, seqs in zip(folders, (1, 2), strict=True):
        blis.replay(trace, **{**SETTINGS, "max_num_seqs": seqs}).save(folder, plots=False)
    page = report_of(folders)
    assert '"title": "Wait per prompt token"' in page or '"title":"Wait per prompt token"' in page
    assert "prompt share mean, pct" in page


@pytest.mark.slow
def test_it_is_in_the_page_of_a_sweep(trace: Path, tmp_path: Path) -> None:
    blis.sweep(vary=VARIED, trace=str(trace), model="qwen3-14b", cache=False).save(tmp_path / "swept")
    page = report_of([tmp_path / "swept"])
    for title in (*(f"{label} p99 against throughput" for label in LABELS), "prompt share p99, pct"):
        assert title in page


def test_it_is_beside_the_latency_models_on_the_page(trace: Path) -> None:
    from blis_py.pages.run import sure
    from blis_py.sensitivity.cross_check import cross_check

    simulation = blis.build(trace=str(trace), **SETTINGS)
    summary = simulation.run().summary
    (models,) = sure({**summary, "cross_check": cross_check(simulation, summary)}).tables
    p99 = [row[models.headings.index("prompt_share_pct.p99")].value for row in models.rows]
    assert any(value == summary["cluster"]["prompt_share_pct"]["p99"] for value in p99)


def test_it_is_on_an_axis_and_in_the_classes_of_the_live_page(result: blis.Result) -> None:
    axis = {"key": "prompt_share_pct.p99", "label": "prompt share p99", "unit": "pct"}
    assert axis in points.axes()
    assert points.columns()[axis["key"]] == "prompt share p99, pct"
    summary = result.summary
    for shown in (points.point(summary, result.settings), *points.classes(summary)):
        assert min(SHARES) <= shown[axis["key"]] <= max(SHARES)


def test_it_can_be_in_the_picture_at_a_glance(result: blis.Result, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Metric("seen", "seen", "Seen", queueing_per_prompt_token, shown=Places(overview=True))
    monkeypatch.setitem(METRICS, shown.name, shown)
    titles = [ax.get_title(loc="left") for ax in result.plot.overview().figure.axes]
    assert titles[2:5] == ["Seen", "Requests", "KV cache in use, %"]


def test_a_saved_result_has_it(result: blis.Result, tmp_path: Path) -> None:
    result.save(tmp_path / "out", plots=False)
    loaded = blis.load(tmp_path / "out")
    assert loaded.requests["wait_per_token_ms"].tolist() == result.requests["wait_per_token_ms"].tolist()
    assert loaded.view.latency_ms["wait_per_token"].tolist() == pytest.approx(expected_ms(result), abs=1e-6)


def test_a_result_saved_without_it_opens_with_it_and_the_other_way_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, few = METRICS["wait_per_token"], {"model": "qwen3-14b", "num_requests": 2}
    blis.run(**few).save(tmp_path / "with", plots=False)
    monkeypatch.delitem(METRICS, "wait_per_token")
    blis.run(**few).save(tmp_path / "without", plots=False)
    assert "wait_per_token" not in blis.load(tmp_path / "with").view.latency_ms
    assert len(blis.load(tmp_path / "with").requests) == 2
    monkeypatch.setitem(METRICS, "wait_per_token", mine)
    assert "wait_per_token" not in blis.load(tmp_path / "without").view.latency_ms


def test_without_a_name_in_the_table_a_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(METRICS, "wait_per_token")
    with pytest.raises(blis.InputError, match="not a goodput target"):
        blis.build(model="qwen3-14b", num_requests=1, goodput="wait_per_token:0.01ms")
