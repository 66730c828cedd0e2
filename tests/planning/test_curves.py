"""Curves over the settings of a sweep: means over the seeds, with their confidence."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from scipy.stats import t

from blis_py.planning.curves import _across, _half_width, _is_number, _named, curves, save_curves

AXES = {"gpu": ("h100", "l40s"), "rate": (1, 2, 4)}


def swept(seeds: int) -> pd.DataFrame:
    rows = [
        {"gpu": gpu, "rate": rate, "seed": seed, "status": "ok", "ttft_ms.p99": 10 * rate + seed}
        for gpu in AXES["gpu"]
        for rate in AXES["rate"]
        for seed in range(seeds)
    ]
    return pd.DataFrame([*rows, {"gpu": "a100", "rate": 8, "seed": 0, "status": "refused"}])


def panel(picture: Any) -> Any:
    return next(ax for ax in picture.figure.axes if "TTFT" in ax.get_title(loc="left") and ax.lines)


def headlines(picture: Any) -> str:
    return " ".join(text.get_text() for text in picture.figure.texts)


def test_a_line_for_each_gpu_has_the_means_and_their_intervals() -> None:
    """Student's distribution with 2 degrees of freedom: three seeds, 0, 1 and 2 ms more."""
    picture = curves(swept(3), AXES)
    ax = panel(picture)
    assert [line.get_label() for line in ax.lines] == ["gpu h100", "gpu l40s"]
    assert ax.lines[0].get_xydata().tolist() == [[1, 11], [2, 21], [4, 41]]
    half = t.ppf(0.95, 2) / 3**0.5
    bounds = ax.collections[0].get_datalim(ax.transData)
    assert (bounds.ymin, bounds.ymax) == pytest.approx((11 - half, 41 + half))
    assert "18 runs over rate: mean of 3 seeds, band: 90 % confidence" in headlines(picture)


def test_one_run_each_has_no_interval() -> None:
    picture = curves(swept(1), AXES)
    assert "6 runs over rate: one run each" in headlines(picture)
    assert not panel(picture).collections


def test_of_many_lines_the_first_are_drawn_and_the_others_counted() -> None:
    rows = [{"tp": tp, "rate": 1, "seed": 0, "status": "ok", "ttft_ms.p99": 1.0} for tp in range(14)]
    picture = curves(pd.DataFrame(rows), {"rate": (1,), "tp": tuple(range(14))})
    assert len(panel(picture).lines) == 12
    assert "one run each; the first 12 of 14 lines" in headlines(picture)


def test_nothing_is_drawn_of_nothing() -> None:
    assert curves(swept(1).query("status != 'ok'"), AXES) is None
    assert curves(swept(1), {}) is None


@pytest.mark.parametrize(("most", "scale"), [(30, "linear"), (30.1, "log")])
def test_values_that_differ_by_more_than_thirty_have_a_logarithmic_axis(most: float, scale: str) -> None:
    rows = [
        {"rate": rate, "seed": 0, "status": "ok", "ttft_ms.p99": value}
        for rate, value in ((1, 1.0), (2, most))
    ]
    assert panel(curves(pd.DataFrame(rows), {"rate": (1, 2)})).get_yscale() == scale


@pytest.mark.parametrize("metric", ["ttft_ms.p99", "tpot_ms.p99"])
def test_the_legend_names_the_lines_whichever_metric_was_measured(metric: str) -> None:
    picture = curves(swept(1).rename(columns={"ttft_ms.p99": metric}), AXES)
    (legend,) = picture.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["gpu h100", "gpu l40s"]


def test_curves_run_over_the_first_numeric_setting() -> None:
    assert _across({"gpu": ("a", "b"), "mixed": (1, "auto"), "rate": (1, 2.5), "tp": (1, 2)}) == "rate"
    assert _across({"gpu": ("a", "b"), "flag": (True, False)}) == "gpu"
    assert [_is_number(value) for value in (1, 1.5, True, "1", None)] == [True, True, False, False, False]
    assert _named(("gpu", "tp"), ("h100", 2)) == "gpu h100, tp 2"
    assert (_named(("gpu",), "h100"), _named((), ())) == ("gpu h100", "all")
    assert (_half_width(1.0, 1), _half_width(1.0, 2)) == (0.0, pytest.approx(6.3137515))


def test_settings_of_two_kinds_are_drawn_as_words(tmp_path: Any) -> None:
    rows = [
        {"mode": mode, "seed": 0, "status": "ok", "ttft_ms.p99": value}
        for mode, value in (("1", 3.0), ("auto", 5.0))
    ]
    axes = {"mode": (1, "auto")}
    picture: Any = curves(pd.DataFrame(rows), axes)
    panel = next(ax for ax in picture.figure.axes if ax.lines)
    assert [tick.get_text() for tick in panel.get_xticklabels()] == ["1", "auto"]
    assert save_curves(pd.DataFrame(rows), {}, tmp_path) == []
