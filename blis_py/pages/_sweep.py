"""The report of a sweep, from its table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from blis_py.metrics.load import SATURATED
from blis_py.metrics.registry import headings_in, shown_in
from blis_py.pages._numbers import number
from blis_py.pages.parts import Cell, Chart, Code, Document, Section, Table

if TYPE_CHECKING:
    import pandas as pd

FILE = "sweep.csv"
_THROUGHPUT = "throughput.output_tokens_per_s"
_OF_THE_CLUSTER = {"goodput.attainment": "attainment", "kv_peak_pct": "KV peak, %"}
_OK = "ok"


def report(table: pd.DataFrame, varied: Sequence[str], command: str) -> Document:
    """The report of a sweep.

    Args:
        table: a row per run, as `blis sweep` writes it.
        varied: the columns of settings.
        command: that draws the table anew.
    """
    rows = cast("list[dict[str, Any]]", table.to_dict("records"))
    ran = [row for row in rows if row.get("status", _OK) == _OK]
    sections = [
        Section("answer", "The answer", charts=list(_charts(ran, varied)), tables=[_table(rows, varied)]),
        Section(
            "provenance", "Where the numbers are from", [f"Every number is one of {FILE}, a row per run."]
        ),
        Section("commands", "To get it again", codes=[Code("Figures and this report", command)]),
    ]
    over = ", ".join(varied) or "seeds"
    subtitle = f"{len(rows):,} runs over {over}"
    return Document(
        f"Sweep over {over}", "Sweep", subtitle, verdict(ran, len(rows)), list(_lost(rows)), sections
    )


def verdict(ran: Sequence[Mapping[str, Any]], count: int) -> Cell:
    """Number of runs that meet their targets."""
    if not ran:
        return Cell("No run succeeded.", tone="bad")
    judged = [row for row in ran if isinstance(row.get("slo_met"), bool)]
    if not judged:
        return Cell(f"{len(ran):,} of {count:,} runs; no targets were set.", tone="")
    met = sum(row["slo_met"] for row in judged)
    return Cell(f"{met:,} of {len(judged):,} runs meet their targets.", tone="good" if met else "bad")


def _lost(rows: Sequence[Mapping[str, Any]]) -> Iterator[Cell]:
    for row in rows:
        if row.get("status", _OK) != _OK:
            yield Cell(f"{row['status']}: {row.get('reason')}", tone="warn")


def _charts(ran: Sequence[Mapping[str, Any]], varied: Sequence[str]) -> Iterator[Chart]:
    for metric, stat in shown_in("axes"):
        path = f"{metric.key}.{stat}"
        points = [row for row in ran if _real(row.get(path)) and _real(row.get(_THROUGHPUT))]
        series = [
            {
                "name": name,
                "kind": "points",
                "always": True,
                "x": [row[_THROUGHPUT] for row in own],
                "y": [row[path] for row in own],
                "names": [_named(row, varied) for row in own],
                "hollow": [row.get("verdict") == SATURATED for row in own],
            }
            for name, own in _lines(points, varied).items()
        ]
        yield {
            "title": f"{metric.label} {stat} against throughput",
            "x": {"label": "output tokens/s", "from": 0},
            "y": {"label": metric.unit.name, "log": True},
            "series": series,
            "note": "Hollow: saturated, so its latencies say how long the run was.",
        }


def _lines(points: Sequence[Mapping[str, Any]], varied: Sequence[str]) -> dict[str, list[Mapping[str, Any]]]:
    """Runs by the values of the settings other than the first; at most eight groups, else one."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in points:
        groups.setdefault(_named(row, varied[1:]) or "runs", []).append(row)
    return groups if len(groups) <= 8 else {"runs": list(points)}


def _named(row: Mapping[str, Any], names: Sequence[str]) -> str:
    return ", ".join(f"{name} {row.get(name)}" for name in names)


def _table(rows: Sequence[Mapping[str, Any]], varied: Sequence[str]) -> Table:
    figures = {_THROUGHPUT: "output tokens/s"} | headings_in("pages") | _OF_THE_CLUSTER
    shown = {path: label for path, label in figures.items() if any(_real(row.get(path)) for row in rows)}
    cells = [
        [
            Cell(str(index)),
            *(Cell(str(row.get(name)), row[name] if _real(row.get(name)) else None) for name in varied),
            Cell(str(row.get("verdict") if _text(row.get("verdict")) else row.get("status", ""))),
            _targets(row),
            *(_cell(row.get(path), f"{FILE}: row {index}, {path}") for path in shown),
        ]
        for index, row in enumerate(rows, start=1)
    ]
    headings = ("run", *varied, "verdict", "targets", *shown.values())
    texts = frozenset({1 + len(varied), 2 + len(varied)})
    return Table("Runs", headings, cells, texts, sortable=True)


def _targets(row: Mapping[str, Any]) -> Cell:
    met = row.get("slo_met")
    if not isinstance(met, bool):
        return Cell("–")
    return Cell("met", tone="good") if met else Cell("missed", tone="bad")


def _cell(value: Any, source: str) -> Cell:
    return Cell(number(value), value, source) if _real(value) else Cell("–")


def _real(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


def _text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)
