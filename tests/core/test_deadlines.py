"""The earliest deadline among requests that have not ended, in any order of arrivals, ends and cancels."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blis_py.core.config import SchedulerConfig
from blis_py.core.deadlines import Deadlines
from blis_py.core.request import NEVER_NS, Request
from blis_py.core.scheduler import Scheduler

ACTIONS = st.lists(
    st.tuples(st.sampled_from(("add", "add", "remove", "cancel")), st.integers(0, 30), st.integers(0, 9)),
    max_size=40,
)


def _request(deadline_ns: int) -> Request:
    return Request(id="r", arrival_ns=0, prompt_tokens=1, max_tokens=1, deadline_ns=deadline_ns)


@given(ACTIONS)
def test_first_is_the_minimum_over_live_requests(actions: list[tuple[str, int, int]]) -> None:
    deadlines = Deadlines()
    live: dict[Request, int] = {}
    for action, time_ns, place in actions:
        if action == "add":
            request = _request(time_ns)
            live[request] = time_ns
            deadlines.add(request)
        elif live and action == "remove":
            request = list(live)[place % len(live)]
            del live[request]
            deadlines.remove(request)
        elif live:
            request = list(live)[place % len(live)]
            request.deadline_ns = time_ns
            live[request] = min(live[request], time_ns)
            deadlines.add(request)
        assert deadlines.first_ns == min(live.values(), default=NEVER_NS)
        if live:
            assert live[deadlines.first()] == deadlines.first_ns


def test_request_from_another_instance_gets_a_number_of_its_own() -> None:
    here, there = Deadlines(), Deadlines()
    moved, other = _request(5), _request(3)
    there.add(moved)
    there.remove(moved)
    here.add(other)
    here.add(moved)
    assert here.first() is other
    here.remove(other)
    assert here.first() is moved


@pytest.mark.parametrize(("changed_ns", "first_ns"), [(500, 500), (50, 50), (-1, NEVER_NS)])
def test_a_changed_deadline_takes_the_place_of_the_old_one(changed_ns: int, first_ns: int) -> None:
    scheduler = Scheduler(SchedulerConfig(num_kv_blocks=10, max_model_len=100))
    request = _request(100)
    scheduler.add(request)
    scheduler.set_deadline(request, changed_ns)
    assert scheduler.first_deadline_ns == first_ns
    assert scheduler.expire(first_ns - 1) == []
    assert scheduler.expire(500) == ([] if changed_ns < 0 else [request])
