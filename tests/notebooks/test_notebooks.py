from __future__ import annotations

import base64
import runpy
from pathlib import Path
from typing import Any

import pytest

jupytext = pytest.importorskip("jupytext", reason="the notebooks need the extra `notebooks`")

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
PAIRS = sorted(path for path in FOLDER.glob("*.py") if path.with_suffix(".ipynb").exists())
INSTANCES = FOLDER / "instances_and_slo_classes.py"
CALIBRATE = FOLDER / "calibrate_against_an_engine.py"


def sources(path: Path) -> list[tuple[str, str]]:
    return [(cell.cell_type, cell.source) for cell in jupytext.read(path).cells]


def outputs(path: Path) -> list[Any]:
    cells = jupytext.read(path.with_suffix(".ipynb")).cells
    return [output for cell in cells if cell.cell_type == "code" for output in cell.outputs]


def test_source_and_notebook_are_in_step() -> None:
    assert PAIRS
    for source in PAIRS:
        assert sources(source) == sources(source.with_suffix(".ipynb")), f"run notebooks/build.py: {source}"


def test_committed_notebooks_were_executed_from_top_to_bottom_without_an_error() -> None:
    for source in PAIRS:
        code = [c for c in jupytext.read(source.with_suffix(".ipynb")).cells if c.cell_type == "code"]
        assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
        assert not [output for output in outputs(source) if output.output_type == "error"]


def test_committed_notebooks_are_small_and_bear_no_trace_of_a_machine() -> None:
    for source in PAIRS:
        text = source.with_suffix(".ipynb").read_text(encoding="utf-8")
        assert len(text) < 300_000
        assert "execution" not in text.replace("execution_count", "")
        for output in outputs(source):
            picture = base64.b64decode(output.get("data", {}).get("image/png", ""))
            assert b"Software" not in picture
            assert output.get("name") != "stderr"


def test_the_answer_at_the_top_is_what_the_committed_run_printed() -> None:
    printed = "".join(output.text for output in outputs(INSTANCES) if output.output_type == "stream")
    (sentence,) = [line for line in printed.splitlines() if line.startswith("This hour takes")]
    assert sources(INSTANCES)[0][1].count(f"**Answer:** {sentence}") == 1


def test_on_the_beginning_of_the_hour_the_notebook_draws_its_figures_and_comes_to_the_same_conclusions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.close("all")
    monkeypatch.setenv("BLIS_NOTEBOOK_NUM_REQUESTS", "1500")
    monkeypatch.setattr("IPython.display.display", lambda *shown: None)
    with matplotlib.rc_context():
        names = runpy.run_path(str(INSTANCES))

    figures = [plt.figure(number) for number in plt.get_fignums()]
    assert len(figures) == 3
    for ax in (ax for figure in figures for ax in figure.axes):
        assert ax.get_title(loc="left")
        assert ax.lines or ax.patches

    attainment = names["sweep"].pivot(index="instances", columns="scheduler", values="attainment")
    assert (attainment.iloc[-1] > attainment.iloc[0]).all(), "more instances serve people better"
    assert (attainment["priority-fcfs"] >= attainment["fcfs"]).all(), "and so do priorities"
    assert attainment["priority-fcfs"].iloc[0] > attainment["fcfs"].iloc[0]

    with_classes, without = names["smallest"]("priority-fcfs"), names["smallest"]("fcfs")
    assert with_classes is not None
    assert without is None or with_classes < without, "with priorities a smaller cluster is enough"

    p99_ms = names["compared"].set_index("scheduler")["critical TTFT p99, ms"]
    assert p99_ms["priority-fcfs"] < p99_ms["fcfs"] <= p99_ms["reverse-priority"]


def test_on_a_small_run_the_calibration_notebook_names_the_planted_mistakes_and_their_fixes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("torch", reason="the engine needs the extra `engine`")
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.close("all")
    monkeypatch.setenv("BLIS_NOTEBOOK_SMALL", "1")
    monkeypatch.setattr("IPython.display.display", lambda *shown: None)
    with matplotlib.rc_context():
        names = runpy.run_path(str(CALIBRATE))

    figures = [plt.figure(number) for number in plt.get_fignums()]
    assert len(figures) == 5
    for ax in (ax for figure in figures for ax in figure.axes):
        assert ax.get_title(loc="left")
        assert ax.lines

    for result in (names["honest"], names["blamed"], names["narrow"]):
        sums = [sum(shares) for shares in zip(*(cause.shares_ns for cause in result.causes), strict=True)]
        assert tuple(sums) == result.errors_ns, "shares sum to the whole error, to the nanosecond"
    set_by_somebody = {"kv_capacity", "token_counts", "scheduler"}
    assert not any(
        names["honest"].contributes(cause)
        for cause in names["honest"].causes
        if cause.name in set_by_somebody
    )
    assert names["blamed"].first.name == "kv_capacity"
    assert names["blamed"].first.fix == "--num-kv-blocks 128"
    assert names["narrow"].first.name == "scheduler"
    assert names["narrow"].first.fix == "--max-num-seqs 16"
    assert names["parity"].share == 1.0
    assert all(0 <= chance <= 1 for chance in names["intervals"].slo.values())
