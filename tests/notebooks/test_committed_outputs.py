"""What a committed notebook shows is what this program prints; two are left out."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

jupytext = pytest.importorskip("jupytext", reason="the notebooks need the extra `notebooks`")

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
LEFT_OUT = ("calibrate_against_an_engine", "how_many_gpus_for_this_hour")
"""The first shows times of a machine; the second plans for an hour of traffic, which takes minutes."""
SOURCES = sorted(path for path in FOLDER.glob("*.py") if path.with_suffix(".ipynb").exists())
BRIEF = "first_run"
"""Executed with all tests; the others with those that take long."""


def shown(notebook: Any) -> list[str]:
    """The texts of all outputs, cell by cell; of a picture, that there is one."""
    texts = []
    for number, cell in enumerate(notebook.cells):
        for output in cell.get("outputs", ()):
            kinds = sorted(output.get("data", {}).items())
            data = [text for kind, text in kinds if kind != "image/png"]
            texts.append(f"cell {number}: {output.get('text', data)}")
    return texts


def cases() -> list[Any]:
    marks = {True: [pytest.mark.slow], False: [pytest.mark.slow, pytest.mark.long]}
    return [
        pytest.param(source, id=source.stem, marks=marks[source.stem == BRIEF])
        for source in SOURCES
        if source.stem not in LEFT_OUT
    ]


@pytest.mark.parametrize("source", cases())
def test_a_committed_notebook_shows_what_this_program_prints(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    made = importlib.import_module("build").executed(source)
    committed = jupytext.read(source.with_suffix(".ipynb"))
    assert shown(made) == shown(committed), f"python notebooks/build.py {source}"


def test_an_output_that_changed_is_noticed() -> None:
    committed = jupytext.read((FOLDER / BRIEF).with_suffix(".ipynb"))
    before = shown(committed)
    cell = next(cell for cell in committed.cells if any("text" in each for each in cell.get("outputs", ())))
    next(each for each in cell.outputs if "text" in each)["text"] += "1"
    assert shown(committed) != before


def test_all_others_are_compared() -> None:
    assert set(LEFT_OUT) < {source.stem for source in SOURCES}
    assert len(cases()) == len(SOURCES) - len(LEFT_OUT)
