"""Requests with several visits, as the recorder writes them down."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from two_visits import US, Pair, handed_over, table

from blis_py.cluster.recording.trace_observer import Traced
from blis_py.cluster.recording.visit_columns import VisitColumns
from blis_py.core.request import Request
from blis_py.latency.base import FrontendDelays
from blis_py.metrics import visits_frame, write_visits_csv
from blis_py.metrics.groups import rows_by_instance
from blis_py.metrics.invariants import InternalError, _check_tokens, check
from blis_py.metrics.itl import TokenGaps
from blis_py.metrics.latencies import latencies
from blis_py.metrics.record import Outcome
from blis_py.metrics.summary import summarise
from blis_py.metrics.visits import Onward, Role
from blis_py.report.blis_text import blis_blocks

DELAYS = FrontendDelays(per_token_ns=100, at_end_ns=7, behind_ns=1000)


def test_a_hand_over_shows_in_two_visits_and_one_request() -> None:
    record = handed_over()
    check(record)
    visits = record.visits
    assert visits.request.tolist() == [0, 0]
    assert visits.instance.tolist() == [0, 1]
    assert visits.role.tolist() == [Role.PREFILL, Role.DECODE]
    assert visits.outcome.tolist() == [Onward.HANDED_OVER, Outcome.COMPLETED]
    assert visits.enqueue_ns.tolist() == [5 * US, 22 * US]
    assert visits.scheduled_ns.tolist() == [5 * US, 22 * US]
    assert visits.finish_ns.tolist() == [17 * US, 42 * US]
    assert visits.emitted_tokens.tolist() == [1, 2]
    assert record.outcome.tolist() == [Outcome.COMPLETED]
    assert record.instance.tolist() == [1]
    assert record.enqueue_ns.tolist() == record.scheduled_ns.tolist() == [5 * US]
    assert record.emitted_tokens.tolist() == [3]


def test_a_hand_over_is_one_gap_between_tokens_and_resets_no_ttft() -> None:
    record = handed_over()
    columns, gaps, rows = latencies(record), TokenGaps(record), np.array([0])
    assert (columns.ttft_ns[0], columns.e2e_ns[0]) == (10 * US, 37 * US)
    assert gaps.of_each(rows)[0].tolist() == [15 * US, 12 * US]
    assert gaps.times(rows)[0].tolist() == [15 * US, 30 * US, 42 * US]
    assert gaps.distribution(rows).mean() == columns.itl_mean_ns[0] == 13.5 * US


def test_the_front_end_delays_tokens_of_the_second_visit_by_all_before_them() -> None:
    record = handed_over(DELAYS)
    check(record)
    assert TokenGaps(record).times(np.array([0]))[0].tolist() == [16_100, 31_200, 43_300]
    assert record.finish_ns.tolist() == [43_307]


def test_reports_of_a_hand_over_agree_with_each_other() -> None:
    record = handed_over()
    summary = summarise(record)
    assert summary["cluster"]["output_tokens"] == 3
    assert [len(rows) for rows in rows_by_instance(record)] == [0, 1]
    prefill, decode, cluster = blis_blocks(record)
    assert (prefill["total_output_tokens"], decode["total_output_tokens"]) == (1, 2)
    assert cluster["total_output_tokens"] == 3


def test_a_request_between_two_instances_when_the_run_ends_is_queued() -> None:
    pair = Pair(table([0], [3]))
    request = Request("request_0", 0, 16, 1, row=0)
    pair.recorder.dispatched(request, 0)
    pair.come(0, request, 0)
    pair.step(0, 10)
    pair.hand_over(request, 10, 50, output=3)
    record = pair.record(20)
    check(record)
    assert record.outcome.tolist() == [Outcome.QUEUED]
    assert record.visits.enqueue_ns.tolist() == [0, -1]
    assert record.first_token_ns.tolist() == [10 * US]


def test_a_client_that_gives_up_takes_tokens_from_both_visits() -> None:
    """Its tokens take 9 us through the front end: at 24 us none of the second visit's has reached it."""
    pair = Pair(table([0], [3]), FrontendDelays(behind_ns=9 * US))
    request = Request("request_0", 0, 16, 1, row=0)
    pair.recorder.dispatched(request, 0)
    pair.come(0, request, 0)
    pair.step(0, 10)
    after = pair.hand_over(request, 10, 10, output=5)
    after.deadline_ns = 24 * US
    pair.come(1, after, 10)
    pair.step(1, 20)
    pair.schedulers[1].settle(after)
    pair.events[1].timed_out([after])
    record = pair.record(30)
    check(record)
    assert record.visits.emitted_tokens.tolist() == [1, 0]
    assert (record.outcome.tolist(), record.finish_ns.tolist()) == ([Outcome.TIMED_OUT], [24 * US])
    assert record.last_token_ns.tolist() == [19 * US]


