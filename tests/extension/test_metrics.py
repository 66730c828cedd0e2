"""A metric of requests is one registration: a column, a figure, a limit, a target, a row, a picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import blis_py as blis
from blis_py.figures.distributions import one_latency
from blis_py.metrics.record import RunRecord
from blis_py.metrics.registry import METRICS, Floats, Metric, where
from blis_py.report.html import summary_html

PROMPTS, OUTPUTS = (100, 200, 400), (1, 2, 5)


def queueing_per_prompt_token(record: RunRecord) -> Floats:
    """The wait for the first step, shared among the tokens of the prompt."""
    waited = record.scheduled_ns - record.table.arrival_ns
    return where(record.scheduled_ns >= 0, waited, record.table.prompt_tokens)


@pytest.fixture(autouse=True)
def _mine(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = Metric("wait_per_token", "wait per token", "Wait per prompt token", queueing_per_prompt_token)
    monkeypatch.setitem(METRICS, mine.name, mine)


@pytest.fixture
def result(tmp_path: Path) -> blis.Result:
    """Three requests at once at an instance that runs one at a time."""
    rows = [f"0,{n},{m}" for n, m in zip(PROMPTS, OUTPUTS, strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(["arrival_s,input_tokens,output_tokens", *rows, ""]))
    settings = {"model": "qwen3-14b", "max_num_seqs": 1, "async_scheduling": False}
    return blis.replay(
        tmp_path / "t.csv", **settings, slo="wait_per_token.max=1us", goodput="wait_per_token:0.01ms"
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
    (limit,) = result.summary["slo"]
    assert limit["measured_ms"] == pytest.approx(max(expected), abs=1e-6)
    assert limit["met"] is False
    assert result.summary["cluster"]["goodput"]["good"] == sum(each <= 0.01 for each in expected)


def test_it_is_a_row_of_the_tables_and_a_picture(
    result: blis.Result, capsys: pytest.CaptureFixture[str]
) -> None:
    from blis_py.report.table import print_summary

    print_summary(result.summary)
    assert "wait per token" in capsys.readouterr().out
    assert "wait per token" in summary_html({**result.summary, "notes": []}, "")
    picture = one_latency(result.view, "wait_per_token")
    assert "Wait per prompt token" in [ax.get_title(loc="left") for ax in picture.figure.axes]


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
