"""The event queue: one order for calls and SimPy's own events."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
from simpy import Event

from blis_py.cluster.time.clock import SimClock
from blis_py.cluster.time.events import CHANGES, EXAMINATIONS, ActionCall, EventQueue


def test_a_call_scheduled_again_happens_once_at_its_new_time() -> None:
    events, times = EventQueue(), list[int]()
    call = ActionCall(times.append)
    events.schedule(call, 10)
    events.schedule(call, 30)
    events.run()
    assert times == [30]


def test_a_cancelled_call_does_not_happen_and_is_not_the_next() -> None:
    events, times = EventQueue(), list[int]()
    call = ActionCall(times.append)
    events.schedule(call, 10)
    events.schedule(ActionCall(times.append), 20)
    call.cancel()
    assert events.next_ns() == 20
    events.run()
    assert times == [20]


def test_a_run_stops_before_its_end_and_goes_no_further() -> None:
    events, times = EventQueue(), list[int]()
    for time_ns in (10, 20, 30):
        events.schedule(ActionCall(times.append), time_ns)
    events.run(20)
    assert (times, events.now_ns) == ([10], 20)


def test_a_call_in_the_past_is_refused() -> None:
    events = EventQueue()

    def late(now_ns: int) -> None:
        events.call_at(9, late)

    events.call_at(10, late)
    with pytest.raises(RuntimeError, match="scheduled at 9 ns, and now is 10 ns"):
        events.run()


def test_calls_and_processes_of_one_nanosecond_come_in_the_order_of_the_table() -> None:
    clock, seen = SimClock(), list[str]()

    def process() -> Generator[Event, Any, None]:
        yield clock.timeout(5)
        seen.append("process")

    clock.events.call_at(5, lambda now_ns: seen.append("examination"), EXAMINATIONS)
    clock.process(process())
    clock.events.call_at(5, lambda now_ns: seen.append("call"))
    clock.events.call_at(5, lambda now_ns: seen.append("change"), CHANGES)
    clock.events.run()
    assert seen == ["change", "call", "process", "examination"], "its timeout begins when the process does"
    assert clock.now == 5


def test_the_last_call_comes_behind_all_others_of_its_nanosecond_and_once() -> None:
    events, seen = EventQueue(), list[str]()
    last = ActionCall(lambda now_ns: seen.append(f"last {now_ns}"))
    events.schedule_last(last, 9)
    events.schedule_last(last, 5)
    assert events
    assert events.next_ns() == 5
    events.call_at(5, lambda now_ns: seen.append("other"), EXAMINATIONS)
    events.call_at(7, lambda now_ns: seen.append("later"))
    events.run(6)
    assert (seen, events.now_ns) == (["other", "last 5"], 6)
    events.run(8)
    assert seen == ["other", "last 5", "later"]


def test_a_run_ends_before_a_last_call_that_is_due_at_its_end() -> None:
    events, seen = EventQueue(), list[int]()
    events.schedule_last(ActionCall(seen.append), 6)
    events.run(6)
    assert (seen, events.now_ns) == ([], 6)


def test_what_goes_wrong_in_a_process_ends_the_run() -> None:
    clock = SimClock()

    def process() -> Generator[Event, Any, None]:
        yield clock.timeout(5)
        raise ValueError("wrong")

    clock.process(process())
    with pytest.raises(ValueError, match="wrong"):
        clock.events.run()


def test_a_queue_that_has_run_dry_may_be_filled_once_more() -> None:
    events, times = EventQueue(), list[int]()
    left = [7, 9]

    def refill() -> bool:
        if left:
            events.schedule(ActionCall(times.append), left.pop(0))
            return True
        return False

    events.when_dry = refill
    events.run()
    assert times == [7, 9]
