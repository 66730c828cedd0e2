"""The report of one run: verdict, answer, certainty, groups, the p99 explained, configuration, provenance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from blis_py.figures.facts import cluster, foot, scheduler, step_times, workload
from blis_py.metrics.load import CLOSED, OVERLOADED, SATURATED, STABLE
from blis_py.metrics.registry import METRICS, TTFT, headings, headings_in, main, per_request, with_unit
from blis_py.metrics.slo import limit_and_measured
from blis_py.pages import charts
from blis_py.pages._numbers import number, percent
from blis_py.pages.commands import again, configuration, run_again
from blis_py.pages.cost import cost_of
from blis_py.pages.parts import Cell, Code, Document, Section, Table, Tile, figure
from blis_py.report.shown import ShownResult

if TYPE_CHECKING:
    from blis_py.ledger.explain import Explanation

FILE = "summary.json"
STATISTICS = ("mean", "p50", "p90", "p99", "max")
_TONES = {STABLE: "good", CLOSED: "", OVERLOADED: "warn", SATURATED: "bad"}
_MAX_INSTANCES = 64
_LOST = ("rejected", "unservable", "timed_out", "evicted", "still_queued", "still_running")


def report(
    result: ShownResult,
    explanation: Explanation | None = None,
    *,
    source: str | None = None,
    command: str | None = None,
) -> Document:
    """The report of a run.

    Args:
        explanation: of its p99, if wanted.
        source: folder of the result, for the commands.
        command: that makes the run again; by default with the configuration in it.
    """
    summary = result.summary
    return Document(
        title=workload(result.settings) or "A run",
        kind="Simulated run",
        subtitle=foot(result.settings),
        verdict=verdict(summary),
        findings=list(findings(summary, result.view.completed)),
        sections=list(_sections(result, explanation, source, command)),
        data={FILE: embedded(summary)},
    )


def embedded(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The summary; of many instances only the slowest."""
    return {**summary, "instances": _slowest(summary["instances"])}


def verdict(summary: Mapping[str, Any]) -> Cell:
    """Whether the cluster keeps up and meets its targets."""
    counts, load = summary["cluster"]["requests"], summary["load"]
    if not counts["injected"]:
        return Cell("No requests: the workload is empty, so there is nothing to judge.", tone="warn")
    if counts["rejected"] + counts["unservable"] == counts["injected"]:
        return Cell(f"All {counts['injected']:,} requests were refused; none was served.", tone="bad")
    if counts["injected"] == 1:
        return Cell("A single request: its latencies are no distribution.", tone="warn")
    missed = [one for one in summary["slo"] if one["met"] is False]
    if load["verdict"] == SATURATED:
        return Cell("Saturated: the cluster does not keep up with the load.", tone="bad")
    if missed:
        several = f"{len(missed)} of {len(summary['slo'])} targets"
        return Cell(f"Misses {several}; load: {load['verdict']}.", tone="bad")
    met = " Meets all targets." if summary["slo"] else " No targets were set."
    return Cell(f"{load['verdict'].capitalize()}.{met}", tone=_TONES.get(load["verdict"], "warn"))


def findings(summary: Mapping[str, Any], completed: Any = ()) -> Iterator[Cell]:
    """Targets, lost requests and warnings."""
    for index, one in enumerate(summary["slo"]):
        words = {True: "meets", False: "misses", None: "cannot be judged on"}[one["met"]]
        limit, value, _ = limit_and_measured(one)
        unit = METRICS[one["metric"]].unit
        measured = "no such request" if value is None else f"{number(value)} {unit.name}".rstrip()
        tone = {True: "good", False: "bad", None: "warn"}[one["met"]]
        text = f"{words} {one['slo']}: {measured} (limit {f'{number(limit)} {unit.name}'.rstrip()})"
        yield Cell(text, value, f"{FILE}: slo[{index}].{unit.key('measured')}", tone)
    counts = summary["cluster"]["requests"]
    for name in _LOST:
        if counts.get(name):
            share = percent(counts[name] / counts["injected"])
            others = ": latencies are of the others" if counts["completed"] else ""
            text = f"{counts[name]:,} requests {name.replace('_', ' ')} ({share}){others}"
            yield Cell(text, counts[name], f"{FILE}: cluster.requests.{name}", "bad")
    for note in summary["notes"]:
        yield Cell(str(note), tone="warn")


