"""Tokens as clients see them: when, and how many before a client timed out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from blis_py.cluster.recording.visit_columns import VisitColumns, unset
from blis_py.metrics.emission import EmittedTokens
from blis_py.metrics.record import InstanceRecord
from blis_py.metrics.visits import by_instance
from blis_py.requests.table import Ints


def forget_unseen_tokens(columns: VisitColumns, instances: Sequence[InstanceRecord]) -> None:
    """Remove the tokens emitted after the client had timed out."""
    visits = columns.of_timed_out()
    if not len(visits):
        return
    gone = np.zeros(columns.num_visits, dtype=np.bool_)
    gone[visits] = True
    before = {(visit, after): before for visit, before, after in columns.breaks if gone[visit]}
    several = {(visit, step): tokens for visit, step, tokens in columns.others if gone[visit]}
    for visit in visits.tolist():
        emitted, last = int(columns.emitted_tokens[visit]), int(columns.last_step[visit])
        if not emitted:
            continue
        ends, finish_ns = instances[columns.instance[visit]].step_ends, columns.timed_out_ns(visit)
        late_ns, earlier = columns.late_by(visit), columns.earlier_tokens(visit)
        while emitted and ends.one(last) + columns.frontend.token_ns(earlier + emitted) + late_ns > finish_ns:
            emitted -= 1
            left = several.pop((visit, last), 1) - 1
            if left:
                several[visit, last] = left
            else:
                last = before.pop((visit, last), last - 1)
        columns.emitted_tokens[visit] = emitted
        columns.last_step[visit] = last if emitted else -1
        if not emitted:
            columns.first_step[visit] = -1
    columns.breaks = [
        (visit, start, end)
        for visit, start, end in columns.breaks
        if not gone[visit] or (visit, end) in before
    ]
    columns.others = [row for row in columns.others if not gone[row[0]]]
    columns.others += [(visit, step, tokens) for (visit, step), tokens in several.items() if tokens > 1]


def token_times(
    columns: VisitColumns, instances: Sequence[InstanceRecord], emission: EmittedTokens
) -> tuple[Ints, Ints]:
    """First and last token of each visit as the client sees them, computed from the steps that
    emitted.

    A block is seen once the front end has processed all of its tokens.
    """
    count, per_token_ns = columns.num_visits, columns.frontend.per_token_ns
    first_token_ns, last_token_ns = unset(count), unset(count)
    visits = np.flatnonzero(columns.emitted_tokens[:count] > 0)
    at_once = emission.first_tokens()[visits] if emission.as_blocks else 1
    earlier = columns.tokens_before[visits] if len(columns.tokens_before) else 0
    first, last = np.empty(len(visits), np.int64), np.empty(len(visits), np.int64)
    for index, places in by_instance(columns.instance[visits]):
        own, step_ends = visits[places], instances[index].step_ends
        ends_ns = step_ends.at(np.concatenate((columns.first_step[own], columns.last_step[own])))
        first[places], last[places] = ends_ns[: len(own)], ends_ns[len(own) :]
    first_token_ns[visits] = first + columns.frontend.behind_ns + (earlier + at_once) * per_token_ns
    tokens_ns = (earlier + columns.emitted_tokens[visits]) * per_token_ns
    last_token_ns[visits] = last + (tokens_ns + columns.frontend.behind_ns)
    if columns.frontend.vary:
        first_token_ns[visits] += columns.late_ns[visits]
        last_token_ns[visits] += columns.late_ns[visits]
    if len(columns.delivered_late_ns):
        first_token_ns[visits] += columns.delivered_late_ns[visits]
        last_token_ns[visits] += columns.delivered_late_ns[visits]
    return first_token_ns, last_token_ns
