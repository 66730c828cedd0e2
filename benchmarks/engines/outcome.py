"""Outcome of one kind of scenarios on one release."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from benchmarks.engines.compare import Difference
from benchmarks.engines.scenario import Scenario, Trace


class Row(NamedTuple):
    """Counts of one kind of scenarios on one release, drawn with one seed."""

    engine: str
    version: str
    kind: str
    seed: int
    scenarios: int
    equal: int
    steps: int
    preempting: int

    @property
    def key(self) -> tuple[str, str, str, int]:
        """What is counted."""
        return self[:4]


def read_rows(path: Path) -> list[Row]:
    """The rows of a file of results; none if there is no file."""
    return [Row(**row) for row in json.loads(path.read_text(encoding="utf-8"))] if path.exists() else []


def add_rows(path: Path, rows: Iterable[Row]) -> None:
    """Put rows into a file of results, in place of those that count the same."""
    every = {row.key: row for row in (*read_rows(path), *rows)}
    lines = ",\n".join(json.dumps(every[key]._asdict()) for key in sorted(every))
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


@dataclass
class Outcome:
    """Counts of one kind of scenarios, and those that differ."""

    package: str
    version: str
    kind: str
    exact: bool = True
    """Whether every step has to be the engine's."""
    scenarios: int = 0
    steps: int = 0
    preempting: int = 0
    """Scenarios in which the engine preempts."""
    different: list[tuple[Scenario, Difference]] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, scenario: Scenario, engine: Trace, difference: Difference | None) -> None:
        """Count a scenario."""
        self.scenarios += 1
        if not isinstance(engine, dict):
            self.steps += len(engine)
            self.preempting += any(step["preempted"] for step in engine)
        if difference is not None:
            self.different.append((scenario, difference))

    @property
    def equal(self) -> int:
        """Scenarios that are equal in every step."""
        return self.scenarios - len(self.different)

    def smallest(self, count: int) -> list[tuple[Scenario, Difference]]:
        """Differing scenarios of the commonest kinds of differences, those that differ early first."""
        kinds = [kind for kind, _ in self.kinds().most_common(count)]
        return [
            min((each for each in self.different if each[1].kind == kind), key=lambda each: each[1].step)
            for kind in kinds
        ]

    def kinds(self) -> Counter[str]:
        """Differences by kind."""
        return Counter(difference.kind for _, difference in self.different)

    def row(self, seed: int) -> Row:
        """Its counts, for a file of results."""
        counts = (seed, self.scenarios, self.equal, self.steps, self.preempting)
        return Row(self.package, self.version, self.kind, *counts)

    def line(self) -> str:
        """One line for the reader who waits."""
        return (
            f"{self.package} {self.version}, {self.kind}: {self.equal} of {self.scenarios} equal, "
            f"{self.seconds:.0f} s"
        )

    @staticmethod
    def table(outcomes: Iterable[Outcome]) -> str:
        """All outcomes, as a table."""
        rows: list[tuple[str, ...]] = [
            ("engine", "scenarios", "equal", "steps", "preempting", "first differ in")
        ]
        for each in outcomes:
            kinds = "; ".join(f"{kind} {count}" for kind, count in each.kinds().most_common(3))
            name = f"{each.package} {each.version}, {each.kind}"
            counts = (each.scenarios, each.equal, each.steps, each.preempting)
            rows.append((name, *(f"{count:,}" for count in counts), kinds or "-"))
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        return "\n".join(
            "  ".join(
                cell.rjust(width) if 0 < column < 5 else cell.ljust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        )
