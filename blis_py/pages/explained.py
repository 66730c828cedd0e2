"""The ledger of a percentile as a section."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from blis_py.pages._numbers import number
from blis_py.pages.parts import Cell, Chart, Section, Table

if TYPE_CHECKING:
    from blis_py.ledger.explain import Explanation

_NS_PER_MS = 1e6
_COLUMNS = {"asked_ns": "this request", "slowest_ns": "the slowest, mean", "typical_ns": "the median request"}


def section(explanation: Explanation) -> Section:
    """The ledger of the request at a percentile."""
    data = explanation.as_dict()
    title = f"Where the time of the {data['question']} goes"
    if data["request"] is None:
        return Section("explained", title, [f"Nothing to explain: {data['no_match']}."])
    request = data["request"]
    words = [
        f"{data['question']} is {number((data['value_ns'] or 0) / _NS_PER_MS)} ms, "
        f"of {data['requests']:,} requests. "
        f"The first request as slow is {request['id']} (class {request['slo_class']}): "
        f"{request['prompt_tokens']:,} prompt tokens, {request['output_tokens']:,} output tokens. "
        "Each nanosecond of it is on one line; times are those of the metric."
    ]
    if data["not_reproduced"]:
        words.append(f"The saved run was not reproduced: {data['not_reproduced']}.")
    return Section("explained", title, words, charts=[chart(data)], tables=[_table(data), *_others(data)])


def chart(data: Mapping[str, Any]) -> Chart:
    """The ledgers as stacked bars."""
    lines = data["ledger"]
    bars = [
        {"name": name, "values": [(line[key] or 0) / _NS_PER_MS for line in lines]}
        for key, name in _COLUMNS.items()
        if any(line[key] for line in lines)
    ]
    title = "Where the time goes"
    return {
        "kind": "bars",
        "title": title,
        "unit": "ms",
        "lines": [line["what"] for line in lines],
        "bars": bars,
    }


def _table(data: Mapping[str, Any]) -> Table:
    headings = ("to first token", "to the end", *_COLUMNS.values())
    rows = [
        [Cell(line["what"]), *(_ms(line[key]) for key in ("first_token_ns", "whole_ns", *_COLUMNS))]
        for line in data["ledger"]
    ]
    return Table("Ledger, ms", ("cause", *headings), rows, sortable=True)


def _others(data: Mapping[str, Any]) -> Sequence[Table]:
    if not data["in_the_way"]:
        return ()
    rows = [
        [
            Cell(one["id"]),
            Cell(one["slo_class"]),
            *(Cell(f"{one[key]:,}", one[key]) for key in ("prompt_tokens", "output_tokens")),
            _ms(one["waited_ns"]),
            _ms(one["in_steps_ns"]),
        ]
        for one in data["in_the_way"]
    ]
    headings = ("request", "class", "prompt", "output", "while it waited, ms", "prompt in its steps, ms")
    return [Table("Requests that delayed it", headings, rows, frozenset({1}), sortable=True)]


def _ms(ns: float | None) -> Cell:
    return Cell("–") if ns is None else Cell(number(ns / _NS_PER_MS), ns / _NS_PER_MS)
