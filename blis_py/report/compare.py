"""A comparison of runs on the terminal."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TextIO

from blis_py.errors import plain
from blis_py.metrics.registry import E2E, paired, shown_in

if TYPE_CHECKING:
    from rich.table import Table

Data = Mapping[str, Any]

STATISTICS = ("mean", "p50", "p90", "p99")
WHOLE = {
    "throughput.requests_per_s": "requests/s",
    "throughput.output_tokens_per_s": "output tokens/s",
    "output_tokens_per_s_per_gpu": "output tokens/s per GPU",
    "goodput.requests_per_s": "goodput, requests/s",
    "goodput.attainment": "SLO attainment",
    "preemptions": "preemptions",
    "prefix_hit_rate": "prefix hit rate",
    "kv_peak_pct": "KV peak, %",
    "busy_pct": "busy, %",
    "mean_decode_batch": "mean decode batch",
}
_BY = {"class": "SLO class", "tenant": "tenant", "prompt": "prompt length"}
_OUTCOMES = (
    *("completed", "rejected", "unservable", "timed_out", "evicted", "still_queued", "still_running"),
)
_MAX_GROUPS = 20
_LEGEND = (
    "better, worse: share of the requests completed in both whose E2E changes by more than 1 %. "
    "Intervals: the same pairs, resampled in blocks of consecutive arrivals; sure: zero is outside."
)
_WIDTH = 118


def print_comparison(data: Data, file: TextIO | None = None) -> None:
    """
    Args:
        `data`: `Comparison.as_dict()`.
        file: where to; stdout by default.
    """
    from rich.console import Console

    out = sys.stdout if file is None else file
    console = Console(file=out, width=None if out.isatty() else _WIDTH, highlight=False, emoji=False)
    for index, part in enumerate(_parts(data)):
        if index:
            console.print()
        console.print(part, markup=False)


def text_of(data: Data) -> str:
    """The comparison as text."""
    text = io.StringIO()
    print_comparison(data, text)
    return text.getvalue().rstrip("\n")


def _parts(data: Data) -> Iterable[Any]:
    yield _settings(data) if data["settings"] else "The runs have the same settings."
    yield _whole(data)
    for each in data["compared"]:
        yield from _compared(data["runs"][0], each)


def _settings(data: Data) -> Table:
    table = _table("setting", *map(plain, data["runs"]))
    for row in data["settings"]:
        table.add_row(plain(row["key"]), *(_value(value) for value in row["values"]))
    return table


def _whole(data: Data) -> Table:
    table = _table("the whole run", *map(plain, data["runs"]), right=True)
    table.add_row("does it keep up?", *(verdict or "" for verdict in data["verdicts"]))
    for name in _OUTCOMES:
        counts = [outcome.get(name) or 0 for outcome in data["outcomes"]]
        if any(counts):
            table.add_row(f"{name.replace('_', ' ')} requests", *(f"{count:,}" for count in counts))
    for row in data["whole"]:
        table.add_row(WHOLE[row["figure"]], *(_figure(value) for value in row["values"]))
    return table


def _compared(first: str, each: Data) -> Iterable[Any]:
    yield _matched(first, each)
    if not each["metrics"]:
        yield "No request has a latency in both runs, so there is nothing to compare."
        return
    figures = [
        change for metric in each["metrics"].values() for name, change in metric.items() if name in STATISTICS
    ]
    if all(change["relative"] == 0 for change in figures):
        yield "Every latency is the same in both."
        return
    yield _latencies(first, each)
    if each["groups"]:
        yield _groups(each)
    yield _LEGEND


def _matched(first: str, each: Data) -> str:
    one, other = plain(first), plain(each["run"])
    text = f"{other} compared with {one}: {each['pairs']:,} requests are in both"
    left = [
        f"{each[key]:,} in {name} alone"
        for key, name in (("only_first", one), ("only_second", other))
        if each[key]
    ]
    note = f"; {plain(each['note'])}" if each["note"] else ""
    return ", ".join([text, *left]) + note


def _latencies(first: str, each: Data) -> Table:
    """Metrics and statistics, with what chance could explain."""
    table = _table("ms", plain(first), plain(each["run"]), "change", "95 % interval", "", right=True)
    metrics = {metric.key: metric for metric in paired()}
    for metric, figures in each["metrics"].items():
        for name in STATISTICS:
            change = figures[name]
            table.add_row(
                metrics[metric].heading(name),
                _figure(change["first"]),
                _figure(change["second"]),
                _percent(change["relative"]),
                _interval(change["interval"]),
                certainty(change),
            )
    return table


def _groups(each: Data) -> Table:
    """Groups that improved and groups that got worse."""
    shown = shown_in("compared")
    headings = (f"{statistic} {metric.label}" for metric, statistic in shown)
    table = _table("who", "requests", *headings, "95 % interval", "better", "worse", "", right=True)
    kind = ""
    for group in [each["everybody"], *_shown(each["groups"])]:
        if group["by"] != kind and group["by"] in _BY:
            table.add_row(f"by {_BY[group['by']]}", style="bold")
        kind = group["by"]
        e2e = group.get(E2E.key)
        lost = group["completed"][1] - group["completed"][0]
        data = f"{group['verdict']}{f', {lost:+,} completed' if lost else ''}"
        table.add_row(
            plain(group["name"]),
            f"{group['requests']:,}",
            *(_percent(group[each.key]["relative"] if group.get(each.key) else None) for each, _ in shown),
            _interval(e2e and e2e["interval"]),
            _share(group["better"]),
            _share(group["worse"]),
            data,
        )
    return table


def _shown(groups: list[Data]) -> Iterable[Data]:
    """The largest groups of each kind that has too many."""
    for kind in _BY:
        own = [group for group in groups if group["by"] == kind]
        largest = sorted(own, key=lambda group: -group["requests"])[:_MAX_GROUPS]
        yield from (group for group in own if group in largest)


def _table(first: str, *others: str, right: bool = False) -> Table:
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right" if right and name else "left")
    return table


def _value(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:,}".removesuffix(".0") if isinstance(value, int | float) else plain(str(value))


def _figure(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.4g}"


def _percent(change: float | None) -> str:
    if change is None:
        return "-"
    return "=" if abs(change) < 0.0005 else f"{100 * change:+,.1f} %".replace("-", "−")


def _interval(interval: tuple[float, float] | None) -> str:
    if interval is None:
        return ""
    return f"{100 * interval[0]:+,.1f} … {100 * interval[1]:+,.1f} %".replace("-", "−")


def certainty(change: Data) -> str:
    """Whether a change could be chance, in words."""
    if change["relative"] == 0:
        return "the same"
    return {True: "sure", False: "could be chance", None: "too few to tell"}[change["sure"]]


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"
