"""Columns of visits by hand: what opens and ends them, when clients see tokens, and what they see no more."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blis_py.cluster.recording.client_times import forget_unseen_tokens, token_times
from blis_py.cluster.recording.visit_columns import VisitColumns
from blis_py.core.request import NEVER_NS, Request
from blis_py.latency.base import FrontendDelays
from blis_py.metrics.emission import EmittedTokens
from blis_py.metrics.invariants import InternalError
from blis_py.metrics.record import Outcome
from blis_py.metrics.step_ends import StepEnds
from blis_py.metrics.visits import Onward
from blis_py.requests.table import RequestTable

ENDS_NS = [100, 200, 300, 400, 500]


class Instance:
    step_ends = StepEnds.of(np.array(ENDS_NS))


INSTANCES: Any = [Instance()]


def columns(rows: int = 2, **delays: int) -> VisitColumns:
    table = RequestTable.build(np.zeros(rows, int), np.ones(rows, int), np.full(rows, 5))
    found = VisitColumns(table, FrontendDelays(**delays))
    found.instance[:] = 0
    return found


def emitted(found: VisitColumns, visit: int, first: int, last: int, tokens: int) -> None:
    found.first_step[visit], found.last_step[visit], found.emitted_tokens[visit] = first, last, tokens


def moved(found: VisitColumns, row: int = 0, ready_ns: int = NEVER_NS) -> Request:
    request = Request("r", 0, 1, row=row)
    found.revisit(request, ready_ns)
    return request


def test_a_visit_follows_one_that_went_on() -> None:
    found = columns(behind_seq_ns=5)
    emitted(found, 0, 0, 2, 3)
    found.outcome[0], found.late_ns[0] = Onward.HANDED_OVER, 7
    assert not found.has_moved(0)
    request = moved(found, 0, 250)
    assert (request.visit, found.num_visits) == (2, 3)
    assert (found.has_moved(0), found.has_moved(1)) == (True, False)
    assert (found.request[2], found.ready_ns[2], found.instance[2]) == (0, 250, -1)
    assert (found.earlier_tokens(2), found.earlier_tokens(0), found.earlier_tokens(1)) == (3, 0, 0)
    assert (found.late_by(2), found.late_by(1)) == (7, 0)
    assert (found.outcome[2], found.emitted_tokens[2], found.first_step[2]) == (Outcome.QUEUED, 0, -1)
    with pytest.raises(InternalError, match="begins a visit while another lasts"):
        moved(found, 0)
    found.outcome[2] = Onward.HANDED_OVER
    emitted(found, 2, 3, 3, 1)
    assert found.earlier_tokens(moved(found, 0).visit) == 4
    with pytest.raises(InternalError, match="begins a visit while another lasts"):
        moved(found, 1)


def test_there_is_room_for_many_visits() -> None:
    found = columns(1)
    for number in range(1, 200):
        found.outcome[number - 1] = Onward.HANDED_OVER
        assert moved(found).visit == number
    assert found.num_visits == 200
    assert set(found.request[:200].tolist()) == {0}
    assert found.ready_ns[199] == NEVER_NS
    assert len(found.late_ns) == 0


def test_a_token_that_never_arrived_was_not_emitted() -> None:
    found = columns()
    emitted(found, 0, 0, 0, 1)
    request = Request("r", 0, 1, row=0)
    request.visit = 0
    found.deliver_late(request, 9)
    assert found.late_by(0) == 9
    found.undelivered(request)
    assert (found.emitted_tokens[0], found.first_step[0], found.last_step[0]) == (0, -1, -1)


def seen(found: VisitColumns) -> list[list[int]]:
    count = found.num_visits
    emission = EmittedTokens(
        found.first_step[:count],
        found.last_step[:count],
        np.zeros((0, 3), np.int64),
        np.zeros((0, 3), np.int64),
    )
    first, last = token_times(found, INSTANCES, emission)
    return [first.tolist(), last.tolist()]


def test_tokens_are_seen_behind_the_front_end_one_after_the_other() -> None:
    plain = columns(3)
    emitted(plain, 0, 0, 2, 3)
    emitted(plain, 2, 1, 1, 1)
    assert seen(plain) == [[100, -1, 200], [300, -1, 200]]
    slow = columns(1, per_token_ns=2, behind_ns=30)
    emitted(slow, 0, 0, 2, 3)
    assert seen(slow) == [[132], [336]]
    slow.outcome[0] = Onward.HANDED_OVER
    moved(slow)
    slow.instance[1] = 0
    emitted(slow, 1, 3, 4, 2)
    assert seen(slow) == [[132, 438], [336, 540]]
    late = columns(1, behind_seq_ns=1)
    emitted(late, 0, 0, 1, 2)
    late.late_ns[0] = 5
    late.delivered_late_ns = np.array([10])
    assert seen(late) == [[115], [215]]
    late.emitted_tokens[0] = 0
    assert seen(late) == [[-1], [-1]]


@pytest.mark.parametrize(
    ("finish_ns", "kept"),
    [
        (99, (0, -1, -1)),
        (100, (1, 0, 0)),
        (199, (1, 0, 0)),
        (200, (2, 0, 1)),
        (450, (4, 0, 3)),
        (600, (5, 0, 4)),
    ],
)
def test_tokens_behind_the_end_of_a_clients_patience_are_forgotten(
    finish_ns: int, kept: tuple[int, int, int]
) -> None:
    found = columns()
    for visit in range(2):
        emitted(found, visit, 0, 4, 5)
    found.outcome[0], found.finish_ns[0] = Outcome.TIMED_OUT, finish_ns
    forget_unseen_tokens(found, INSTANCES)
    assert (found.emitted_tokens[0], found.first_step[0], found.last_step[0]) == kept
    assert (found.emitted_tokens[1], found.last_step[1]) == (5, 4)


def test_steps_without_a_token_and_with_several_are_forgotten_with_theirs() -> None:
    """Tokens in steps 0, 2 and 4, of which the second has three: up to 250 ns one is seen."""
    found = columns()
    for visit in range(2):
        emitted(found, visit, 0, 4, 5)
        found.breaks += [(visit, 0, 2), (visit, 2, 4)]
        found.others.append((visit, 2, 3))
    found.outcome[0], found.finish_ns[0] = Outcome.TIMED_OUT, 250
    forget_unseen_tokens(found, INSTANCES)
    assert (found.emitted_tokens[0], found.last_step[0]) == (1, 0)
    assert found.breaks == [(1, 0, 2), (1, 2, 4)]
    assert found.others == [(1, 2, 3)]
    part = columns(1, per_token_ns=10)
    emitted(part, 0, 0, 4, 5)
    part.breaks, part.others = [(0, 0, 2), (0, 2, 4)], [(0, 2, 3)]
    part.outcome[0], part.finish_ns[0] = Outcome.TIMED_OUT, 330  # the third comes at 330 ns
    forget_unseen_tokens(part, INSTANCES)
    assert (part.emitted_tokens[0], part.last_step[0]) == (3, 2)
    assert (part.breaks, part.others) == ([(0, 0, 2)], [(0, 2, 2)])


def test_all_visits_of_a_request_whose_client_gave_up_are_looked_at() -> None:
    found = columns()
    assert found.of_timed_out().tolist() == []
    found.outcome[0] = Onward.HANDED_OVER
    emitted(found, 0, 0, 0, 1)
    moved(found)
    found.instance[2] = 0
    emitted(found, 2, 1, 3, 3)
    assert found.of_timed_out().tolist() == []
    found.outcome[2], found.finish_ns[2] = Outcome.TIMED_OUT, 200
    assert found.of_timed_out().tolist() == [0, 2]
    assert (found.timed_out_ns(0), found.timed_out_ns(2)) == (200, 200)
    forget_unseen_tokens(found, INSTANCES)
    assert found.emitted_tokens[[0, 2]].tolist() == [1, 1]


def test_late_deliveries_are_kept_while_the_columns_grow() -> None:
    found = columns(1)
    request = Request("r", 0, 1, row=0)
    found.outcome[0] = Onward.HANDED_OVER
    assert found.late_by(0) == 0
    found.deliver_late(request, 7)
    moved(found)
    assert (found.late_by(0), found.late_by(1)) == (7, 0)
    assert len(found.delivered_late_ns) == len(found.outcome) > 1