def tiles(summary: Mapping[str, Any], settings: Mapping[str, Any]) -> list[Tile]:
    """Headline figures: cost and GPUs first."""

    def of(path: str, scale: float = 1.0) -> Cell:
        return figure(summary, path, file=FILE, scale=scale)

    cost = cost_of(settings)
    tiles = [
        Tile("Cost", Cell(cost.text, cost.dollars_per_hour, cost.source), "an hour"),
        Tile("GPUs", Cell(f"{cost.gpus:,}", cost.gpus, "config.yaml: num_instances × tp")),
        Tile("Requests", of("cluster.requests.injected")),
        Tile("Completed", of("cluster.requests.completed")),
        Tile("Output tokens", of("cluster.throughput.output_tokens_per_s"), "per s"),
        *(
            Tile(f"{metric.label} {stat}", of(f"cluster.{metric.key}.{stat}"), metric.unit.name)
            for stat in ("p50", "p99")
            for metric in per_request()
        ),
        Tile("KV cache, peak", of("cluster.kv_peak_pct"), "%"),
        Tile("Busy", of("cluster.busy_pct"), "%"),
    ]
    if summary["cluster"]["goodput"]:
        tiles.append(Tile("Goodput", of("cluster.goodput.attainment", 100), "% of requests"))
    return tiles


def _sections(
    result: ShownResult, explanation: Explanation | None, source: str | None, command: str | None
) -> Iterator[Section]:
    summary, settings, view = result.summary, result.settings, result.view
    yield Section("question", "The question", tables=[question(settings, summary)])
    pictures = [*charts.distributions(view), *charts.by_pool(view), *charts.over_time(view)]
    yield Section("answer", "The answer", tiles=tiles(summary, settings), charts=pictures)
    yield sure(summary)
    yield Section("groups", "By class, tenant and instance", tables=list(groups(summary)))
    if explanation is not None:
        from blis_py.pages.explained import section

        yield section(explanation)
    yield from closing(settings, summary, source, command)


def question(settings: Mapping[str, Any], summary: Mapping[str, Any]) -> Table:
    """The request to the simulator in a few rows."""
    targets = [
        *(settings.get("slo") or ()),
        *(f"every request: {each}" for each in settings.get("goodput") or ()),
    ]
    rows = {
        "Traffic": workload(settings),
        "Requests": f"{summary['cluster']['requests']['injected']:,} over {_duration(summary['window'])}",
        "Cluster": cluster(settings),
        "Scheduling": scheduler(settings),
        "Engine": str(settings.get("engine") or "–"),
        "Step times": step_times(settings),
        "Targets": ", ".join(targets) or "none",
    }
    return Table(
        "The question",
        ("", "value"),
        [[Cell(name), Cell(text)] for name, text in rows.items()],
        frozenset({1}),
    )


def _duration(window: Mapping[str, Any]) -> str:
    return f"{number(window['duration_s'])} s"


def sure(summary: Mapping[str, Any]) -> Section:
    """Certainty: the latency model, the counts behind the statistics, intervals and other models if run."""
    counts = summary["cluster"]["ttft_ms"]["count"]
    words = [
        summary["models"][:1].upper() + summary["models"][1:] + ".",
        summary["capacity"] + ".",
        f"Statistics are of {counts:,} requests (percentiles: {summary['percentile_method']} interpolation)."
        + (" Below 1,000 requests a p99 rests on a handful of them." if counts < 1000 else ""),
    ]
    tables = []
    if bars := summary.get("intervals"):
        tables.append(_intervals(bars, summary))
    else:
        words.append("No error bars: run with --intervals N for reruns under other seeds and coefficients.")
    if rows := summary.get("cross_check"):
        tables.append(_models(rows))
    else:
        words.append("One latency model: run with --cross-check for a row per model.")
    return Section("sure", "How sure, and why", words, tables=tables)


def _intervals(bars: Mapping[str, Any], summary: Mapping[str, Any]) -> Table:
    rows = []
    for path, interval in bars["metrics"].items():
        low, high = interval if isinstance(interval, Sequence) else (None, None)
        ends = [Cell(number(each), each, f"{FILE}: intervals.metrics.{path}") for each in (low, high)]
        rows.append([Cell(path), figure(summary["cluster"], path, file=f"{FILE}: cluster"), *ends])
    return Table("Error bars", ("figure", "this run", "from", "to"), rows)


def _models(rows: Sequence[Mapping[str, Any]]) -> Table:
    names = ("verdict", "requests_per_s", *headings_in("pages"))
    cells = []
    for row in rows:
        values = [row.get(name) for name in names]
        shown = [Cell(each) if isinstance(each, str) else Cell(number(each), each) for each in values]
        if "refused" in row:
            shown[0] = Cell(f"does not apply: {row['refused']}")
        cells.append([Cell(str(row["latency_model"])), *shown])
    return Table("The same run under other latency models", ("model", *names), cells, frozenset({1}))


