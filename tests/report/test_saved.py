"""A result read back from its files is the result that was saved, as far as its files go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import blis_py as blis
from blis_py.figures.saving import figures

RUN: dict[str, Any] = {"model": "qwen3-14b", "workload": "mixed-slo", "num_requests": 80, "num_instances": 2}


@pytest.fixture(scope="module")
def result() -> blis.Result:
    return blis.run(**RUN, slo="ttft.p99=500ms", goodput="ttft:300")


@pytest.fixture(scope="module")
def folder(result: blis.Result, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return result.save(tmp_path_factory.mktemp("saved") / "out", plots=False, itl=True)


def plain(frame: pd.DataFrame) -> pd.DataFrame:
    """With labels as text: categories come in another order from a file."""
    return frame.astype({name: object for name in frame if frame[name].dtype == "category"})


@pytest.mark.slow
def test_it_has_the_same_summary_tables_and_configuration(result: blis.Result, folder: Path) -> None:
    saved = blis.load(folder)
    assert saved.summary == result.summary
    assert saved.config == result.config
    assert saved.notes == result.notes
    pd.testing.assert_frame_equal(plain(saved.requests), plain(result.requests))
    pd.testing.assert_frame_equal(saved.steps, result.steps)
    assert repr(saved).partition("\n")[2] == repr(result).partition("\n")[2]
    assert saved._repr_html_() == result._repr_html_()


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*figures()} - {"itl", "latency_cdf", "overview", "pools"}))
def test_it_draws_the_same_pictures(name: str, result: blis.Result, folder: Path) -> None:
    shown, drawn = blis.load(folder).plot, result.plot
    assert getattr(shown, name)()._repr_png_() == getattr(drawn, name)()._repr_png_()


@pytest.mark.slow
def test_it_draws_the_same_pools(tmp_path: Path) -> None:
    result = blis.run(**{**RUN, "num_instances": 2, "prefill_instances": 1, "decode_instances": 1})
    saved = blis.load(result.save(tmp_path / "out", plots=False))
    assert saved.plot.pools()._repr_png_() == result.plot.pools()._repr_png_()


def test_the_times_of_tokens_come_back_in_microseconds(result: blis.Result, folder: Path) -> None:
    rows = result.view.classes["critical"]
    saved, live = blis.load(folder).view.samples("itl", rows), result.view.samples("itl", rows)
    assert saved.count == live.count
    assert saved.mean() == pytest.approx(live.mean(), abs=0.001)


def test_without_the_times_of_tokens_a_figure_states_that_it_shows_means(tmp_path: Path) -> None:
    blis.run(**RUN).save(tmp_path / "out", plots=False)
    (ax,) = blis.load(tmp_path / "out").plot.itl().axes
    assert ax.get_title(loc="left") == "Inter-token latency, mean of each request"
    assert ax.get_ylabel() == "% of requests"


@pytest.mark.parametrize("name", ["record", "simulation", "vllm", "blis", "save"])
def test_what_the_files_do_not_hold_is_named_with_the_way_to_get_it(name: str, folder: Path) -> None:
    saved = blis.load(folder)
    with pytest.raises(AttributeError, match=rf"no '{name}'.*blis\.run\(.*config\.yaml"):
        getattr(saved, name)
    assert not hasattr(saved, name)


def test_why_requests_were_turned_away_and_how_long_they_waited_comes_back(tmp_path: Path) -> None:
    queue = {"flow_control": True, "saturation_detector": "concurrency", "max_concurrency_per_instance": 2}
    result = blis.run(**RUN | {"num_requests": 200}, rate=100.0, **queue, max_gateway_queue_depth=9)
    assert result.summary["cluster"]["requests"]["rejected"] > 0
    result.save(tmp_path / "out", plots=False)
    saved = blis.load(tmp_path / "out")
    assert saved.summary == result.summary
    pd.testing.assert_frame_equal(plain(saved.requests), plain(result.requests))
    assert {"rejected_because", "gateway_queue_ms"} <= {*saved.requests}


@pytest.mark.slow
def test_requests_that_got_nowhere_come_back_too(tmp_path: Path) -> None:
    result = blis.run(model="qwen3-14b", num_requests=12, rate=50, timeout=0.01, num_kv_blocks=600)
    assert result.summary["cluster"]["requests"]["completed"] == 0
    result.save(tmp_path / "out", plots=False)
    saved = blis.load(tmp_path / "out")
    pd.testing.assert_frame_equal(plain(saved.requests), plain(result.requests))
    assert "0 completed" in repr(saved)
    assert "0 of 12 requests completed" in saved._repr_html_()
    saved.plot.save(tmp_path / "plots")


@pytest.mark.slow
def test_a_run_of_block_diffusion_comes_back(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"model": "llada2.0-mini", "block_size": 32, "max_num_seqs": 8}
    result = blis.run(workload="diffusion-tiny", num_requests=20, latency_model="roofline", **settings)
    saved = blis.load(result.save(tmp_path / "out", plots=False))
    pd.testing.assert_frame_equal(plain(saved.requests), plain(result.requests))
    assert saved.plot.batch()._repr_png_() == result.plot.batch()._repr_png_()


def test_what_is_no_result_is_reported(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(blis.InputError, match="no such folder"):
        blis.load(tmp_path / "nowhere")
    with pytest.raises(blis.InputError, match=r"holds no result: there is no config\.yaml"):
        blis.load(tmp_path)
    (tmp_path / "run.yaml").write_text("{}")
    with pytest.raises(blis.InputError, match=r"is a measured run.*blis calibrate"):
        blis.load(tmp_path)


def test_a_damaged_table_is_reported_with_its_line(result: blis.Result, tmp_path: Path) -> None:
    folder = result.save(tmp_path / "out", plots=False)
    text = (folder / "requests.csv").read_text()
    (folder / "requests.csv").write_text(text.replace(".", "x", 1))
    with pytest.raises(blis.InputError, match=r"requests\.csv:2: arrival_s: not a number"):
        _ = blis.load(folder).requests


@pytest.mark.parametrize(
    "text", ["{}", '{"cluster": 3}', "[]", '{"cluster": {"requests": {"injected": "x"}}}']
)
def test_a_summary_that_is_none_is_reported(text: str, result: blis.Result, tmp_path: Path) -> None:
    folder = result.save(tmp_path / "out", plots=False)
    (folder / "summary.json").write_text(text)
    (folder / "complete.json").write_text("{}")
    with pytest.raises(blis.InputError, match=r"summary\.json"):
        blis.load(folder)


def test_a_result_shows_itself_in_a_dozen_lines(result: blis.Result) -> None:
    lines = repr(result).splitlines()
    assert lines[0].startswith("Result: mixed-slo · 2 instances of qwen3-14b on H100 · scheduler fcfs")
    assert len(lines) < 20
    assert max(map(len, lines)) <= 110
    assert any(line.startswith("TTFT") for line in lines)
    html = result._repr_html_()
    assert html.count("<table>") == html.count("</table>") == 3
    assert "ttft.p99=500ms" in html


def test_names_in_html_are_text(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n" + "0,100,10\n" * 12)
    shares = {"<b>x</b>": 0.5, "standard": 0.5}
    urgency = {"slo_priorities": {"<b>x</b>": 2}}
    result = blis.replay(trace, model="qwen3-14b", slo_shares=shares, seed=1, admission=urgency)
    html = result._repr_html_()
    assert "&lt;b&gt;x" in html
    assert "<b>x" not in html


@pytest.mark.slow
def test_figures_complete_by_name_and_unknown_ones_are_reported(result: blis.Result, tmp_path: Path) -> None:
    assert {*figures()} <= {name for name in dir(result.plot) if not name.startswith("_")}
    written = result.plot.save(tmp_path, ["ttft", "batch"], ("svg",))
    assert [path.name for path in written] == ["ttft.svg", "batch.svg"]
    with pytest.raises(blis.InputError, match=r"no such figure.*did you mean 'timeline'"):
        result.plot.save(tmp_path, ["timelin"])
    hasty = blis.build(**RUN).run(record_steps=False)
    with pytest.raises(blis.InputError, match="did not record its steps"):
        hasty.plot.timeline()
    with pytest.raises(blis.InputError, match=r"unknown kind of picture.*\.svg"):
        result.plot.ttft().save(tmp_path / "ttft.gif")
