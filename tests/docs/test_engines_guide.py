"""The guide to the comparison with engines' schedulers shows the counts that were measured."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from benchmarks.engines.outcome import read_rows
from benchmarks.engines.registry import ENGINES
from benchmarks.engines.wheels import pinned

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs" / "engines.md").read_text(encoding="utf-8")
ROWS = read_rows(ROOT / "benchmarks" / "results" / "engines.json")


def tables() -> dict[str, list[list[str]]]:
    """Rows of the tables of results, by engine."""
    found: dict[str, list[list[str]]] = defaultdict(list)
    for line in GUIDE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        engine = cells[0].partition(" ")[0].lower()
        if line.startswith("|") and engine in ENGINES:
            found[engine].append(cells)
    return found


def test_every_row_is_the_sum_over_the_seeds() -> None:
    counts: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0])
    for row in ROWS:
        count = counts[row.engine, row.version, row.kind]
        count[0] += row.equal
        count[1] += row.scenarios
    for package, rows in tables().items():
        kinds = [variant.name for variant in ENGINES[package].variants if variant.exact]
        for name, *cells in rows:
            version = name.partition(" ")[2]
            for kind, cell in zip(kinds, cells, strict=True):
                equal, scenarios = counts[package, version, kind]
                drawn = f"{scenarios:,}" if scenarios else "–"
                assert cell == (drawn if equal == scenarios else f"{equal:,} of {drawn}"), (name, kind)


def test_every_pinned_release_of_vllm_has_a_row() -> None:
    assert [name for name, *_ in tables()["vllm"]] == [f"vLLM {version}" for version in pinned("vllm")]
