"""Tables of results in the guide, from the counts of each seed.

    python -m benchmarks.engines.guide

Writes the tables of docs/engines.md anew from benchmarks/results/engines.json.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from benchmarks.engines.engine import Engine
from benchmarks.engines.outcome import Row, read_rows
from benchmarks.engines.registry import ENGINES

_ROOT = Path(__file__).resolve().parents[2]
GUIDE = _ROOT / "docs" / "engines.md"
RESULTS = _ROOT / "benchmarks" / "results" / "engines.json"
TITLES = {"vllm": "vLLM", "sglang": "SGLang"}
"""Names in the guide, by package, in its order."""
_TABLE = re.compile(r"^\| release \|.*\n(?:\|.*\n)*", re.MULTILINE)
_NONE = "–"


def main() -> None:
    """Write the guide."""
    GUIDE.write_text(renewed(GUIDE.read_text(encoding="utf-8"), read_rows(RESULTS)), encoding="utf-8")


def renewed(guide: str, rows: list[Row]) -> str:
    """The guide with its tables, one for each engine, from these counts."""
    tables = iter([table(ENGINES[package], title, rows) for package, title in TITLES.items()])
    return _TABLE.sub(lambda _: next(tables), guide)


def table(engine: Engine, title: str, rows: Iterable[Row]) -> str:
    """Scenarios of an engine by release and group of kinds, and how many are equal if not all are."""
    kinds = kinds_of(engine)
    counts: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        if row.engine == engine.package and (kind := group_of(row.kind)) in kinds:
            count = counts.setdefault((row.version, kind), [0, 0])
            count[0] += row.equal
            count[1] += row.scenarios
    versions = sorted({version for version, _ in counts}, key=_numbers)
    lines = [["release", *kinds], ["---", *("--:" for _ in kinds)]]
    for version in versions:
        cells = [_cell(*counts.get((version, kind), (0, 0))) for kind in kinds]
        lines.append([f"{title} {version}", *cells])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def kinds_of(engine: Engine) -> list[str]:
    """Groups of kinds of scenarios in which every step has to be the engine's."""
    return list(dict.fromkeys(group_of(each.name) for each in engine.variants if each.exact))


def group_of(kind: str) -> str:
    """A kind's name up to the first comma: without its loop and how prompts begin."""
    return kind.partition(", ")[0]


def _cell(equal: int, scenarios: int) -> str:
    if not scenarios:
        return _NONE
    return f"{scenarios:,}" if equal == scenarios else f"{equal:,} of {scenarios:,}"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


if __name__ == "__main__":
    main()
