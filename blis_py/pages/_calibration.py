"""The report of a calibration, from the JSON of `blis calibrate --report`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from blis_py.pages._numbers import change, number, percent
from blis_py.pages.parts import Cell, Chart, Code, Document, Section, Table

FILE = "calibration.json"
_MS = 1e3


def report(data: Mapping[str, Any], command: str) -> Document:
    """The report of a calibration.

    Args:
        found: the content of the JSON.
        command: that makes this report anew.
    """
    sections = [
        Section("answer", "The answer", charts=_errors(data), tables=[_statistics(data)]),
        Section("sure", "How well requests agree", tables=[_fit(data)]),
        *_autopsy(data),
        Section(
            "provenance",
            "Where the numbers are from",
            [
                f"Every number is one of {FILE}; times there are in seconds.",
                "Errors are predicted over measured, minus 1.",
            ],
        ),
        Section("commands", "To get it again", codes=[Code("This report", command)]),
    ]
    subtitle = f"{data['requests']:,} requests, measured and predicted"
    notes = [Cell(str(note), tone="warn") for note in data["notes"]]
    return Document(
        "Predicted against measured", "Calibration", subtitle, verdict(data), notes, sections, {FILE: data}
    )


def verdict(data: Mapping[str, Any]) -> Cell:
    """The errors of the means in a sentence."""
    lines = [
        f"{one['latency'].upper()} {change(one['seconds']['mean']['error'])}"
        for one in data["latencies"]
        if "mean" in one["seconds"] and one["group"] == data["latencies"][0]["group"]
    ]
    return Cell(f"Errors of the means: {', '.join(lines)}." if lines else "Nothing could be compared.")


def _rows(data: Mapping[str, Any]) -> Iterator[tuple[str, str, str, Mapping[str, Any]]]:
    for index, one in enumerate(data["latencies"]):
        for name, figures in one["seconds"].items():
            label = f"{one['latency'].upper()} {one['group']}"
            yield label, name, f"{FILE}: latencies[{index}].seconds.{name}", figures


def _statistics(data: Mapping[str, Any]) -> Table:
    rows = [
        [
            Cell(f"{label} {name}"),
            *(_ms(figures[key], f"{place}.{key}") for key in ("measured", "predicted")),
            Cell(change(figures["error"]), figures["error"], f"{place}.error"),
        ]
        for label, name, place, figures in _rows(data)
    ]
    return Table("Latencies, ms", ("latency", "measured", "predicted", "error"), rows, sortable=True)


def _ms(seconds: float | None, source: str) -> Cell:
    return Cell("–") if seconds is None else Cell(number(seconds * _MS), seconds, source)


def _fit(data: Mapping[str, Any]) -> Table:
    rows = [
        [
            Cell(f"{one['latency'].upper()} {one['group']}"),
            Cell(f"{one['requests']:,}", one["requests"]),
            Cell(percent(one["mape"]), one["mape"]),
            Cell(change(one["bias"]), one["bias"]),
            Cell(number(one["pearson_r"]), one["pearson_r"]),
            Cell(str(one["quality"])),
        ]
        for one in data["latencies"]
    ]
    headings = ("latency", "requests", "MAPE", "bias", "correlation", "grade")
    return Table("Request by request", headings, rows, frozenset({5}), sortable=True)


def _errors(data: Mapping[str, Any]) -> list[Chart]:
    points = [row for row in _rows(data) if row[3]["measured"] and row[3]["predicted"]]
    if not points:
        return []
    measured = [row[3]["measured"] * _MS for row in points]
    ends = [min(measured), max(measured)]
    return [
        {
            "title": "Predicted over measured: statistics of every latency",
            "x": {"label": "measured, ms", "log": True},
            "y": {"label": "predicted, ms", "log": True},
            "series": [
                {"name": "equal", "kind": "line", "dashed": True, "x": ends, "y": ends, "colour": 9},
                {
                    "name": "statistics",
                    "kind": "points",
                    "colour": 0,
                    "x": measured,
                    "y": [row[3]["predicted"] * _MS for row in points],
                    "names": [f"{row[0]} {row[1]}: {change(row[3]['error'])}" for row in points],
                },
            ],
        }
    ]


def _autopsy(data: Mapping[str, Any]) -> list[Section]:
    tables = [
        Table(
            f"{key.replace('_', ' ')}: {name}".strip(": "), headings, rows, frozenset(range(1, len(headings)))
        )
        for key in ("autopsy", "client_autopsy")
        if key in data
        for name, headings, rows in _tables(data[key])
    ]
    return [Section("autopsy", "Causes of the error", tables=tables)] if tables else []


def _tables(data: Any, name: str = "") -> Iterator[tuple[str, Sequence[str], list[list[Cell]]]]:
    """Every list of objects in nested data, as a table."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield from _tables(value, f"{name} {key}".strip())
        plain = {key: value for key, value in data.items() if not isinstance(value, Mapping | list)}
        if plain:
            yield name, ("", "value"), [[Cell(key), _any(value)] for key, value in plain.items()]
    elif isinstance(data, list) and data and isinstance(data[0], Mapping):
        keys = [key for key, value in data[0].items() if not isinstance(value, Mapping | list)]
        yield name, keys, [[_any(one.get(key)) for key in keys] for one in data]


def _any(value: Any) -> Cell:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Cell(number(value), value)
    return Cell("–" if value is None else str(value))
