"""The report of a plan, from the files of its folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from blis_py.figures.facts import foot
from blis_py.pages._numbers import number, percent
from blis_py.pages.commands import configuration, run_again
from blis_py.pages.parts import Cell, Chart, Code, Document, Section, Table, Tile, figure
from blis_py.planning.report_text import DIFFER

FILE = "plan.json"


def report(plan: Mapping[str, Any], answer: Sequence[str], scripts: Mapping[str, str]) -> Document:
    """The report of a plan.

    Args:
        plan: the content of `plan.json`.
        answer: the lines of `plan.txt`.
        scripts: start scripts by file name.
    """
    settings = plan.get("config") or {}
    doubts = [line for line in answer if line.startswith(DIFFER)]
    first, *others = [line for line in answer if line not in doubts] or [""]
    return Document(
        title=plan["best"]["what"],
        kind="Plan",
        subtitle=foot(settings),
        verdict=Cell(first[:1].upper() + first[1:], tone="good" if plan["holds"] else "bad"),
        findings=[
            *(Cell(line, tone="bad") for line in doubts),
            *(Cell(line.strip(), tone=_tone(line)) for line in others),
        ],
        sections=list(_sections(plan, settings, scripts)),
        data={FILE: plan},
    )


def _tone(line: str) -> str:
    text = line.strip()
    if text.startswith("✓"):
        return "good"
    if text.startswith("✗"):
        return "bad"
    return "warn" if text.startswith(("warning", "note")) else ""


def _sections(
    plan: Mapping[str, Any], settings: Mapping[str, Any], scripts: Mapping[str, str]
) -> Iterator[Section]:
    charts = [chart for chart in (_costs(plan), _levers(plan)) if chart is not None]
    yield Section("answer", "The answer", tiles=_tiles(plan), charts=charts, tables=list(_candidates(plan)))
    yield Section(
        "sure", "How sure, and why", list(_sure(plan)), charts=_slacks(plan), tables=list(_cases(plan))
    )
    yield Section("searched", "What was looked at", tables=_standings(plan))
    yield Section(
        "configuration",
        "Configuration",
        codes=[
            Code("The best configuration (config.yaml)", configuration(settings), folded=True),
            *(Code(f"Start script: {name}", text, folded=True) for name, text in scripts.items()),
        ],
    )
    facts = [str(plan[key]) for key in ("models", "capacity") if plan.get(key)]
    source = plan["best"].get("price_source")
    lines = [*facts, *([f"Prices: {source}"] if source else []), "Every number is one of plan.json."]
    yield Section("provenance", "Where the numbers are from", lines)
    yield Section("commands", "To get it again", codes=[Code("The run of the best", run_again(settings))])


def _tiles(plan: Mapping[str, Any]) -> list[Tile]:
    def of(path: str, scale: float = 1.0) -> Cell:
        return figure(plan, path, file=FILE, scale=scale)

    return [
        Tile("Dollars", of("best.dollars_per_hour"), "an hour"),
        Tile("GPUs", of("best.gpus")),
        Tile("Instances", of("best.num_instances")),
        Tile("Per million output tokens", of("best.dollars_per_million_output_tokens"), "$"),
        Tile("Headroom", of("headroom.max_rate_factor"), "× the rate"),
        Tile("Holds with probability", of("probability.holds", 100), "%"),
    ]


def _candidates(plan: Mapping[str, Any]) -> Iterator[Table]:
    for key, title in (("best", "The best"), ("runner_up", "The runner-up")):
        one = plan.get(key)
        if one:
            yield requirements(f"{title}: {one['what']}", one["requirements"], f"{key}.requirements")


def requirements(caption: str, targets: Sequence[Mapping[str, Any]], path: str) -> Table:
    """Targets with limits and measured values."""
    rows = [
        [
            Cell(each["what"]),
            *(
                Cell(number(each[key]), each[key], f"{FILE}: {path}[{index}].{key}")
                for key in ("limit", "measured")
            ),
            Cell(each["unit"]),
            Cell("met" if each["met"] else "missed", tone="good" if each["met"] else "bad"),
        ]
        for index, each in enumerate(targets)
    ]
    return Table(caption, ("target", "limit", "measured", "unit", "met?"), rows, frozenset({3, 4}))


def _sure(plan: Mapping[str, Any]) -> Iterator[str]:
    sure = plan.get("probability") or {}
    if sure.get("holds") is not None:
        text = f"All targets are met in {percent(sure['holds'])} of {sure['draws']} draws of step times"
        if sure.get("step_time_deviation") is not None:
            text += f" off by {percent(sure['step_time_deviation'])} (standard deviation)"
        yield f"{text}. Source: {sure.get('source')}."
    if plan.get("binding_constraint"):
        yield f"Bottleneck where it breaks: {plan['binding_constraint']}."
    if plan.get("why_runner_up_lost"):
        yield f"The runner-up: {plan['why_runner_up_lost']}."


def _cases(plan: Mapping[str, Any]) -> Iterator[Table]:
    for key, title in (("sensitivity", "Other loads"), ("latency_models", "Other latency models")):
        rows = [
            [
                Cell(str(each.get("case", "")).removeprefix("model ")),
                Cell("holds" if each.get("holds") else "fails", tone="good" if each.get("holds") else "bad"),
                Cell(_percent(each.get("slack")), each.get("slack"), f"{FILE}: {key}"),
                Cell(str(each.get("why") or "")),
            ]
            for each in plan.get(key) or ()
        ]
        if rows:
            yield Table(title, ("case", "holds?", "to spare", "why"), rows, frozenset({1, 3}), sortable=True)


def _percent(share: Any) -> str:
    return percent(share) if isinstance(share, int | float) else "–"


def _slacks(plan: Mapping[str, Any]) -> list[Chart]:
    cases = [each for each in plan.get("sensitivity") or () if isinstance(each.get("slack"), int | float)]
    if not cases:
        return []
    return [
        {
            "title": "Room below the tightest limit when the load differs",
            "x": {"label": "factor on the load"},
            "y": {"label": "% of the limit"},
            "series": list(_by_change(cases)),
            "limits": [{"y": 0, "label": "the limit"}],
        }
    ]


def _by_change(cases: Sequence[Mapping[str, Any]]) -> Iterator[Chart]:
    lines: dict[str, list[tuple[float, float]]] = {}
    for each in cases:
        name, _, factor = each["case"].partition("×")
        lines.setdefault(name, []).append((float(factor), 100 * each["slack"]))
    for name, points in lines.items():
        points.sort()
        yield {"name": name, "kind": "line", "x": [x for x, _ in points], "y": [y for _, y in points]}


def _levers(plan: Mapping[str, Any]) -> Chart | None:
    levers = [each for each in plan.get("levers") or () if (each.get("gain") or 0) > 0]
    if not levers:
        return None
    bars = [
        {
            "name": f"{each['resource']}: {each['how']}",
            "values": [100 * each["gain"]],
            "text": percent(each["gain"]),
        }
        for each in levers
    ]
    title = "What a quarter more of it improves the tightest figure by"
    return {"kind": "bars", "title": title, "unit": "%", "lines": ["improvement"], "bars": bars}


def _costs(plan: Mapping[str, Any]) -> Chart | None:
    priced = [each for each in plan.get("standings") or () if isinstance(each.get("cost"), int | float)]
    if len(priced) < 2:
        return None
    bars = [
        {"name": _point(each), "values": [each["cost"]]}
        for each in sorted(priced, key=lambda one: one["cost"])
    ]
    title = f"Cost of each combination that holds, {plan['objective']}"
    return {"kind": "bars", "title": title, "unit": "", "lines": ["cost"], "bars": bars[:20]}


def _point(each: Mapping[str, Any]) -> str:
    point = each.get("settings") or each.get("point") or {}
    return ", ".join(f"{key} {value}" for key, value in point.items()) or "as given"


def _standings(plan: Mapping[str, Any]) -> list[Table]:
    standings = plan.get("standings") or ()
    keys = [key for key in (standings[0] if standings else ()) if key not in ("settings", "point")]
    rows = [
        [Cell(_point(each)), *(_value(each.get(key), f"{FILE}: standings[{index}].{key}") for key in keys)]
        for index, each in enumerate(standings)
    ]
    texts = frozenset({1 + keys.index("why")}) if "why" in keys else frozenset[int]()
    names = [key.replace("_", " ") for key in keys]
    return [Table("Combinations", ("settings", *names), rows, texts, sortable=True)] if rows else []


def _value(value: Any, source: str) -> Cell:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Cell(number(value), value, source)
    return Cell("" if value is None else {True: "yes", False: "no"}.get(value, str(value)))