def test_columns_grow_with_the_visits() -> None:
    count = 200
    pair = Pair(table([0] * count, [2] * count))
    for row in range(count):
        request = Request(f"request_{row}", 0, 16, 1, row=row)
        pair.recorder.dispatched(request, 0)
        pair.hand_over(request, 1, 2, output=1)
    record = pair.record(3)
    check(record)
    assert record.visits.request.tolist() == [*range(count)] * 2
    assert record.visits.instance.tolist() == [0] * count + [1] * count
    assert record.take(np.array([7, 3])).visits.request.tolist() == [0, 1, 1, 0]


def test_a_visit_begins_only_when_the_one_before_has_ended() -> None:
    pair = Pair(table([0], [2]))
    request = Request("request_0", 0, 16, 1, row=0)
    pair.recorder.dispatched(request, 0)
    with pytest.raises(InternalError, match="begins a visit while another lasts"):
        pair.recorder.revisit(request)


@pytest.mark.parametrize(
    ("column", "visit", "value", "message"),
    [
        ("outcome", 1, Onward.HANDED_OVER, "went on elsewhere and began no visit"),
        ("outcome", 0, Outcome.RUNNING, "began a visit while another lasted"),
        ("enqueue_ns", 1, 16 * US, "enqueued before the one before it ended"),
        ("scheduled_ns", 0, 18 * US, "scheduled after its end"),
        ("emitted_tokens", 0, 2, "tokens emitted and steps taken disagree"),
    ],
)
def test_visits_that_contradict_each_other_are_an_internal_error(
    column: str, visit: int, value: int, message: str
) -> None:
    record = handed_over()
    getattr(record.visits, column)[visit] = value
    with pytest.raises(InternalError, match=message):
        check(record)


@pytest.mark.parametrize(
    ("outcome", "agrees"),
    [(Outcome.COMPLETED, False), (Outcome.LENGTH_CAPPED, False), (Outcome.TIMED_OUT, True)],
)
def test_answers_however_they_ended_have_the_tokens_of_their_steps(outcome: Outcome, agrees: bool) -> None:
    """A client that gives up may not have received all of them."""
    record = handed_over()
    record.visits.outcome[1] = outcome
    record.visits.emitted_tokens[1] = 1
    if agrees:
        _check_tokens(record)
        return
    with pytest.raises(InternalError, match="tokens emitted and steps taken disagree"):
        _check_tokens(record)


@pytest.mark.parametrize("rows", [1, 3])
def test_tokens_of_earlier_visits_are_those_of_the_request_and_none_before_the_first(rows: int) -> None:
    columns = VisitColumns(table([0] * rows, [5] * rows), DELAYS)
    request = Request("request_0", 0, 16, 5, row=0)
    columns.outcome[0], columns.emitted_tokens[0] = Onward.HANDED_OVER, 2
    columns._grow()
    columns.revisit(request)
    columns.outcome[request.visit], columns.emitted_tokens[request.visit] = Onward.HANDED_OVER, 1
    columns.revisit(request)
    visits = [*range(rows), rows, rows + 1]
    assert [columns.earlier_tokens(visit) for visit in visits] == [0] * rows + [2, 3]


def test_the_visits_table_has_a_row_for_each_visit() -> None:
    frame = visits_frame(handed_over())
    assert frame["request_id"].tolist() == ["request_0"] * 2
    assert frame["role"].tolist() == ["prefill", "decode"]
    assert frame["outcome"].tolist() == ["handed_over", "completed"]
    assert frame["enqueue_s"].tolist() == [5e-6, 22e-6]
    assert frame["output_tokens"].tolist() == [1, 2]


