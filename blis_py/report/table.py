"""The summary of a run as a terminal table."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, TextIO

from blis_py.errors import plain
from blis_py.metrics.load import CLOSED, OVERLOADED, SATURATED, STABLE
from blis_py.metrics.registry import labels

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

Summary = Mapping[str, Any]

_AT_CLIENTS = {"client_ttft_ms": "TTFT at the client", "client_e2e_ms": "E2E at the client"}
_MOST_INSTANCES = 8
"""Beyond, the spread over instances says more than a row for each."""

_MOST_GROUPS = 20


def print_summary(summary: Summary, file: TextIO | None = None, width: int | None = None) -> None:
    """Print a summary, in colour only on a terminal.

    Args:
        summary: what `blis_py.metrics.summarise` returns.
        file: where to; stdout by default.
        width: columns; the terminal's by default, 100 where there is none.
    """
    _print(summary, parts, file, width)


def print_short(summary: Summary, file: TextIO | None = None, width: int | None = None) -> None:
    """The same in a dozen lines: the verdict, what came of the requests, latencies, SLOs."""
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


def _short_parts(summary: Summary, width: int) -> Iterable[RenderableType]:
    cluster = summary["cluster"]
    yield _load(summary["load"], cluster["requests"])
    yield _flow([*_outcomes(cluster, summary["window"]), *_throughput(cluster)], width)
    if "admission" in summary:
        yield _flow(_admission(summary["admission"]), width)
    if "gateway" in summary:
        yield _flow(_gateway(summary["gateway"]), width)
    if "sessions" in summary:
        yield _flow(_sessions(summary["sessions"]), width)
    yield _latency_table(cluster, width)
    if summary["slo"]:
        yield _slo_table(summary["slo"], width)


def parts(summary: Summary, width: int) -> Iterable[RenderableType]:
    """What is shown, from top to bottom."""
    cluster = summary["cluster"]
    yield _load(summary["load"], cluster["requests"])
    yield _flow([*_outcomes(cluster, summary["window"]), *_throughput(cluster)], width)
    if "admission" in summary:
        yield _flow(_admission(summary["admission"]), width)
    if "gateway" in summary:
        yield _flow(_gateway(summary["gateway"]), width)
    if "saturation" in summary:
        yield _flow((f"{_name(name)}: {level}" for name, level in summary["saturation"].items()), width)
    if "sessions" in summary:
        yield _flow(_sessions(summary["sessions"]), width)
    yield _latency_table(cluster, width)
    yield _flow(_engine(cluster), width)
    if "diffusion" in cluster:
        yield _flow(_diffusion(cluster["diffusion"]), width)
    if len(summary["classes"]) > 1:
        yield _group_table("SLO class", summary["classes"], width)
    if len(summary["tenants"]) > 1:
        yield _group_table("tenant", summary["tenants"], width)
    if len(summary["instances"]) > 1:
        yield _instance_table(summary["instances"], width)
    if "routing" in summary:
        yield _flow(_routing(summary["routing"], cluster), width)
    if cluster["goodput"]:
        yield _flow(_goodput(cluster["goodput"]), width)
    if summary["slo"]:
        yield _slo_table(summary["slo"], width)


def _flow(facts: Iterable[str], width: int) -> str:
    """Facts one after another, broken into lines between them and not within."""
    from rich.text import Text

    lines = [""]
    for fact in facts:
        longer = f"{lines[-1]} · {fact}" if lines[-1] else fact
        if Text.from_markup(longer, emoji=False).cell_len <= width or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(fact)
    return "\n".join(lines)


def _load(load: Summary, counts: Summary) -> str:
    """Whether the cluster keeps up, which comes before any latency."""
    verdict, growth = load["verdict"], load["backlog_growth_per_s"]
    served = f"{_short(load['served_per_s'])} requests/s served"
    rates = f"{_short(load['offered_per_s'])} offered, {served}"
    if closed := load.get("closed_loop_requests"):
        rates += f" (without {closed:,} in closed loops)"
    if verdict == SATURATED:
        if lost := counts["rejected"] + counts.get("evicted", 0):
            share = _percent(100 * lost / counts["injected"])
            how = " or ".join(name for name in ("rejected", "evicted") if counts.get(name))
            kept = "the others" if counts.get("evicted") else "those let in"
            return f"[bold red]saturated[/]: {rates}, {share} are {how}; latencies are of {kept}"
        grows = "requests give up" if growth is None else f"the backlog grows by {_short(growth)} per second"
        return (
            f"[bold red]saturated[/]: {rates}, {grows}; latencies say how long the run was, not how it serves"
        )
    if verdict == OVERLOADED:
        return f"[bold yellow]overloaded[/] for {_seconds(load['overloaded_s'])}, and drained: {rates}"
    if verdict == STABLE:
        return f"[bold green]stable[/]: {rates}"
    if verdict == CLOSED:
        return f"[bold]closed loop[/]: {served}"
    return "[bold yellow]too short to tell[/] whether it keeps up"


def _outcomes(cluster: Summary, window: Summary) -> Iterable[str]:
    counts = cluster["requests"]
    capped = f" ({counts['length_capped']:,} length-capped)" if counts["length_capped"] else ""
    yield f"[bold]{_count(counts['injected'], 'request')}[/]"
    yield f"[green]{counts['completed']:,} completed[/]{capped}"
    for name in ("rejected", "unservable", "timed_out", "evicted", "still_queued", "still_running"):
        if counts.get(name):
            yield f"[yellow]{counts[name]:,} {name.replace('_', ' ')}[/]"
    yield f"{_seconds(window['duration_s'])} on {_count(cluster['num_instances'], 'instance')}"


def _sessions(sessions: Summary) -> Iterable[str]:
    """How many there are, and what was never sent of them."""
    turns = _count(sessions["turns"], "turn")
    yield f"{turns} of {_count(sessions['sessions'], 'session')}"
    if sessions["broken_off"]:
        yield f"[yellow]{_count(sessions['broken_off'], 'session')} with a turn that got no answer[/]"
    for key, why in (("cancelled_turns", "after such a turn"), ("turns_not_reached", "as the run ended")):
        if sessions.get(key):
            yield f"[yellow]{_count(sessions[key], 'turn')} never sent, {why}[/]"


def _admission(admission: Summary) -> Iterable[str]:
    """Why requests were rejected, and of which class they were."""
    reasons = (f"{count:,} {_name(why)}" for why, count in admission["by_reason"].items())
    yield f"[bold]{admission['rejected']:,} rejected[/]: {', '.join(reasons)}"
    for name, by_reason in admission["by_class"].items():
        yield f"shed ({_name(name)}) {sum(by_reason.values()):,}"


def _gateway(gateway: Summary) -> Iterable[str]:
    """How many waited at the gateway, and how long."""
    waits = gateway["wait_ms"]
    yield f"[bold]gateway queue[/]: {_count(gateway['waited'], 'request')} waited"
    yield f"{_ms(waits['mean'])} ms mean, {_ms(waits['p99'])} ms p99 of all {waits['count']:,} that came"
    if gateway["evicted"]:
        yield f"[yellow]{gateway['evicted']:,} evicted from instances[/]"
    if gateway["still_waiting"]:
        yield f"[yellow]{gateway['still_waiting']:,} still there[/]"


def _throughput(cluster: Summary) -> Iterable[str]:
    rates = cluster["throughput"]
    yield f"{_short(rates['requests_per_s'])} requests/s"
    yield f"{_short(rates['output_tokens_per_s'])} output tokens/s"
    yield f"{_short(cluster['output_tokens_per_s_per_gpu'])} per GPU"
    yield f"{_short(rates['total_tokens_per_s'])} tokens/s in and out"


def _engine(cluster: Summary) -> Iterable[str]:
    yield f"{cluster['steps']:,} steps of {_short(cluster['mean_batch_tokens'])} tokens"
    yield f"busy {_percent(cluster['busy_pct'])}"
    yield f"KV {_percent(cluster['kv_mean_pct'])} mean, {_percent(cluster['kv_peak_pct'])} peak"
    ceiling = cluster["prefix_hit_ceiling"]
    at_most = "" if ceiling is None else f" (at most {_percent(100 * ceiling)})"
    yield f"prefix hits {_percent(_times(100, cluster['prefix_hit_rate']))}{at_most}"
    yield _alarming(cluster["preemptions"], "preemption")
    yield _alarming(cluster["priority_inversions"], "priority inversion")
    yield _alarming(cluster["head_of_line_events"], "head-of-line block")


def _diffusion(blocks: Summary) -> Iterable[str]:
    yield f"{_count(blocks['committed_blocks'], 'block')} of {_short(blocks['steps_per_block'])} rounds"
    yield f"{_short(blocks['committed_tokens_per_step'])} tokens per block and round"
    yield f"{_ms(blocks['time_per_block_ms']['mean'])} ms per block"
    yield f"{_short(blocks['mean_denoise_blocks'])} blocks at work"
    yield f"{blocks['wasted_tokens']:,} tokens past an end"
    yield f"{blocks['idle_block_rounds']:,} block-rounds spent waiting for others"


def _routing(routing: Summary, cluster: Summary) -> Iterable[str]:
    yield f"[bold]{_count(routing['decisions'], 'routing decision')}[/]"
    yield f"{routing['unique_targets']:,} of {_count(cluster['num_instances'], 'instance')} chosen"
    yield f"regret {routing['mean_regret']:.3g} mean, {routing['max_regret']:.3g} most"
    found, best = routing["cached_tokens_at_target"], routing["cached_tokens_at_best"]
    yield f"{found:,} cached tokens where requests went, {best:,} where most were"


def _goodput(goodput: Summary) -> Iterable[str]:
    yield f"[bold]goodput[/] {_short(goodput['requests_per_s'])} requests/s"
    share = _percent(_times(100, goodput["attainment"]))
    yield f"{goodput['good']:,} of {goodput['covered']:,} requests met every target ({share})"
    for name, part in goodput["attainment_by_target"].items():
        yield f"{name.upper()} met by {_percent(100 * part)}"


def _latency_table(cluster: Summary, width: int) -> Table:
    stats = ("mean", "p50", "p90", "p95", "p99")
    shown = {key: name for key, name in (labels() | _AT_CLIENTS).items() if key in cluster}
    rows = [[name, *(_ms(cluster[key][stat]) for stat in stats)] for key, name in shown.items()]
    return _table("latency, ms", stats, rows, width)


def _group_table(title: str, groups: Mapping[str, Summary], width: int) -> Table:
    """One row per group: how many got through, how many within their targets, how fast."""
    has_goodput = any(group["goodput"] for group in groups.values())
    columns = ("TTFT p50", "TTFT p99", "TPOT p50", "ITL p99", "E2E p50", "E2E p99")
    rows = []
    for name, group in list(groups.items())[:_MOST_GROUPS]:
        counts, goodput = group["requests"], group["goodput"] or {}
        row = [_name(name), f"{counts['injected']:,}", f"{counts['completed']:,}"]
        if has_goodput:
            row.append(_tenths(_times(100, goodput.get("attainment"))))
        for metric, stat in map(str.split, columns):
            row.append(_ms(group[f"{metric.lower()}_ms"][stat]))
        rows.append(row)
    counted = ("requests", "done", *(("in target %",) if has_goodput else ()))
    table = _table(title, (*counted, *columns), rows, width)
    if len(groups) > _MOST_GROUPS:
        table.caption = f"{len(groups) - _MOST_GROUPS} more in the summary as JSON"
        table.caption_justify = "left"
    return table


_INSTANCE_COLUMNS: dict[str, tuple[Callable[[Summary], Any], Callable[[Any], str]]] = {
    "requests": (lambda one: one["requests"]["injected"], lambda value: f"{value:,.0f}"),
    "tokens /s": (lambda one: one["throughput"]["output_tokens_per_s"], lambda value: _short(value)),
    "busy %": (lambda one: one["busy_pct"], lambda value: _tenths(value)),
    "TTFT p99": (lambda one: one["ttft_ms"]["p99"], lambda value: _ms(value)),
    "ITL p99": (lambda one: one["itl_ms"]["p99"], lambda value: _ms(value)),
    "KV mean %": (lambda one: one["kv_mean_pct"], lambda value: _tenths(value)),
    "KV peak %": (lambda one: one["kv_peak_pct"], lambda value: _tenths(value)),
    "prefix hits %": (lambda one: _times(100, one["prefix_hit_rate"]), lambda value: _tenths(value)),
    "pre- empted": (lambda one: one["preemptions"], lambda value: f"{value:,.0f}"),
}


def _instance_table(instances: Sequence[Summary], width: int) -> Table:
    """One row per instance, or the spread over them when they are many."""
    named = _INSTANCE_COLUMNS
    if len(instances) <= _MOST_INSTANCES and "pool" in instances[-1]:
        named = {"pool": (lambda one: one["pool"], str), **named}
    columns = named.values()
    if len(instances) <= _MOST_INSTANCES:
        rows = [[str(one["instance"]), *(show(read(one)) for read, show in columns)] for one in instances]
    else:
        rows = [
            [f"{name} of {len(instances)}", *(_over(instances, read, pick, show) for read, show in columns)]
            for name, pick in (("least", min), ("median", median), ("most", max))
        ]
    return _table("instance", tuple(named), rows, width)


def _over(
    instances: Sequence[Summary],
    read: Callable[[Summary], Any],
    pick: Callable[[Sequence[float]], float],
    show: Callable[[Any], str],
) -> str:
    values = [value for one in instances if (value := read(one)) is not None]
    return show(pick(values) if values else None)


def _slo_table(verdicts: Sequence[Summary], width: int) -> Table:
    words = {True: "[green]yes[/]", False: "[bold red]no[/]", None: "no requests"}
    rows = []
    for verdict in verdicts:
        what = f"{_name(verdict['slo_class'])} " if verdict["slo_class"] else ""
        name = f"{what}{verdict['metric']} {verdict['stat']}"
        rows.append([name, _ms(verdict["limit_ms"]), _ms(verdict["measured_ms"]), words[verdict["met"]]])
    return _table("SLO", ("limit, ms", "measured, ms", "met"), rows, width)


def _name(given: str) -> str:
    """What somebody called something, with nothing in it that rich or the terminal would act on."""
    from rich.markup import escape

    return escape(plain(given))


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Table:
    """A table of right-aligned columns; those for which there is no room are named below it."""
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
    """On two lines where that saves room: a metric and its statistic, a long word."""
    return name.replace(" ", "\n", 1) if name.endswith(("%", "/s", "empted")) or name[-1].isdigit() else name


def _ms(value: float | None) -> str:
    """Three to five digits, whatever the size."""
    return "-" if value is None else f"{value:,.{2 if value < 100 else 1 if value < 1000 else 0}f}"


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:,.{2 if value < 10 else 1 if value < 1000 else 0}f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} %"


def _tenths(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _seconds(value: float) -> str:
    return f"{value:,.1f} s" if value < 7200 else f"{value / 3600:,.2f} h"


def _times(factor: float, value: float | None) -> float | None:
    return None if value is None else factor * value


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _alarming(number: int, noun: str) -> str:
    return f"[yellow]{_count(number, noun)}[/]" if number else _count(number, noun)
