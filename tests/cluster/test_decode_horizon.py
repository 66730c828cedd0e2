"""No hand-over reaches a decode instance up to the time that its horizon names, and one may right behind."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from blis_py.cluster.instances.decode_horizon import DecodeHorizon
from blis_py.core.request import NEVER_NS

FRONT_END_NS, STEP_ENDS_NS = 30, 700


def horizon(*pairs: Any, now_ns: int = 500, role: str = "prefill") -> DecodeHorizon:
    """Of the pairs' decode instance, 1; 0 prefills."""
    roles = (role, "decode")
    fleet: Any = SimpleNamespace(
        instances=[SimpleNamespace(step_end_ns=STEP_ENDS_NS, bound_by=lambda horizon, index: None)] * 2,
        pool_of=lambda index: SimpleNamespace(role=roles[index]),
        follow=lambda follower: [follower(index, "added") for index in range(2)],
    )
    found = DecodeHorizon(SimpleNamespace(now_ns=now_ns), fleet, FRONT_END_NS)  # type: ignore[arg-type]
    for pair in pairs:
        found.expect(pair)
    return found


def pair(arrived_ns: int, **state: Any) -> Any:
    known = {"is_open": True, "is_lost": False, "started": True, "prefill_end_ns": -1, "begin_ns": -1}
    return SimpleNamespace(arrived_ns=arrived_ns, prefill=0, decode=1, alone_ns=40, **{**known, **state})


@pytest.mark.parametrize(
    ("pairs", "reached_ns"),
    [
        ([], None),
        ([pair(480)], 510),  # it is on its way to the prefill instance: that is the earliest
        ([pair(100)], STEP_ENDS_NS),  # it is computed there, in the present step at best
        ([pair(100, is_lost=True)], 500),
        ([pair(100, started=False)], None),  # in the queue of the decode instance itself
        ([pair(100, prefill_end_ns=300)], None),
        ([pair(100, prefill_end_ns=300, begin_ns=490)], 530),  # its transfer ends then at the earliest
        ([pair(100, prefill_end_ns=300, begin_ns=410)], 500),
        ([pair(100), pair(490)], 520),  # the second comes first
        ([pair(100, is_open=False), pair(485)], 515),
        ([pair(485), pair(600, is_open=False)], 515),
    ],
)
def test_the_first_time_at_which_a_pair_may_reach_it_is_just_behind(
    pairs: list[Any], reached_ns: int | None
) -> None:
    found_ns = horizon(*pairs).safe_until_ns(1)
    assert found_ns >= NEVER_NS - 1 if reached_ns is None else found_ns == reached_ns - 1


def test_an_instance_that_decodes_too_may_hand_over_at_once() -> None:
    assert horizon(pair(100), role="both").safe_until_ns(1) == 499


def test_an_answer_holds_until_an_earlier_pair_is_expected() -> None:
    found = horizon(pair(600), now_ns=500)
    assert found.is_quiet(1, 600 + FRONT_END_NS - 1)
    assert not found.is_quiet(1, 600 + FRONT_END_NS)
    found.expect(pair(550))
    assert not found.is_quiet(1, 550 + FRONT_END_NS)
    assert found.is_quiet(1, 550 + FRONT_END_NS - 1)


def test_once_kv_is_lost_the_instance_that_waits_for_it_may_hand_over_at_once() -> None:
    waiting = pair(100, prefill_end_ns=300)
    found = horizon(waiting, now_ns=500)
    assert found.is_quiet(1, 10_000), "in its own queue: nothing comes from elsewhere"
    waiting.is_lost = True
    found.forget(1)
    assert not found.is_quiet(1, 10_000)