def test_each_instance_is_summarised_by_the_visits_to_it() -> None:
    """One token came from the first instance and two from the second; both have served the request."""
    record = handed_over()
    summary = summarise(record)
    assert [one["requests"]["completed"] for one in summary["instances"]] == [1, 1]
    assert [one["output_tokens"] for one in summary["instances"]] == [1, 2]
    assert sum(one["output_tokens"] for one in summary["instances"]) == summary["cluster"]["output_tokens"]


def test_the_visits_table_is_written_as_it_is_shown(tmp_path: Path) -> None:
    record = handed_over()
    write_visits_csv(record, tmp_path / "visits.csv")
    read = pd.read_csv(tmp_path / "visits.csv")
    shown = visits_frame(record)
    assert list(read.columns) == list(shown.columns)
    assert read.astype(str).values.tolist() == shown.astype(str).values.tolist()


class TwoAtATime:
    """Every decode step emits two tokens."""

    def is_irregular(self, request: Request) -> bool:
        return True

    def rows(self, request: Request) -> int:
        return 2

    def tokens(self, request: Request, step: int, rows: int) -> int:
        return 2


def test_bursts_are_written_down_with_the_step_that_brought_them() -> None:
    """Steps of 10 us bring 1, 2, 2 and, as 6 are wanted, 1 token; the client gives up after the second."""
    for deadline_us, tokens in ((-1, [1, 2, 2, 1]), (25, [1, 2])):
        pair = Pair(table([0], [6]), emission=TwoAtATime())
        request = Request("request_0", 0, 16, 6, row=0)
        pair.recorder.dispatched(request, 0)
        pair.come(0, request, 0)
        ended = [pair.step(0, until_us) for until_us in (10, 20, 30, 40)]
        if deadline_us < 0:
            pair.events[0].finished(ended[-1], 40 * US)
        else:
            request.deadline_ns = deadline_us * US
            pair.events[0].timed_out([request])
        record = pair.record(40)
        check(record)
        assert record.visits.emission.sizes(np.array([0])).tolist() == tokens
        assert record.emitted_tokens.tolist() == [sum(tokens)]
        ends = np.repeat([10, 20, 30, 40][: len(tokens)], tokens) * US
        assert TokenGaps(record).times(np.array([0]))[0].tolist() == ends.tolist()


@pytest.mark.parametrize(("visit", "earlier"), [(0, 0), (2, 0), (3, 40), (4, 50)])
def test_only_visits_behind_the_first_of_each_request_have_earlier_tokens(visit: int, earlier: int) -> None:
    columns: Any = SimpleNamespace(table=range(3), tokens_before=[10, 20, 30, 40, 50])
    assert VisitColumns.earlier_tokens(columns, visit) == earlier


@pytest.mark.parametrize(
    ("behind_seq_ns", "visit", "late_ns"), [(0, 0, 0), (0, 1, 7), (5, 0, 100), (5, 1, 207)]
)
def test_tokens_are_late_by_those_of_others_and_by_their_delivery(
    behind_seq_ns: int, visit: int, late_ns: int
) -> None:
    columns: Any = SimpleNamespace(frontend=FrontendDelays(behind_seq_ns=behind_seq_ns))
    columns.late_ns, columns.delivered_late_ns = np.array([100, 200]), np.array([0, 7])
    assert VisitColumns.late_by(columns, visit) == late_ns


@pytest.mark.parametrize("how", ["timed_out", "ended"])
@pytest.mark.parametrize("arrival_ns", [0, 7])
def test_a_request_that_leaves_before_any_step_is_shown_at_its_arrival(how: str, arrival_ns: int) -> None:
    shown: list[tuple[str, int, int]] = []
    observer: Any = SimpleNamespace(sent_ns=lambda one: one.arrival_ns, handed_over=lambda one: None)
    track: Any = SimpleNamespace(request=lambda phases, *_: shown.extend(phases))
    events = SimpleNamespace(timed_out=lambda requests: None, ended=lambda requests, outcome: None)
    traced = Traced(observer, track, None, events, 1)
    request = Request("request_0", arrival_ns, 16, 5, row=0)
    if how == "ended":
        traced.ended([request], Outcome.QUEUED)
    else:
        traced.timed_out([request])
    assert [(start, end) for _, start, end in shown] == [(arrival_ns, arrival_ns)]
