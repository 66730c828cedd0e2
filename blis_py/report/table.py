"""The summary of a run as a terminal table."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, TextIO

from blis_py.errors import plain
from blis_py.metrics.load import AT_ONCE, CLOSED, OVERLOADED, SATURATED, STABLE
from blis_py.metrics.registry import METRICS, shown_in
from blis_py.metrics.slo_words import sentence
from blis_py.report._amounts import count, ms, short
from blis_py.report.kinds import LINES

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

Summary = Mapping[str, Any]

_AT_CLIENTS = {"client_ttft_ms": "TTFT at the client", "client_e2e_ms": "E2E at the client"}
_MAX_INSTANCES = 8
"""Most instances with a row each; beyond, the spread over instances is shown."""

_MAX_GROUPS = 20
_PASSING = 0.01
"""Share of a run below which an overload that drained is no headline."""


def print_summary(summary: Summary, file: TextIO | None = None, width: int | None = None) -> None:
    """Print a summary, in colour only on a terminal.

    Args:
        summary: what `blis_py.metrics.summarise` returns.
        file: where to; stdout by default.
        width: columns; the terminal's by default, 100 where there is none.
    """
    _print(summary, parts, file, width)


def print_short(summary: Summary, file: TextIO | None = None, width: int | None = None) -> None:
    """Print a summary in a dozen lines: the verdict, outcomes of requests, latencies, SLOs."""
    _print(summary, _short_parts, file, width)


def _print(
    summary: Summary,
    of: Callable[[Summary, int], Iterable[RenderableType]],
    file: TextIO | None,
    width: int | None,
) -> None:
    from rich.console import Console, Group

    out = sys.stdout if file is None else file
    given: Any = {"file": out, "width": width or (None if out.isatty() else 100)}
    console = Console(**given, highlight=False, emoji=False, force_jupyter=False)  # text, in a notebook too
    for index, part in enumerate(of(summary, console.width)):
        console.print(part if index == 0 else Group("", part))


def _head(summary: Summary, width: int) -> Iterable[RenderableType]:
    cluster = summary["cluster"]
    targets, load = [*_targets(summary["slo"])], _load(summary, cluster["requests"])
    lost = summary["load"]["verdict"] == SATURATED  # latencies depend on the length of the run then
    yield "\n".join([load, *targets] if lost else [*targets, load])
    yield _flow([*_outcomes(cluster, summary["window"]), *_throughput(cluster)], width)
    if "admission" in summary:
        yield _flow(_admission(summary["admission"]), width)
    if "gateway" in summary:
        yield _flow(_gateway(summary["gateway"]), width)


def _short_parts(summary: Summary, width: int) -> Iterable[RenderableType]:
    cluster = summary["cluster"]
    yield from _head(summary, width)
    if "sessions" in summary:
        yield _flow(_sessions(summary["sessions"]), width)
    yield _latency_table(cluster, width)


def parts(summary: Summary, width: int) -> Iterable[RenderableType]:
    """The parts of the table, from top to bottom."""
    cluster = summary["cluster"]
    yield from _head(summary, width)
    if "saturation" in summary:
        yield _flow((f"{_name(name)}: {level}" for name, level in summary["saturation"].items()), width)
    if "sessions" in summary:
        yield _flow(_sessions(summary["sessions"]), width)
    yield _latency_table(cluster, width)
    yield "\n".join((_flow(_steps(cluster), width), _flow(_engine(cluster), width)))
    if "priority_waits" in summary:
        yield _flow(_priority_waits(summary["priority_waits"]), width)
    for name, lines in LINES.items():
        if name in cluster:
            yield _flow(lines(cluster[name]), width)
    if len(summary["classes"]) > 1:
        yield _group_table("SLO class", summary["classes"], width)
    if len(summary["tenants"]) > 1:
        yield _group_table("tenant", summary["tenants"], width)
    if "pools" in summary:
        yield _pool_table(summary["pools"], width)
    if len(summary["instances"]) > 1:
        yield _instance_table(summary["instances"], width)
    if "routing" in summary:
        yield _flow(_routing(summary["routing"], cluster), width)
    if cluster["goodput"]:
        yield _flow(_goodput(cluster["goodput"]), width)


def _flow(facts: Iterable[str], width: int) -> str:
    """Facts in one paragraph, with line breaks only between them."""
    from rich.text import Text

    lines = [""]
    for fact in facts:
        longer = f"{lines[-1]} · {fact}" if lines[-1] else fact
        if Text.from_markup(longer, emoji=False).cell_len <= width or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(fact)
    return "\n".join(lines)


def _targets(verdicts: Sequence[Summary]) -> Iterable[str]:
    """Targets with their distances: those that are missed first."""
    marks = {True: "[green]✓[/]", False: "[bold red]✗[/]", None: "[yellow]–[/]"}
    for each in sorted(verdicts, key=lambda verdict: verdict["met"] is not False):
        yield f"{marks[each['met']]} {_first_upper(_name(sentence(each)))}"


def _first_upper(text: str) -> str:
    """A sentence that begins with a class as with a word; a statistic (`p99`) stays as it is."""
    return text if text[:1] == "p" and text[1:2].isdigit() else text[:1].upper() + text[1:]


def _load(summary: Summary, counts: Summary) -> str:
    """Whether the cluster keeps up with the load, shown before any latency."""
    load = summary["load"]
    verdict, growth = load["verdict"], load["backlog_growth_per_s"]
    served = f"{short(load['served_per_s'])} requests/s served"
    rates = f"{short(load['offered_per_s'])} offered, {served}"
    if closed := load.get("closed_loop_requests"):
        rates += f" (without {closed:,} in closed loops)"
    if verdict == SATURATED:
        if lost := counts["rejected"] + counts.get("evicted", 0):
            share = _percent(100 * lost / counts["injected"])
            how = " or ".join(name for name in ("rejected", "evicted") if counts.get(name))
            kept = "the others" if counts.get("evicted") else "those admitted"
            return f"[bold red]saturated[/]: {rates}, {share} are {how}; latencies are of {kept}"
        grows = f"the backlog grows by {short(growth or 0.0)} per second"
        if growth is None:
            late = counts["timed_out"] / max(counts["injected"], 1)
            grows = f"{_percent(100 * late)} time out" if late else "queueing times keep growing"
        of_whom = "depend on the length of the run"
        if counts.get("still_queued", 0) > counts["completed"]:
            of_whom = "are of those that got through"
        return f"[bold red]saturated[/]: {rates}, {grows}; latencies {of_whom}"
    if verdict == OVERLOADED and load["overloaded_s"] < _PASSING * summary["window"]["duration_s"]:
        return f"[bold green]stable[/]: {rates}; queues of {_seconds(load['overloaded_s'])} in all"
    if verdict == OVERLOADED:
        return f"[bold yellow]overloaded[/] for {_seconds(load['overloaded_s'])}, and drained: {rates}"
    if verdict == STABLE:
        return f"[bold green]stable[/]: {rates}"
    if verdict == CLOSED and "client_wait_ms" in load:
        late = _seconds(load["client_wait_ms"] / 1000)
        return f"[bold]closed loop[/]: {rates}; clients send {late} late on average"
    if verdict == CLOSED:
        return f"[bold]closed loop[/]: {served}"
    if verdict == AT_ONCE:
        what = "all requests arrive at once" if counts["injected"] != 1 else "a single request"
        return f"[bold]{what}[/]: no rate to keep up with; {served}"
    needed = load.get("requests_for_verdict")
    more = f"; try about {needed:,} requests" if needed else ""
    return f"[bold yellow]too short to tell[/] whether it keeps up{more}"


def _outcomes(cluster: Summary, window: Summary) -> Iterable[str]:
    counts = cluster["requests"]
    capped = f" ({counts['length_capped']:,} length-capped)" if counts["length_capped"] else ""
    yield f"[bold]{count(counts['injected'], 'request')}[/]"
    yield f"[green]{counts['completed']:,} completed[/]{capped}"
    for name in ("rejected", "unservable", "timed_out", "evicted", "still_queued", "still_running"):
        if counts.get(name):
            yield f"[yellow]{counts[name]:,} {name.replace('_', ' ')}[/]"
    yield f"{_seconds(window['duration_s'])} on {count(cluster['num_instances'], 'instance')}"


def _sessions(sessions: Summary) -> Iterable[str]:
    """Number of sessions, and of turns never sent."""
    turns = count(sessions["turns"], "turn")
    yield f"{turns} of {count(sessions['sessions'], 'session')}"
    if sessions["broken_off"]:
        yield f"[yellow]{count(sessions['broken_off'], 'session')} with a turn that got no answer[/]"
    for key, why in (("cancelled_turns", "after such a turn"), ("turns_not_reached", "as the run ended")):
        if sessions.get(key):
            yield f"[yellow]{count(sessions[key], 'turn')} never sent, {why}[/]"


def _admission(admission: Summary) -> Iterable[str]:
    """Reasons and classes of rejected requests."""
    reasons = (f"{number:,} {_name(why)}" for why, number in admission["by_reason"].items())
    yield f"[bold]{admission['rejected']:,} rejected[/]: {', '.join(reasons)}"
    for name, by_reason in admission["by_class"].items():
        yield f"shed ({_name(name)}) {sum(by_reason.values()):,}"


def _gateway(gateway: Summary) -> Iterable[str]:
    """Number of requests queued at the gateway, and their waiting times."""
    waits = gateway["wait_ms"]
    yield f"[bold]gateway queue[/]: {count(gateway['waited'], 'request')} waited"
    yield f"{ms(waits['mean'])} ms mean, {ms(waits['p99'])} ms p99 of all {waits['count']:,} arrivals"
    if gateway["evicted"]:
        yield f"[yellow]{gateway['evicted']:,} evicted from instances[/]"
    if gateway["still_waiting"]:
        yield f"[yellow]{gateway['still_waiting']:,} still queued[/]"


def _throughput(cluster: Summary) -> Iterable[str]:
    rates = cluster["throughput"]
    yield f"{short(rates['requests_per_s'])} requests/s"
    yield f"{short(rates['output_tokens_per_s'])} output tokens/s"
    yield f"{short(cluster['output_tokens_per_s_per_gpu'])} per GPU"
    yield f"{short(rates['total_tokens_per_s'])} tokens/s in and out"


def _steps(cluster: Summary) -> Iterable[str]:
    yield f"{cluster['steps']:,} steps of {short(cluster['mean_batch_tokens'])} tokens"
    yield f"KV {_percent(cluster['kv_mean_pct'])} mean, {_percent(cluster['kv_peak_pct'])} peak"


def _engine(cluster: Summary) -> Iterable[str]:
    ceiling = cluster["prefix_hit_ceiling"]
    at_most = "" if ceiling is None else f" (at most {_percent(100 * ceiling)})"
    yield f"prefix hits {_percent(_times(100, cluster['prefix_hit_rate']))}{at_most}"
    yield _alarming(cluster["preemptions"], "preemption")
    yield _alarming(cluster["priority_inversions"], "priority inversion")
    yield _alarming(cluster["head_of_line_events"], "head-of-line block")


def _priority_waits(waits: Summary) -> Iterable[str]:
    requests = count(waits["requests"], "request")
    yield f"[yellow]{requests} waited 1 s or more while less urgent ones ran[/]"
    yield f"{short(waits['max_ms'] / 1000)} s at most"


def _routing(routing: Summary, cluster: Summary) -> Iterable[str]:
    yield f"[bold]{count(routing['decisions'], 'routing decision')}[/]"
    yield f"{routing['unique_targets']:,} of {count(cluster['num_instances'], 'instance')} chosen"
    yield f"regret {routing['mean_regret']:.3g} mean, {routing['max_regret']:.3g} most"
    hits, best = routing["cached_tokens_at_target"], routing["cached_tokens_at_best"]
    yield f"{hits:,} cached tokens at the chosen instances, {best:,} at the best"


def _goodput(goodput: Summary) -> Iterable[str]:
    yield f"[bold]goodput[/] {short(goodput['requests_per_s'])} requests/s"
    share = _percent(_times(100, goodput["attainment"]))
    yield f"{goodput['good']:,} of {goodput['covered']:,} requests met every target ({share})"
    for name, part in goodput["attainment_by_target"].items():
        yield f"{name.upper()} met by {_percent(100 * part)}"


def _latency_table(cluster: Summary, width: int) -> Table:
    stats = ("mean", "p50", "p90", "p95", "p99")
    headings = {metric.key: metric.heading() for metric in METRICS.values()}
    shown = {key: name for key, name in (headings | _AT_CLIENTS).items() if key in cluster}
    rows = [[name, *(ms(cluster[key][stat]) for stat in stats)] for key, name in shown.items()]
    return _table("latency, ms", stats, rows, width)


def _group_table(title: str, groups: Mapping[str, Summary], width: int) -> Table:
    """One row per group: completed requests, attainment, latencies."""
    has_goodput = any(group["goodput"] for group in groups.values())
    shown = shown_in("groups")
    columns = [f"{metric.label} {stat}" for metric, stat in shown]
    rows = []
    for name, group in list(groups.items())[:_MAX_GROUPS]:
        counts, goodput = group["requests"], group["goodput"] or {}
        row = [_name(name), f"{counts['injected']:,}", f"{counts['completed']:,}"]
        if has_goodput:
            row.append(_tenths(_times(100, goodput.get("attainment"))))
        row += [ms(group[metric.key][stat]) for metric, stat in shown]
        rows.append(row)
    counted = ("requests", "done", *(("in target %",) if has_goodput else ()))
    table = _table(title, (*counted, *columns), rows, width)
    if len(groups) > _MAX_GROUPS:
        table.caption = f"{len(groups) - _MAX_GROUPS} more in the summary as JSON"
        table.caption_justify = "left"
    return table


InstanceColumns = dict[str, tuple[Callable[[Summary], Any], Callable[[Any], str]]]
_USE: InstanceColumns = {
    "requests": (lambda one: one["requests"]["injected"], lambda value: f"{value:,.0f}"),
    "tokens /s": (lambda one: one["throughput"]["output_tokens_per_s"], lambda value: short(value)),
}
_MEMORY: InstanceColumns = {
    "KV mean %": (lambda one: one["kv_mean_pct"], lambda value: _tenths(value)),
    "KV peak %": (lambda one: one["kv_peak_pct"], lambda value: _tenths(value)),
    "prefix hits %": (lambda one: _times(100, one["prefix_hit_rate"]), lambda value: _tenths(value)),
    "pre- empted": (lambda one: one["preemptions"], lambda value: f"{value:,.0f}"),
}


def _instance_columns() -> InstanceColumns:
    latencies = {
        f"{metric.label} {stat}": _latency(metric.key, stat) for metric, stat in shown_in("instances")
    }
    return {**_USE, **latencies, **_MEMORY}


def _latency(key: str, stat: str) -> tuple[Callable[[Summary], Any], Callable[[Any], str]]:
    return lambda one: one[key][stat], ms


def _instance_table(instances: Sequence[Summary], width: int) -> Table:
    """One row per instance, or the spread over them if there are many."""
    named = _instance_columns()
    if len(instances) <= _MAX_INSTANCES and "pool" in instances[-1]:
        named = {"pool": (lambda one: one["pool"], str), **named}
    columns = named.values()
    if len(instances) <= _MAX_INSTANCES:
        rows = [[str(one["instance"]), *(show(read(one)) for read, show in columns)] for one in instances]
    else:
        rows = [
            [f"{name} of {len(instances)}", *(_over(instances, read, pick, show) for read, show in columns)]
            for name, pick in (("least", min), ("median", median), ("most", max))
        ]
    return _table("instance", tuple(named), rows, width)


def _pool_table(pools: Mapping[str, Summary], width: int) -> Table:
    """One row per pool; its latencies are those of the visits to its instances."""
    columns: InstanceColumns = {
        "instances": (lambda one: one["num_instances"], lambda value: f"{value:,.0f}"),
        **_instance_columns(),
    }
    rows = [[name, *(show(read(one)) for read, show in columns.values())] for name, one in pools.items()]
    return _table("pool", tuple(columns), rows, width)


def _over(
    instances: Sequence[Summary],
    read: Callable[[Summary], Any],
    pick: Callable[[Sequence[float]], float],
    show: Callable[[Any], str],
) -> str:
    values = [value for one in instances if (value := read(one)) is not None]
    return show(pick(values) if values else None)


def _name(given: str) -> str:
    """A user's name for something, escaped for rich and the terminal."""
    from rich.markup import escape

    return escape(plain(given))


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Table:
    """A table of right-aligned columns; columns that do not fit are named below it."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    headings = [_heading(name) for name in columns]
    cells = [[Text.from_markup(text, emoji=False) for text in row] for row in rows]
    fitting, used = 0, max(len(title), *(row[0].cell_len for row in cells)) + 1
    for index, heading in enumerate(headings):
        used += max(*map(len, heading.split("\n")), *(row[index + 1].cell_len for row in cells)) + 2
        fitting += used <= width
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column(title, no_wrap=True, style="cyan", vertical="bottom")
    for heading in headings[:fitting]:
        table.add_column(heading, justify="right", no_wrap=True, vertical="bottom")
    for row in cells:
        table.add_row(*row[: fitting + 1])
    if fitting < len(columns):
        table.caption = f"no room for {', '.join(columns[fitting:]).replace('- ', '')}"
        table.caption_justify = "left"
    return table


def _heading(name: str) -> str:
    """Heading broken into two lines where that saves width: a metric and its statistic, a long word."""
    return name.replace(" ", "\n", 1) if name.endswith(("%", "/s", "empted")) or name[-1].isdigit() else name


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} %"


def _tenths(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _seconds(value: float) -> str:
    return f"{value:,.1f} s" if value < 7200 else f"{value / 3600:,.2f} h"


def _times(factor: float, value: float | None) -> float | None:
    return None if value is None else factor * value


def _alarming(number: int, noun: str) -> str:
    return f"[yellow]{count(number, noun)}[/]" if number else count(number, noun)
