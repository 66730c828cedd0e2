"""The report of a comparison: what differs, how surely, who gains and who loses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from blis_py.metrics.load import SATURATED
from blis_py.metrics.registry import METRICS, labels, per_request, shown_in
from blis_py.pages import charts
from blis_py.pages._numbers import change, number, percent
from blis_py.pages.parts import Cell, Chart, Code, Document, Section, Table
from blis_py.report.compare import STATISTICS, WHOLE, certainty
from blis_py.report.shown import ShownResult

FILE = "compare.json"


def report(data: Mapping[str, Any], runs: Sequence[ShownResult] = (), command: str = "") -> Document:
    """The report of a comparison.

    Args:
        found: `Comparison.as_dict()`.
        runs: the runs themselves, for their distributions.
        command: that makes the same comparison.
    """
    pictures = distributions(data["runs"], runs)
    sections = [
        Section("differs", "What differs", tables=[settings_table(data)]),
        Section("answer", "The answer", charts=pictures, tables=[whole_table(data)]),
        *(_pairwise(data["runs"][0], each) for each in data["compared"]),
        Section(
            "provenance",
            "Where the numbers are from",
            [
                "Requests are matched by name; intervals are of the same pairs, drawn again in blocks of "
                "consecutive arrivals (95 %). Sure: zero is outside of the interval.",
                "Figures of whole runs are those of each run's summary.json.",
            ],
            codes=[Code("The same comparison again", command)] if command else (),
        ),
    ]
    names = " and ".join(data["runs"])
    return Document(
        names, "Comparison", _matched(data), verdict(data), _findings(data), sections, {FILE: data}
    )


def verdict(data: Mapping[str, Any]) -> Cell:
    """The sure changes of the metrics that groups are compared by (TTFT, E2E) in a sentence."""
    compared = labels(of for of, _ in shown_in("compared"))
    sure = [
        f"{each['run']}: {_label(metric)} {name} {change(figures[name]['relative'])}"
        for each in data["compared"]
        for metric, figures in each["metrics"].items()
        for name in ("p50", "p99")
        if metric in compared and figures[name]["sure"] and figures[name]["relative"]
    ]
    if not sure:
        shown = " or ".join(compared.values())
        return Cell(f"No difference in {shown} that chance could not explain.", tone="warn")
    return Cell(f"Against {data['runs'][0]}: {'; '.join(sure)}.")


def _findings(data: Mapping[str, Any]) -> list[Cell]:
    lines = [
        Cell(f"{name}: {load}", tone="bad" if load == SATURATED else "")
        for name, load in zip(data["runs"], data["verdicts"], strict=True)
        if load
    ]
    return lines + [Cell(str(each["note"]), tone="warn") for each in data["compared"] if each["note"]]


def _matched(data: Mapping[str, Any]) -> str:
    return "; ".join(f"{each['pairs']:,} requests in both" for each in data["compared"])


def settings_table(data: Mapping[str, Any]) -> Table:
    """Settings with different values."""
    rows = [[Cell(row["key"]), *(Cell(str(value)) for value in row["values"])] for row in data["settings"]]
    caption = "Settings that differ" if rows else "The runs have the same settings"
    texts = frozenset(range(1, 1 + len(data["runs"])))
    return Table(caption, ("setting", *data["runs"]), rows, texts)


def whole_table(data: Mapping[str, Any]) -> Table:
    """Figures without pairs."""
    rows = [
        [
            Cell(WHOLE[row["figure"]]),
            *(Cell(number(value), value, f"{FILE}: whole") for value in row["values"]),
        ]
        for row in data["whole"]
    ]
    return Table("The whole runs", ("figure", *data["runs"]), rows)


def distributions(names: Sequence[str], runs: Sequence[ShownResult]) -> list[Chart]:
    """One chart per latency with a curve for each run."""
    listed = []
    for metric in per_request() if runs else ():
        own = [charts.distribution(run.view, metric.name) for run in runs]
        series = [
            {**one["series"][0], "name": name} for name, one in zip(names, own, strict=True) if one["series"]
        ]
        listed.append({**own[0], "title": metric.title, "series": series})
    return listed


def _pairwise(first: str, each: Mapping[str, Any]) -> Section:
    title = f"{each['run']} against {first}"
    return Section(f"against-{each['run']}", title, tables=list(pair_tables(first, each)))


def pair_tables(first: str, each: Mapping[str, Any]) -> Iterator[Table]:
    """Latencies with intervals, and groups."""
    rows = [
        [
            Cell(_with_unit(metric, name)),
            Cell(number(one["first"]), one["first"], f"{FILE}: {metric}.{name}"),
            Cell(number(one["second"]), one["second"], f"{FILE}: {metric}.{name}"),
            Cell(change(one["relative"]), one["relative"], tone=_tone(one)),
            Cell(_interval(one["interval"])),
            Cell(certainty(one)),
        ]
        for metric, figures in each["metrics"].items()
        for name in STATISTICS
        if (one := figures[name])
    ]
    headings = ("latency", first, each["run"], "change", "95 % interval", "sure?")
    yield Table("Latencies of the same requests", headings, rows, frozenset({5}), sortable=True)
    shown = [each["everybody"], *each["groups"]]
    means = [f"{stat} {metric.label}" for metric, stat in shown_in("compared")]
    yield Table(
        "Who gains, who loses",
        ("group", "requests", *means, "better", "worse", "verdict"),
        [_group(group) for group in shown],
        frozenset({4 + len(means)}),
        sortable=True,
    )


def _group(group: Mapping[str, Any]) -> list[Cell]:
    changes = [(group.get(metric.key) or {}).get("relative") for metric, _ in shown_in("compared")]
    return [
        Cell(str(group["name"])),
        Cell(f"{group['requests']:,}", group["requests"]),
        *(Cell(change(each), each) for each in changes),
        Cell(percent(group["better"]), group["better"]),
        Cell(percent(group["worse"]), group["worse"]),
        Cell(str(group["verdict"])),
    ]


def _with_unit(key: str, statistic: str) -> str:
    """Heading of a statistic of the metric with this key, which may not be registered here."""
    metric = next((each for each in METRICS.values() if each.key == key), None)
    return f"{key} {statistic}" if metric is None else metric.with_unit(statistic)


def _label(metric: str) -> str:
    return labels().get(metric, metric)


def _tone(one: Mapping[str, Any]) -> str:
    if not one["sure"] or not one["relative"]:
        return ""
    return "good" if one["relative"] < 0 else "bad"


def _interval(interval: Sequence[float] | None) -> str:
    return "" if interval is None else f"{change(interval[0])} … {change(interval[1])}"
