from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from blis_py.cluster.ingress.admission import ADMISSION_POLICIES
from blis_py.cluster.routing.policies import ROUTING_POLICIES
from blis_py.cluster.routing.scorers import SCORERS
from blis_py.core.policies import SCHEDULERS
from examples import GUIDES, QUESTIONS, ROOT, Runner, examples, lines_of, matches, refreshed

IDS = [guide.name for guide in GUIDES]
MOST_WORDS = 45_000
_LINK = re.compile(r"\]\((?!https?://)([^)#\s]*)(?:#([^)\s]*))?\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def anchors(guide: Path) -> set[str]:
    """What GitHub calls the headings."""
    headings = _HEADING.findall(guide.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.fixture
def _no_parts_left_behind() -> Iterator[None]:
    """Guides add policies of their own to the tables; later tests of this process must not meet them."""
    tables: tuple[dict[str, Any], ...] = (ADMISSION_POLICIES, ROUTING_POLICIES, SCORERS, SCHEDULERS)
    before = [dict(table) for table in tables]
    yield
    for table, had in zip(tables, before, strict=True):
        table.clear()
        table.update(had)


@pytest.mark.slow
@pytest.mark.usefixtures("_no_parts_left_behind")
@pytest.mark.parametrize("guide", [*GUIDES, ROOT / "README.md"], ids=[*IDS, "front page"])
def test_every_example_in_the_guide_runs_and_prints_what_the_guide_shows(guide: Path, tmp_path: Path) -> None:
    runner = Runner(tmp_path)
    for example in examples(guide.read_text(encoding="utf-8")):
        code, printed = runner.run(example) or (example.exit_code, example.shown or "")
        place = f"{guide.name}:{example.block.line}: {example.code}"
        assert code == example.exit_code, f"{place}exit code {code}\n{printed}"
        if example.shown is not None:
            assert matches(example.shown, printed), (
                f"{place}now prints\n{printed}\nrefresh the guides: python tests/docs/examples.py"
            )


QUESTION_IDS = [page.parent.name for page in QUESTIONS]
RESULTS = [ROOT / "benchmarks" / "results" / f"{name}.md" for name in ("accuracy", "validation")]
PAGES = [*GUIDES, ROOT / "README.md", ROOT / "CONTRIBUTING.md", *RESULTS, *QUESTIONS]


@pytest.mark.parametrize(
    "guide", PAGES, ids=[*IDS, "front page", "contributing", "accuracy", "validation", *QUESTION_IDS]
)
def test_every_link_leads_somewhere(guide: Path) -> None:
    for path, anchor in _LINK.findall(guide.read_text(encoding="utf-8")):
        target = (guide.parent / path) if path else guide
        assert target.exists(), f"{guide.name} links to {path}"
        assert not anchor or anchor in anchors(target), f"{guide.name} links to {path}#{anchor}"


def test_every_test_that_the_invariants_name_is_in_a_file_named_beside_it() -> None:
    page = ROOT / "docs" / "invariants.md"
    for line in page.read_text(encoding="utf-8").splitlines():
        files = [page.parent / path for path in re.findall(r"\]\((\.\./tests/[^)]*)\)", line)]
        defined = {
            name for file in files for name in re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE)
        }
        named = set(re.findall(r"`(test_\w+)`", line))
        assert named <= defined, f"{page.name} names {', '.join(named - defined)}"


def test_every_invariant_is_held_by_a_test() -> None:
    page = (ROOT / "docs" / "invariants.md").read_text(encoding="utf-8")
    sections = re.split(r"^## (?=\d)", page, flags=re.MULTILINE)[1:]
    assert [int(section.split(".")[0]) for section in sections] == list(range(1, 19))
    assert all("`test_" in section for section in sections)


@pytest.mark.slow
def test_every_name_on_a_page_about_the_code_is_one_of_the_code() -> None:
    files = [path for part in ("blis_py", "engine", "tests") for path in (ROOT / part).rglob("*.py")]
    sources = (*files, ROOT / "pyproject.toml", ROOT / "Makefile")
    known = {path.stem for path in files}
    known.update(*(re.findall(r"\w+", path.read_text(encoding="utf-8")) for path in sources))
    for page in ("architecture.md", "glossary.md", "invariants.md"):
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
        codes = re.findall(r"`([^`\n]+)`", text)
        named = {word for code in codes for word in re.findall(r"[A-Za-z_]\w+", code)}
        assert len(named) > 20
        assert named <= known, f"{page} names {', '.join(sorted(named - known))}"


def test_every_guide_is_in_the_index_and_on_the_site() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for guide in GUIDES:
        assert guide.name == "README.md" or f"({guide.name})" in index
        assert f": {guide.name}\n" in site


def test_the_guides_are_short() -> None:
    """As `wc -w docs/*.md` counts. Beyond it, shorten what says the same twice."""
    words = sum(len(guide.read_text(encoding="utf-8").split()) for guide in GUIDES)
    assert words <= MOST_WORDS


def test_the_front_page_is_two_screens() -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(page.splitlines()) <= 100
    assert len(page.split()) <= 800


def test_an_output_that_changed_is_noticed() -> None:
    assert matches("a\n...\nd\n", "a\nb\nc\nd\n")
    assert matches("a  \n", "a\n\n")
    assert not matches("a\n...\nd\n", "a\nb\nc\n")
    assert not matches("a\n", "a\nb\n")


def test_refreshing_keeps_the_shape_of_an_excerpt() -> None:
    assert lines_of(refreshed("a\n...\nd\n", "A\nB\nC\nD\n")) == ["A", "...", "D"]
    assert lines_of(refreshed("a\nb\n", "A\nB\nC\n")) == ["A", "B", "C"]
    table = "top\ntable of what\n1\n2\nrest\nend\n"
    assert lines_of(refreshed("...\ntable of what\n0\n...\nEND\n", table)) == [
        "...",
        "table of what",
        "1",
        "...",
        "end",
    ]


def test_refreshing_finds_a_line_between_gaps_whose_numbers_changed() -> None:
    new = "KV capacity\n460 rejected: 460 shed\nend\n"
    assert lines_of(refreshed("...\n459 rejected: 459 shed\n...\nend\n", new))[1] == "460 rejected: 460 shed"
    with pytest.raises(LookupError, match="12 evicted"):
        refreshed("...\n12 evicted\n...\nend\n", new)


def test_the_guides_have_examples() -> None:
    found = {guide.name: len(list(examples(guide.read_text(encoding="utf-8")))) for guide in GUIDES}
    assert found["first-run.md"] > 10
    assert found["scheduler.md"] > 3
