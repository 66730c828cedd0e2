"""An explanation on the terminal: the ledger, interfering requests, and effective changes."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from blis_py.errors import plain
from blis_py.metrics.registry import E2E, METRICS, shown_in
from blis_py.report._amounts import count

if TYPE_CHECKING:
    from rich.table import Table

Data = Mapping[str, Any]

_COUNTS = {"completed": "completed", "output_tokens_per_s": "tokens/s"}
_WIDTH = 118


def print_explanation(data: Data, file: TextIO | None = None) -> None:
    """
    Args:
        `data`: `Explanation.as_dict()`.
        file: where to; stdout by default.
    """
    from rich.console import Console

    out = sys.stdout if file is None else file
    console = Console(file=out, width=None if out.isatty() else _WIDTH, highlight=False, emoji=False)
    for part in _parts(data):
        console.print(part, markup=False)


def text_of(data: Data) -> str:
    """The explanation as text."""
    text = io.StringIO()
    print_explanation(data, text)
    return text.getvalue().rstrip("\n")


def _from_here(path: str) -> str:
    """Relative path of a folder below the current one."""
    here = Path.cwd()
    return str(Path(path).relative_to(here)) if here in Path(path).parents else path


def _parts(data: Data) -> Iterable[Any]:
    yield _answer(data)
    if data["not_reproduced"]:
        why = data["not_reproduced"]
        yield f"The saved run was not reproduced: {why}. What follows is about the run as simulated now."
    elif data["source"]:
        yield f"{plain(_from_here(data['source']))}, simulated again: its figures are reproduced."
    request = data["request"]
    if request is None:
        yield f"Nothing to explain: {data['no_match']}."
        return
    yield from _about(data, request)
    yield ""
    yield _ledger(data)
    yield "Each nanosecond is on one line. " + _sums(request) + _scope(data)
    if data["in_the_way"]:
        yield ""
        yield _others(data)
    if data["what_ifs"]:
        yield ""
        yield _what_ifs(data)
        yield from _beside(data["what_ifs"])


def _answer(data: Data) -> str:
    if data["value_ns"] is None:
        return plain(data["question"])
    return f"{plain(data['question'])}: {ms(data['value_ns'])} ms, of {count(data['requests'], 'request')}"


def _about(data: Data, request: Data) -> Iterable[str]:
    cached = f", {request['cached_tokens']:,} of them cached" if request["cached_tokens"] else ""
    where = "" if request["instance"] is None else f", {_where(request)}"
    first = "" if data["value_ns"] is None else "First request at least that slow: "
    yield (
        f"{first}{plain(request['id'])} (class {plain(request['slo_class'])}{where}): "
        f"{request['prompt_tokens']:,} prompt tokens{cached}, {request['output_tokens']:,} output tokens, "
        f"{request['outcome'].replace('_', ' ')}"
    )
    facts = [
        f"{name} {ms(request[key])} ms"
        for name, key in (("TTFT", "ttft_ns"), ("TPOT", "tpot_ns"), ("E2E", "e2e_ns"))
        if request[key] is not None
    ]
    if request["prefill_steps"]:
        facts.append(f"prompt in {count(request['prefill_steps'], 'step')}")
    if request["decode_batch"] is not None:
        facts.append(f"{count(request['decode_steps'], 'decode step')}, batch {request['decode_batch']:,.1f}")
    if request["preemptions"]:
        facts.append(f"preempted {count(request['preemptions'], 'time')}")
    if facts:
        yield " · ".join(facts)
    if request["client_wait_ns"]:
        yield f"before it was sent, its client waited {ms(request['client_wait_ns'])} ms for others to end"


def _where(request: Data) -> str:
    """The instance of a request, or all that it visited, in order."""
    visited = [f"{one['instance']} ({plain(one['pool'])})" for one in request.get("visits", ())]
    return f"instances {', '.join(visited)}" if len(visited) > 1 else f"instance {request['instance']}"


def _ledger(data: Data) -> Table:
    """A line for each cause, and their sum."""
    request, lines = data["request"], data["ledger"]
    columns = {"first_token_ns": "to first token", "whole_ns": _whole(request)}
    if data["slowest"]:
        slowest = data["slowest"]
        some = "" if slowest["looked_at"] == slowest["requests"] else f" of {slowest['requests']:,}"
        columns["slowest_ns"] = f"slowest {slowest['looked_at']:,}{some}"
        columns["typical_ns"] = "median request"
    if request["ttft_ns"] is None:
        del columns["first_token_ns"]
    table = _table("ms", *columns.values(), _share_of(data))
    for line in lines:
        share = f"{line['share']:.1%}" if line["share"] else ""
        table.add_row(line["what"], *(_cell(line[key]) for key in columns), share)
    sums = [sum(line[key] for line in lines) for key in columns]
    table.add_row("total", *(ms(value) for value in sums), "", style="bold")
    return table


def _share_of(data: Data) -> str:
    metric = METRICS[data["share_of"]]
    known = data["request"]["ttft_ns"] is not None or data["share_of"] == "scheduling_delay"
    return f"share of {metric.own_label or metric.label}" if known else "share"


def _whole(request: Data) -> str:
    return "to the end" if request["outcome"] in ("completed", "length_capped") else "as far as it came"


def _sums(request: Data) -> str:
    if request["e2e_ns"] is not None:
        return "The sums are its TTFT and its E2E."
    return "It was not completed: the sum is the time until it timed out, was rejected, or the run ended."


def _scope(data: Data) -> str:
    """Totals of the columns of other requests."""
    metric = METRICS[data["share_of"]]
    if not data["slowest"] or metric is E2E:
        return ""
    per = "per token" if data["per_token"] else "alone"
    return f" Others (mean of the slowest): {metric.own_label or metric.label} {per}."


def _others(data: Data) -> Table:
    table = _table("delayed by", "class", "prompt", "output", "while it waited", "prompt in its steps", "")
    for one in data["in_the_way"]:
        table.add_row(
            plain(one["id"]),
            plain(one["slo_class"]),
            f"{one['prompt_tokens']:,}",
            f"{one['output_tokens']:,}",
            _cell(one["waited_ns"]),
            _cell(one["in_steps_ns"]),
            "arrived later, scheduled first" if one["went_ahead"] else "",
        )
    if data["others_in_the_way"]:
        table.add_row(f"and {data['others_in_the_way']:,} others")
    return table


def _what_ifs(data: Data) -> Table:
    before = data["before"]
    columns = {
        metric.unit.key(f"{metric.name}_{stat}"): f"{metric.label} {stat}"
        for metric, stat in shown_in("what_ifs")
    } | _COUNTS
    table = _table("what if, one run each", _question_title(data), "", "", *columns.values())
    for column in table.columns[1:]:
        column.no_wrap = True
    table.add_row("unchanged", _question_value(before), "", "", *(_figure(before[key]) for key in columns))
    for one in data["what_ifs"]:
        if "refused" not in one and _differs(one):
            changes = [_percent(one["changes"][key]) for key in columns]
            noise = "noise" if one["noise"] else ""
            table.add_row(
                plain(one["change"]), _question_value(one["after"]), _percent(one["asked"]), noise, *changes
            )
    return table


def _question_title(data: Data) -> str:
    return "its E2E" if data["metric"] is None else plain(data["question"]).replace(" of class ", ", ")


def _differs(one: Data) -> bool:
    """Whether any figure differs by at least 0.05 %."""
    return any(_percent(change) != "=" for change in (one["asked"], *one["changes"].values()))


def _beside(what_ifs: Sequence[Data]) -> Iterable[str]:
    """Runs left out of the table: identical ones, or none at all."""
    if any(one.get("noise") and _differs(one) for one in what_ifs):
        yield "noise: with other requests of the same kind the change could go either way (95 % interval)."
    same = [one["change"] for one in what_ifs if "refused" not in one and not _differs(one)]
    if same:
        yield f"No difference: {'; '.join(same)}."
    for one in what_ifs:
        if "refused" in one:
            yield f"{one['change']}: not possible: {plain(one['refused'])}"


def _table(first: str, *others: str) -> Table:
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="left" if name in ("class", "") else "right")
    return table


def ms(ns: float) -> str:
    """A time in ms, to the microsecond for small values and coarser for large ones."""
    value = ns / 1e6
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:,.3f}"


def _cell(ns: float | None) -> str:
    return ms(ns) if ns else ""


def _question_value(measured: Data) -> str:
    return "none" if measured["asked_ns"] is None else f"{ms(measured['asked_ns'])} ms"


def _figure(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.3g}"


def _percent(change: float | None) -> str:
    if change is None:
        return ""
    return "=" if abs(change) < 0.0005 else f"{100 * change:+.1f} %".replace("-", "−")
