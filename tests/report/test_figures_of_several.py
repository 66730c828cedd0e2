"""Figures of several runs: which runs stand on one line, and what is drawn of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

import blis_py as blis
from blis_py.figures import hit_rate, pareto, throughput_latency
from blis_py.figures.lines import MAX_SERIES
from blis_py.figures.several import several
from blis_py.figures.trade import frontier

FIGURES = (throughput_latency, pareto, hit_rate)


def row(rate: float, scheduler: str = "fcfs", seed: int = 0, **others: Any) -> dict[str, Any]:
    """A row as a sweep writes it; latencies and throughput grow with the rate."""
    return {
        "rate": rate,
        "scheduler": scheduler,
        "seed": seed,
        "status": "ok",
        "verdict": "stable",
        "slo.ttft.p99=500ms": 100.0,
        **{f"{name}_ms.p99": 20 * rate + seed for name in ("ttft", "tpot", "e2e")},
        **{f"scheduling_delay_ms.{stat}": 5 * rate for stat in ("p50", "p99")},
        "tpot_ms.p50": 2 * rate,
        "throughput.output_tokens_per_s": 100 * rate,
        "output_tokens_per_s_per_gpu": 100 * rate,
        "prefix_hit_rate": 0.5,
        "prefix_hit_ceiling": 0.9,
        **others,
    }


def table(*rows: dict[str, Any]) -> pd.DataFrame:
    return pd.DataFrame(rows)


def test_runs_that_differ_in_the_rate_stand_on_one_line_in_its_order() -> None:
    drawn = several(table(row(20), row(5), row(10), row(10, "sjf")))
    assert (drawn.along, drawn.by) == ("workload.rate", ("scheduler.policy",))
    assert [series.name for series in drawn.series] == ["fcfs", "sjf"]
    assert [group.load for group in drawn.series[0].groups] == [5, 10, 20]
    assert drawn.about == "along a line: workload.rate from 5 to 20"


def test_runs_that_differ_in_their_seed_alone_are_one_point_with_a_band() -> None:
    drawn = several(table(row(5, seed=0), row(5, seed=1), row(5, seed=4), row(10)))
    (series,) = drawn.series
    assert [len(group.runs) for group in series.groups] == [3, 1]
    assert series.groups[0].values("ttft_ms.p99") == [100, 101, 104]
    assert series.groups[0].middle("ttft_ms.p99") == 101
    assert "medians of up to 3 seeds" in drawn.about


def test_other_lines_can_be_selected() -> None:
    runs = table(row(5, tp=1), row(5, tp=2), row(10, tp=1), row(10, tp=2))
    assert [series.name for series in several(runs).series] == ["tp 1", "tp 2"]
    assert [series.name for series in several(runs, ["workload.rate"]).series] == ["rate 5", "rate 10"]
    with pytest.raises(blis.InputError, match=r"no run has this setting.*workload\.rate, tp"):
        several(runs, ["scheduler.polcy"])


def test_runs_that_a_sweep_refused_or_lost_are_left_out() -> None:
    drawn = several(table(row(5), row(10, status="refused"), row(20, status="failed")))
    assert len(drawn.points) == 1
    with pytest.raises(blis.InputError, match="there is no run to draw"):
        several(table(row(5, status="failed")))


def test_the_foot_states_what_all_runs_share_and_what_varies(tmp_path: Path) -> None:
    sweep = tmp_path / "sweep.csv"
    table(row(5), row(10)).to_csv(sweep, index=False)
    assert several(sweep).foot == "scheduler fcfs · varied: workload.rate"
    common = "engine: vllm, gpu: h100, model: qwen3-14b, num_instances: 2, latency: {model: trained}"
    (tmp_path / "sweep.yaml").write_text(f"first: {{{common}}}")
    assert several(sweep).foot == (
        "2 instances of qwen3-14b on H100 · scheduler fcfs · engine vllm · step times trained · "
        "varied: workload.rate"
    )


def test_results_can_be_drawn_as_they_are() -> None:
    settings: dict[str, Any] = {"model": "qwen3-14b", "num_requests": 20, "slo": "ttft.p90=1s"}
    results = [blis.run(rate=rate, **settings) for rate in (2, 8)]
    drawn = several(results)
    assert (drawn.along, drawn.slos) == ("workload.rate", ["ttft.p90=1s"])
    assert drawn.foot.startswith("512 in / 512 out · 1 instance of qwen3-14b on H100 · scheduler fcfs")
    assert drawn.foot.endswith("varied: workload.rate")
    figure = throughput_latency(results)
    first = figure.axes[0]
    assert first.get_title(loc="left") == "Time to first token, p90", "the statistic that was promised"
    assert [text.get_text() for text in first.texts] == ["ttft.p90=1s"]
    reached = [result.summary["cluster"]["ttft_ms"]["p90"] for result in results]
    assert first.get_lines()[0].get_ydata().tolist() == reached


def test_a_run_that_could_not_keep_up_is_hollow_and_not_among_the_best() -> None:
    runs = table(row(5), row(10), row(20, verdict="saturated"))
    (ax,) = pareto(runs).axes
    all_of_them, those_that_keep_up, stairs = ax.get_lines()[:3]
    assert len(all_of_them.get_xdata()) == 3
    assert those_that_keep_up.get_xdata().tolist() == [100, 50]
    assert stairs.get_xdata().tolist() == [50, 100]
    legend = pareto(runs).legends[0]
    assert [text.get_text() for text in legend.get_texts()] == ["hollow: could not keep up"]


def test_the_best_are_those_that_none_beats_in_both() -> None:
    assert frontier([(1, 9), (2, 7), (1.5, 6), (3, 1), (2, 8)]) == [0, 4, 3]
    assert frontier([]) == []


@pytest.mark.parametrize("draw", FIGURES)
def test_runs_without_a_figure_are_left_out_and_no_run_at_all_is_reported(draw: Any, tmp_path: Path) -> None:
    none = dict.fromkeys([name for name in row(1) if "_ms." in name or "prefix" in name], float("nan"))
    draw(table(row(5), row(10, **none))).save(tmp_path / "some.png")
    figure = draw(table(row(5, **none)))
    figure.save(tmp_path / "none.svg")
    lines = [text.get_text() for ax in figure.axes for text in ax.texts]
    assert all(text.startswith("no run") for text in lines)
    assert len(lines) == len(figure.axes)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 9, MAX_SERIES + 5])
@pytest.mark.parametrize("draw", FIGURES)
def test_legends_and_titles_lie_over_nothing(draw: Any, count: int) -> None:
    rows = [
        row(rate, verdict="saturated" if rate > 8 else "stable", gpu=f"gpu-{index}-of-a-long-name")
        for index in range(count)
        for rate in (4, 8, 16)
    ]
    figure = draw(table(*rows))
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    (legend,) = figure.legends
    box = legend.get_window_extent(renderer)
    assert 0 <= box.x0 <= box.x1 <= figure.bbox.x1
    headline = figure._suptitle.get_window_extent(renderer)
    assert box.y1 <= headline.y0 + 1
    for ax in figure.axes:
        assert box.y0 >= ax._left_title.get_window_extent(renderer).y1
        assert ax.yaxis.label.get_window_extent(renderer).x0 >= 0
