"""A workload over a longer time: generated further, or a recording repeated with its structure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from blis_py.config.models import RunConfig
from blis_py.requests.loops import Loop
from blis_py.requests.sessions import later_turns_last, waits
from blis_py.requests.streams import stream
from blis_py.requests.table import Content, Ints, RequestTable, deadlines_ns
from blis_py.setup.demand import Demand

_ENOUGH = 0.97
"""Least share of the wanted requests that a generator has to supply; a horizon or a window of its own may end
it before."""
_LASTS = 0.5
"""A text that recurs over more than this share of a recording is permanent, such as a system prompt."""


def longer(config: RunConfig, length: float, demand_of: Callable[[RunConfig], Demand]) -> Demand:
    """The demand over `length` times its duration; unchanged where it cannot be extended.

    A generator continues its sequence. A recording is repeated, and so is all that a generator with an end of
    its own supplies.
    """
    demand = demand_of(config)
    if length <= 1:
        return demand
    num_requests = math.ceil(round(demand.most * length, 6))
    in_loop = config.workload.concurrency is not None
    if config.workload.trace is None:
        further = demand_of(replace(config, workload=replace(config.workload, num_requests=num_requests)))
        if further.most >= _ENOUGH * num_requests:
            return further
        if demand.loops is None and len(further.table) > len(demand.table):
            whole = _repeated(further, math.ceil(num_requests / len(further.table)), in_loop)
            kept = np.arange(min(num_requests, len(whole.table)))
            return replace(whole, table=whole.table.take(kept))
    return _repeated(demand, math.ceil(length), in_loop)


def _repeated(demand: Demand, copies: int, in_loop: bool) -> Demand:
    """
    Args:
        in_loop: whether all requests are sent by a closed loop that is not among those of the demand.
    """
    loops, table = demand.loops, demand.table
    if loops is None:
        return replace(demand, table=repeated(table, copies, in_loop=in_loop))
    if loops.at_most is not None:
        return demand
    if len(loops.parts) == 1 and not loops.later_turns:
        table = repeated(table, copies, in_loop=True)
        whole = replace(loops.parts[0], rows=slice(0, len(table)))
        return replace(demand, table=table, loops=replace(loops, parts=[whole]))
    if not loops.only_turns:
        return demand
    table = later_turns_last(repeated(table, copies))
    begun = Loop(slice(0, len(table) - int(waits(table).sum())))
    return replace(demand, table=table, loops=replace(loops, parts=[begun]))


def repeated(table: RequestTable, copies: int, *, in_loop: bool = False) -> RequestTable:
    """The requests of a table, over and over, one period apart.

    Sessions and texts of each copy are its own, so that no copy finds the previous one's in a prefix cache;
    texts that recur over most of the recording are shared by all.

    Args:
        in_loop: whether a closed loop sends them; otherwise requests that arrive at once stay as they are.
    """
    rows, span_ns = len(table), int(table.arrival_ns.max(initial=0) - table.arrival_ns.min(initial=0))
    if copies <= 1 or rows < 2 or not (span_ns or in_loop):
        return table
    period_ns = round(span_ns * rows / (rows - 1))
    many = table.take(np.tile(np.arange(rows), copies))
    copy = np.repeat(np.arange(copies, dtype=np.int64), rows)
    contents, content = _contents(table, copies)
    return replace(
        many,
        arrival_ns=many.arrival_ns + copy * period_ns,
        deadline_ns=np.where(many.deadline_ns < 0, -1, many.deadline_ns + copy * period_ns),
        content=content,
        contents=contents,
        request_id=_named(table.ids(), copies) if table.request_id is not None else None,
        session=_sessions(table, many, copy),
        session_names=None if table.session_names is None else _named(table.session_names, copies),
    )


def _named(names: Sequence[str], copies: int) -> list[str]:
    return [name if copy == 0 else f"{name}~{copy}" for copy in range(copies) for name in names]


def _sessions(table: RequestTable, many: RequestTable, copy: Ints) -> Ints | None:
    if table.session is None or many.session is None:
        return None
    count = int(table.session.max(initial=-1)) + 1
    if table.session_names is not None:
        count = len(table.session_names)
    return np.where(many.session < 0, -1, many.session + copy * count)


def _contents(table: RequestTable, copies: int) -> tuple[tuple[Content, ...], Ints]:
    """The texts of all copies, and the index of each request's."""
    permanent = _permanent(table)
    contents = [
        tuple((name if copy == 0 or name in permanent else f"{name}~{copy}", tokens) for name, tokens in runs)
        for copy in range(copies)
        for runs in table.contents
    ]
    shift = np.repeat(np.arange(copies, dtype=np.int64) * len(table.contents), len(table))
    content = np.tile(table.content, copies)
    return tuple(contents), np.where(content < 0, -1, content + shift)


def _permanent(table: RequestTable) -> set[str | int]:
    """Names of the texts that recur over most of the recording."""
    first: dict[str | int, int] = {}
    last: dict[str | int, int] = {}
    for arrival_ns, content in zip(table.arrival_ns.tolist(), table.content.tolist(), strict=True):
        for name, _ in table.contents[content] if content >= 0 else ():
            first[name] = min(first.get(name, arrival_ns), arrival_ns)
            last[name] = max(last.get(name, arrival_ns), arrival_ns)
    span_ns = int(table.arrival_ns.max() - table.arrival_ns.min())
    return {name for name in first if last[name] - first[name] > _LASTS * span_ns}


def resampled(table: RequestTable, seed: int) -> RequestTable:
    """A bootstrap of a recording: blocks of consecutive requests, with the gaps between them, drawn with
    repetition. Requests of sessions depend on each other and are left as they are."""
    rows = len(table)
    if rows < 2 or table.session is not None:
        return table
    block = max(round(math.sqrt(rows)), 1)
    starts = stream(seed, "plan", "resample").integers(0, rows - block + 1, math.ceil(rows / block))
    chosen = (starts[:, None] + np.arange(block)).ravel()[:rows]
    gaps_ns = np.diff(table.arrival_ns, prepend=table.arrival_ns[0])
    arrival_ns = int(table.arrival_ns[0]) + np.cumsum(gaps_ns[chosen])
    drawn = table.take(chosen)
    patience_ns = np.where(drawn.deadline_ns < 0, -1, drawn.deadline_ns - drawn.arrival_ns)
    ids = None if table.request_id is None else [f"{name}~{i}" for i, name in enumerate(drawn.ids())]
    return replace(
        drawn, arrival_ns=arrival_ns, deadline_ns=deadlines_ns(arrival_ns, patience_ns), request_id=ids
    )
