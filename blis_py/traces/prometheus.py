"""Metrics of servers over time: scraped `/metrics` texts, or range data of Prometheus."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blis_py.errors import InputError
from blis_py.files.json_files import parse_json
from blis_py.files.opening import read_text

SCRAPED = "# scraped_at "
"""Beginning of the line, with the time in s, above each scrape in a file of several."""
_SAMPLE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?\s+(\S+)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_FIX = "give a file of `blis observe --scrape-metrics`, or the JSON of query_range"


@dataclass(frozen=True, slots=True)
class Metrics:
    """Samples of metrics, summed over all labels but `le`.

    Attributes:
        times_s: when they were taken, ascending.
        values: by (name, le); le is empty but for buckets. NaN = absent then.
        labels: of the info metrics, by name of the label.
    """

    times_s: list[float]
    values: dict[tuple[str, str], list[float]]
    labels: dict[str, str]

    def of(self, *names: str) -> list[float] | None:
        """The series of the first of these names that is there."""
        return next((self.values[name, ""] for name in names if (name, "") in self.values), None)

    def buckets(self, *names: str) -> dict[float, list[float]]:
        """Cumulative counts by upper bound, of the first of these histograms that is there."""
        for name in names:
            series_of = {
                float(le): series
                for (own, le), series in self.values.items()
                if own == f"{name}_bucket" and le
            }
            if series_of:
                return dict(sorted(series_of.items()))
        return {}


def read_metrics(path: Path) -> Metrics:
    """Metrics of a file.

    Raises:
        InputError: not such a file, or fewer than two samples.
    """
    text = read_text(path)
    samples = _range_data(path, text) if text.lstrip().startswith(("{", "[")) else _scrapes(path, text)
    times: dict[float, int] = {}
    values: dict[tuple[str, str], list[float]] = {}
    labels: dict[str, str] = {}
    rows = list(samples)
    for time_s in sorted({row[0] for row in rows}):
        times[time_s] = len(times)
    for time_s, name, own, value in rows:
        if name.endswith("_config_info"):
            labels |= own
        series = values.setdefault((name, own.get("le", "")), [math.nan] * len(times))
        before = series[times[time_s]]
        series[times[time_s]] = value if math.isnan(before) else before + value
    if len(times) < 2:
        raise InputError("fewer than two samples", file=path, fix="scrape the server for a while")
    return Metrics(list(times), values, labels)


_Row = tuple[float, str, dict[str, str], float]


def _scrapes(path: Path, text: str) -> Iterator[_Row]:
    time_s: float | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith(SCRAPED):
            time_s = _number(path, number, line.removeprefix(SCRAPED))
            continue
        match = None if line.startswith("#") else _SAMPLE.match(line)
        if match is None:
            continue
        if time_s is None:
            problem = "a sample without the time of its scrape"
            raise InputError(problem, file=path, key=f"line {number}", fix=_FIX)
        name, labels, value = match.groups()
        yield time_s, name, dict(_LABEL.findall(labels or "")), _number(path, number, value)


def _number(path: Path, line: int, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError("not a number", file=path, key=f"line {line}", value=text) from None


def _range_data(path: Path, text: str) -> Iterator[_Row]:
    data = parse_json(text, path, fix=_FIX)
    for answer in data if isinstance(data, list) else [data]:
        yield from _matrix(path, answer)


def _matrix(path: Path, answer: Any) -> Iterable[_Row]:
    try:
        result = answer["data"]["result"]
        for series in result:
            metric = dict(series["metric"])
            name = metric.pop("__name__")
            for time_s, value in series["values"]:
                yield float(time_s), str(name), metric, float(value)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        problem = f"not range data of Prometheus: {type(error).__name__} {error}"
        raise InputError(problem, file=path, fix=_FIX) from None
