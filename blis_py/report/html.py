"""A result as HTML, for a notebook: the terminal's tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from blis_py.errors import plain
from blis_py.metrics.load import OVERLOADED, SATURATED, STABLE
from blis_py.metrics.registry import main, shown_in
from blis_py.metrics.slo import limit_and_measured

Summary = Mapping[str, Any]

_STATISTICS = ("mean", "p50", "p90", "p95", "p99", "max")
_COLOURS = {SATURATED: "#b23a00", OVERLOADED: "#8a6100", STABLE: "#00724f"}
_MAX_GROUPS = 12
_NONE = "–"


def summary_html(summary: Summary, foot: str) -> str:
    """Verdict, counts, latencies, SLO classes and targets of a run, and its settings."""
    return "".join(("<div>", *_parts(summary), f'<small style="color:#666">{escape(foot)}</small></div>'))


def _parts(summary: Summary) -> Iterator[str]:
    cluster, load = summary["cluster"], summary["load"]
    colour = _COLOURS.get(load["verdict"], "inherit")
    verdict = f'<b style="color:{colour}">{escape(load["verdict"])}</b>'
    yield f"<p>{verdict}: {_counts(cluster)}<br>{_rates(cluster)}</p>"
    yield _table(
        ("latency, ms", *_STATISTICS),
        [[metric.heading(), *(_ms(cluster[metric.key][stat]) for stat in _STATISTICS)] for metric in main()],
    )
    if len(summary["classes"]) > 1:
        yield _classes(summary["classes"])
    if summary["slo"]:
        yield _targets(summary["slo"])
    for note in summary["notes"]:
        yield f"<p>note: {escape(plain(note, 1000))}</p>"


def _counts(cluster: Summary) -> str:
    counts = cluster["requests"]
    parts = [f"{counts['completed']:,} of {counts['injected']:,} requests completed"]
    for name in ("rejected", "unservable", "timed_out", "evicted", "still_queued", "still_running"):
        if counts.get(name):
            parts.append(f"{counts[name]:,} {name.replace('_', ' ')}")
    return ", ".join(parts)


def _rates(cluster: Summary) -> str:
    rates = cluster["throughput"]
    parts = [
        f"{rates['requests_per_s']:,.2f} requests/s",
        f"{rates['output_tokens_per_s']:,.0f} output tokens/s",
        f"{cluster['output_tokens_per_s_per_gpu']:,.0f} per GPU",
    ]
    for name, label in (("kv_peak_pct", "KV at most"), ("prefix_hit_rate", "prefix hits")):
        if cluster[name] is not None:
            share = cluster[name] * (1 if name.endswith("pct") else 100)
            parts.append(f"{label} {share:.1f} %")
    parts.append(f"{cluster['preemptions']:,} preemptions")
    if cluster["goodput"] and cluster["goodput"]["attainment"] is not None:
        parts.append(f"goodput {cluster['goodput']['attainment']:.1%} of the requests")
    return " · ".join(parts)


def _classes(classes: Mapping[str, Summary]) -> str:
    shown = shown_in("notebook")
    rows = [
        [
            plain(name),
            f"{group['requests']['injected']:,}",
            f"{group['requests']['completed']:,}",
            *(_ms(group[metric.key][stat]) for metric, stat in shown),
        ]
        for name, group in list(classes.items())[:_MAX_GROUPS]
    ]
    figures = (f"{metric.label} {stat}" for metric, stat in shown)
    return _table(("SLO class", "requests", "done", *figures), rows)


def _targets(verdicts: Sequence[Summary]) -> str:
    words = {True: "yes", False: "no", None: "no requests"}
    rows = []
    for each in verdicts:
        limit, measured, unit = limit_and_measured(each)
        rows.append([f"{plain(each['slo'])}{unit}", _ms(limit), _ms(measured), words[each["met"]]])
    return _table(("SLO", "limit, ms", "measured, ms", "met"), rows)


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of right-aligned numbers behind a name."""

    def line(cells: Sequence[str], kind: str) -> str:
        sides = ("left", *("right" for _ in cells[1:]))
        return "".join(
            f'<{kind} style="text-align:{side}">{escape(cell)}</{kind}>'
            for cell, side in zip(cells, sides, strict=True)
        )

    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    return f"<table><thead><tr>{line(headings, 'th')}</tr></thead><tbody>{body}</tbody></table>"


def _ms(value: float | None) -> str:
    return _NONE if value is None else f"{value:,.{2 if value < 100 else 1 if value < 1000 else 0}f}"
