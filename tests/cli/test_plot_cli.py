"""`blis plot`: figures of results that are there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Blis = Callable[..., tuple[int, str, str]]
SMALL = ("--model", "qwen3-14b", "--num-requests", 12, "--no-plots")


@pytest.fixture
def saved(blis: Blis, tmp_path: Path) -> Path:
    assert blis("run", *SMALL, "--out", tmp_path / "out")[0] == 0
    return tmp_path / "out"


@pytest.mark.slow
def test_the_figures_of_a_result_go_to_its_plots_and_are_part_of_it(blis: Blis, saved: Path) -> None:
    code, out, _ = blis("plot", saved, "--figure", "ttft,timeline", "--format", "svg,png")
    names = ["ttft.svg", "ttft.png", "timeline.svg", "timeline.png"]
    assert (code, out.split()) == (0, [str(saved / "plots" / name) for name in names])
    assert all((saved / "plots" / name).stat().st_size > 1000 for name in names)
    listed = json.loads((saved / "complete.json").read_text())["files"]
    assert {f"plots/{name}" for name in names} <= listed.keys()
    assert blis("run", *SMALL, "--out", saved, "--force")[0] == 0, "so the result can be replaced with them"


@pytest.mark.slow
def test_all_that_fit_are_drawn_unless_some_are_named(blis: Blis, saved: Path, tmp_path: Path) -> None:
    blis("plot", saved, "--out", tmp_path / "one")
    assert {path.stem for path in (tmp_path / "one").iterdir()} == {
        *("overview", "latency_cdf", "timeline", "instances", "batch", "ttft", "tpot", "itl", "e2e")
    }
    blis("run", *SMALL, "--rate", 9, "--out", tmp_path / "other")
    blis("plot", saved, tmp_path / "other", "--out", tmp_path / "two", "--by", "workload.rate")
    assert {path.stem for path in (tmp_path / "two").iterdir()} == {
        *("throughput_latency", "pareto", "hit_rate")
    }


@pytest.mark.slow
def test_predicted_against_measured(blis: Blis, saved: Path, tmp_path: Path) -> None:
    blis("run", *SMALL, "--latency-model", "roofline", "--out", tmp_path / "measured")
    flags = ("--figure", "predicted_measured", "--measured", tmp_path / "measured", "--out", tmp_path)
    assert blis("plot", saved, *flags) == (0, f"{tmp_path / 'predicted_measured.png'}\n", "")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("", "blis plot: no result given"),
        ("{out} --figure pie", "--figure: no such figure (found 'pie')"),
        ("{out} --format gif", "--format: unknown format (found 'gif')"),
        ("{out} {out} --figure ttft --out x", "--figure: is a figure of one run"),
        ("{out} {out}", "--out: where the figures of several runs go is not clear"),
        ("{out} --figure predicted_measured", "--measured: one needs the other"),
        ("{out} --by tp", "--by: has a meaning for several runs only"),
        ("{out}/trace.csv --out x", "trace.csv: no column is a figure of a run"),
        ("nowhere", "no such folder"),
    ],
)
def test_what_cannot_be_drawn_is_reported(
    arguments: str, complaint: str, blis: Blis, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = blis("plot", *arguments.format(out=saved).split())
    assert (code, out) == (2, "")
    assert complaint in err
    assert err.count("\n") == 1


@pytest.mark.slow
def test_a_result_without_steps_has_no_timeline(blis: Blis, saved: Path, tmp_path: Path) -> None:
    listed = json.loads((saved / "complete.json").read_text())
    del listed["files"]["steps.csv"]
    (saved / "complete.json").write_text(json.dumps(listed))
    (saved / "steps.csv").unlink()
    code, out, err = blis("plot", saved, "--out", tmp_path / "p")
    assert code == 0
    assert "timeline" not in out
    assert "note: no timeline: this result has no table of steps" in err
    assert blis("plot", saved, "--figure", "timeline", "--out", tmp_path / "p")[0] == 2
