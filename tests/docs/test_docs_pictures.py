"""The pictures of the guides can be made: `make docs`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
QUICK = ("autopsy", "journey", "step", "overlap-pipeline", "trust")
"""Those that take less than a few seconds."""


@pytest.fixture(autouse=True)
def beside_the_guides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(DOCS), *sys.path])


@pytest.mark.parametrize("name", QUICK)
def test_a_picture_can_be_made_and_is_not_empty(name: str, tmp_path: Path) -> None:
    import make_pictures

    picture = make_pictures.PICTURES[name]()
    assert picture.axes
    assert picture.save(tmp_path / "p.png").stat().st_size > 10_000


@pytest.mark.parametrize("fdfo", [False, True])
def test_the_slots_of_the_picture_of_block_diffusion_are_simulated(fdfo: bool) -> None:
    import diffusion_picture

    rounds, log = diffusion_picture.serve(4, 0.28, 16, fdfo)
    assert max(cell[0] for cell in log.cells) + 1 == rounds
    assert {row for _, _, row, _ in log.cells} == set(range(16))
    assert all(at_work for *_, at_work in log.cells) is fdfo, "only synchronous batches leave slots waiting"


def test_every_picture_that_a_guide_shows_is_made_here() -> None:
    import make_pictures

    shown = {
        name
        for guide in DOCS.glob("*.md")
        for name in re.findall(r"\]\(img/(?!figures/)([\w-]+)\.png\)", guide.read_text(encoding="utf-8"))
    }
    assert shown <= make_pictures.PICTURES.keys()
    committed = {path.stem for path in (DOCS / "img" / "figures").glob("*.png")}
    assert committed == set(re.findall(r"img/figures/(\w+)\.png", (DOCS / "figures.md").read_text()))
