"""The guide to trust, the page of validation and the picture show the committed figures of real engines."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from examples import ROOT

STATISTICS = [(metric, statistic) for metric in ("TTFT", "TPOT", "E2E") for statistic in ("mean", "p99")]
ROUNDED = 0.06
"""Per cent: results have five digits, the guide one behind the point."""

Row = dict[str, Any]


@pytest.fixture(scope="module")
def figures() -> list[Row]:
    path = ROOT / "benchmarks" / "results" / "real_engines.json"
    rows: list[Row] = json.loads(path.read_text(encoding="utf-8"))
    return rows


@pytest.fixture(scope="module")
def tables() -> list[list[str]]:
    """The rows of all tables of both pages, as cells."""
    pages = ROOT / "docs" / "trust.md", ROOT / "benchmarks" / "results" / "validation.md"
    lines = [line for page in pages for line in page.read_text(encoding="utf-8").splitlines()]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|")]


def row_of(tables: Sequence[list[str]], begin: str) -> list[str]:
    (found,) = [cells[1:] for cells in tables if cells[0].startswith(begin)]
    return found


def errors(rows: Sequence[Row], **wanted: object) -> Any:
    """In per cent."""
    found = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
    return np.array([100 * (row["predicted"] / row["measured"] - 1) for row in found])


def shown(cell: str) -> float:
    return float(cell.removesuffix("%"))


def test_the_five_runs_have_the_errors_of_the_results(figures: list[Row], tables: list[list[str]]) -> None:
    five = [row for row in figures if row["truth"] == "five H100 runs"]
    cases = {row["case"] for row in five}
    assert len(cases) == 5
    for case in cases:
        found = [errors(five, case=case, metric=m, statistic=s)[0] for m, s in STATISTICS]
        assert [shown(cell) for cell in row_of(tables, case)] == pytest.approx(found, abs=ROUNDED)
    means = [np.abs(errors(five, metric=m, statistic=s)).mean() for m, s in STATISTICS]
    cells = row_of(tables, "mean of the absolute errors")
    assert [shown(cell) for cell in cells] == pytest.approx(means, abs=ROUNDED)


def test_the_runs_on_workstation_cards_have_the_errors_of_the_results(
    figures: list[Row], tables: list[list[str]]
) -> None:
    heads = next(index for index, cells in enumerate(tables) if cells[0] == "run, `kernel-tables`")
    rows = tables[heads + 2 : heads + 8]
    for (_, metric, mean, *_, p99), case in zip(rows, ["RTX4090"] * 3 + ["RTXPRO6000"] * 3, strict=True):
        found = [errors(figures, case=case, metric=metric, statistic=s)[0] for s in ("mean", "p99")]
        assert [shown(mean), shown(p99)] == pytest.approx(found, abs=ROUNDED)


def test_every_group_of_closed_loops_has_the_errors_of_the_results(
    figures: list[Row], tables: list[list[str]]
) -> None:
    loops = [row for row in figures if row["truth"] == "closed loops"]
    kinds = [(metric, prices) for metric in ("TTFT", "TPOT") for prices in ("trained", "kernel-tables")]
    for model, gpu, tp in {(row["model"], row["gpu"], row["tp"]) for row in loops}:
        points, *cells = row_of(tables, f"{model} on {gpu} TP{tp},")
        for cell, (metric, prices) in zip(cells, kinds, strict=True):
            found = errors(loops, model=model, gpu=gpu, tp=tp, metric=metric, prices=prices)
            assert len(found) == int(points)
            lines = [float(number) for number in re.findall(r"([+-]?\d+)%", cell)]
            assert lines == pytest.approx([np.median(np.abs(found)), np.median(found)], abs=0.51)


def test_the_first_table_has_the_figures_of_the_accuracy_page(tables: list[list[str]]) -> None:
    page = (ROOT / "benchmarks" / "results" / "accuracy.md").read_text(encoding="utf-8")

    def all_of(section: str) -> list[str]:
        part = page.partition(f"## {section}")[2]
        return next(line for line in part.splitlines() if line.startswith("| all |")).split(" | ")[2:]

    ttft, ttft_median, _, _, tpot, tpot_median = map(float, all_of("In short")[:6])
    assert row_of(tables, "public benchmarks") == [
        f"TPOT {tpot:.0f} % in the mean, {tpot_median:.0f} % in the median",
        f"{ttft:.0f} % in the mean, {ttft_median:.0f} % in the median",
    ]
    ttft, _, tpot = map(float, all_of("Each model family left out")[:3])
    assert row_of(tables, "a model family") == [f"TPOT {tpot:.0f} %", f"{ttft:.0f} %"]


def test_servers_of_other_sources_have_the_errors_of_the_results(tables: list[list[str]]) -> None:
    figures = json.loads((ROOT / "benchmarks" / "results" / "truth.json").read_text())["figures"][
        "open loops"
    ]

    def off(metric: str, *names: str, below: float = np.inf) -> tuple[float, float]:
        found = [
            100 * abs(error)
            for name, error in figures.items()
            if name.startswith(names) and metric in name.lower() and _rate(name) < below
        ]
        return np.mean(found), np.max(found)

    for row, names in (("servers of other", ("exp0", "exp2")), ("the same: Llama-4", ("exp4",))):
        tpot, e2e, (ttft, worst) = off("tpot", *names)[0], off("e2e", *names)[0], off("ttft", *names)
        lines = row_of(tables, row)
        assert lines[0] == f"TPOT {tpot:.0f} %, E2E {e2e:.0f} %"
        assert lines[1].startswith(f"{ttft:.0f} %")
        assert f"{worst:.0f} %" in lines[1]
    assert f" {off('ttft', 'exp4', below=30)[0]:.0f} % below 30" in lines[1]
    closed = [f"TPOT {off('tpot', 'qwen3')[0]:.0f} %", f"{off('ttft', 'qwen3')[0]:.0f} % (1 point)"]
    assert row_of(tables, "the same: Qwen3") == closed
    names = "exp0", "exp2", "exp4", "qwen3"
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    ttft, worst = off("ttft", *names)
    assert f"TTFT is {ttft:.0f} % off on average ({worst:.0f} % in the worst" in readme
    assert f"and TPOT {off('tpot', *names)[0]:.0f} %." in readme


def _rate(name: str) -> float:
    """Requests per second of a recorded run."""
    rate = name.split()[0].rpartition("_")[2]
    return float(rate) if rate.replace(".", "").isdigit() else 0.0


def test_the_picture_shows_every_point_that_can_be_true_within_its_axes(
    figures: list[Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "docs"), *sys.path])
    import trust_picture

    by_kernels = [row for row in figures if row["truth"] == "two RTX runs"]
    by_trained = [row for row in figures if row["prices"] in ("trained", "trained, run left out")]
    alone = "qwen3-32b FP8"
    rows = [row for row in by_kernels + by_trained if row["consistent"] and row["model"] != alone]
    times, ratios = np.split(np.array(trust_picture.figure().axes), 2)
    for metric, above, below in zip(("TTFT", "TPOT"), times, ratios, strict=True):
        of = [row for row in rows if row["metric"] == metric]
        predicted = [(row["measured"], row["predicted"]) for row in of]
        for ax, points in ((above, predicted), (below, [(x, y / x) for x, y in predicted])):
            assert sorted(_drawn(ax)) == sorted(points)
            (left, right), (low, high) = ax.get_xlim(), ax.get_ylim()
            assert all(left < x < right and low < y < high for x, y in points)


def _drawn(ax: Any) -> list[tuple[float, float]]:
    lines = [line for line in ax.lines if line.get_linestyle() == "None"]
    return [(float(x), float(y)) for line in lines for x, y in line.get_xydata()]