def groups(summary: Mapping[str, Any]) -> Iterator[Table]:
    """Tables by SLO class, tenant and instance, and of the whole cluster."""
    yield _statistics(summary)
    for title, key in (("By SLO class", "classes"), ("By tenant", "tenants")):
        figures = summary.get(key) or {}
        yield _groups(title, [(name, f"{key}.{name}", group) for name, group in figures.items()])
    if pools := summary.get("pools"):
        yield _pools(pools)
    if handovers := summary.get("handovers"):
        rows = [
            [Cell(name.replace("_", " ")), _of(handovers, name, f"{FILE}: handovers")] for name in handovers
        ]
        yield Table("Hand-overs from prefill to decode", ("figure", "value"), rows)
    instances = summary["instances"]
    shown = _slowest(instances)
    more = "" if len(shown) == len(instances) else f", the slowest {len(shown)} of {len(instances):,}"
    named = [(_instance(one, summary), f"instances[{one['instance']}]", one) for one in shown]
    yield _groups(f"By instance{more}", named, busy=True)


def _instance(one: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    """Name of an instance; with that of its pool, if there are several."""
    return f"{one['instance']} ({one['pool']})" if summary.get("pools") else f"{one['instance']}"


_OF_POOLS = {
    "num_instances": "instances",
    "gpus": "GPUs",
    "visits": "visits of requests",
    "prefill_tokens": "prefill tokens",
    "decode_tokens": "decode tokens",
    "steps": "steps",
    "mean_batch_tokens": "tokens per step",
    "busy_pct": "busy, %",
    "kv_peak_pct": "KV peak, %",
    "prefix_hit_rate": "prefix hit rate",
}


def _pools(pools: Mapping[str, Any]) -> Table:
    columns = _OF_POOLS | headings(main())
    rows = [
        [Cell(name), *(_of(pool, path, f"{FILE}: pools.{name}") for path in columns)]
        for name, pool in pools.items()
    ]
    return Table("By pool", ("pool", *columns.values()), rows, sortable=True)


def _slowest(instances: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    if len(instances) <= _MAX_INSTANCES:
        return list(instances)
    ranked = sorted(instances, key=lambda one: -(one[TTFT.key]["p99"] or 0))[:_MAX_INSTANCES]
    return sorted(ranked, key=lambda one: int(one["instance"]))


def _statistics(summary: Mapping[str, Any]) -> Table:
    rows = [
        [
            Cell(with_unit(metric.label, metric.unit)),
            *(figure(summary, f"cluster.{metric.key}.{stat}", file=FILE) for stat in STATISTICS),
        ]
        for metric in METRICS.values()
        if metric.key in summary["cluster"]
    ]
    return Table("Latencies of the whole cluster", ("metric", *STATISTICS), rows, sortable=True)


def _groups(title: str, named: Sequence[tuple[str, str, Mapping[str, Any]]], busy: bool = False) -> Table:
    columns = {"requests.injected": "requests", "requests.completed": "completed"}
    columns |= headings(per_request())
    columns |= {"throughput.output_tokens_per_s": "output tokens/s", "preemptions": "preemptions"}
    if busy:
        columns |= {"busy_pct": "busy, %", "kv_peak_pct": "KV peak, %"}
    rows = [
        [Cell(name), *(_of(group, path, f"{FILE}: {place}") for path in columns)]
        for name, place, group in named
    ]
    return Table(title, (title.removeprefix("By ").partition(",")[0], *columns.values()), rows, sortable=True)


def _of(group: Mapping[str, Any], path: str, place: str) -> Cell:
    cell = figure(group, path, file=place)
    return Cell(cell.text, cell.value, f"{place}.{path}")


def closing(
    settings: Mapping[str, Any], summary: Mapping[str, Any], source: str | None, command: str | None
) -> Iterator[Section]:
    """Configuration, provenance and commands."""
    given = settings.get("given")
    rows = [[Cell(key), Cell(_setting(settings, key))] for key in given or ()]
    tables = [Table("What was set; all else follows from these", ("setting", "value"), rows, frozenset({1}))]
    whole = Code("The complete configuration (config.yaml)", configuration(settings), folded=True)
    yield Section("configuration", "Configuration", tables=tables if rows else (), codes=[whole])
    yield Section(
        "provenance",
        "Where the numbers are from",
        [
            "Every number is one of summary.json, by the path in its tooltip; the file is embedded here.",
            f"Step times: {summary['models']}.",
            "Curves are of requests.csv (160 points each), states over time of steps.csv (240 slices).",
            cost_of(settings).provenance,
        ],
    )
    codes = [Code("The same run again", command or run_again(settings)), *again(source)]
    yield Section("commands", "To get it again", codes=codes)


def _setting(settings: Mapping[str, Any], key: str) -> str:
    value: Any = settings
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
