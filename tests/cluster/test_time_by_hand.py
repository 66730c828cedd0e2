"""How far instances may run ahead, changes of a fleet in time, and counts of rounds of blocks."""

from __future__ import annotations

from typing import Any

import pytest

from blis_py.cluster.time.events import EventQueue
from blis_py.cluster.time.fleet_events import FleetEvents
from blis_py.cluster.time.lookahead import NOT_AT_ALL_NS, Lookahead
from blis_py.core.diffusion_request import DenoiseBatch, DiffusionCounters
from blis_py.core.request import NEVER_NS
from blis_py.errors import InputError


class Part:
    """A part that is quiet until a time, and how often it was read."""

    def __init__(self, quiet_ns: int) -> None:
        self.quiet_ns, self.reads = quiet_ns, 0

    def safe_until_ns(self) -> int:
        self.reads += 1
        return self.quiet_ns


def test_an_instance_may_run_ahead_as_far_as_every_part_is_quiet() -> None:
    found = Lookahead(1000)
    assert (found.until_ns, found.parts_until_ns, found.min_reach) == (1000, 1000, 0)
    one, other = Part(500), Part(700)
    found.over(one, other)
    assert (found.until_ns, found.is_open) == (500, True)
    one.quiet_ns = 900
    assert found.until_ns == 500
    found.look()
    assert found.until_ns == 700
    other.quiet_ns = 5000
    one.quiet_ns = 5000
    found.look()
    assert found.until_ns == 1000  # the run ends there
    found.narrow(300)
    assert (found.until_ns, found.parts_until_ns) == (300, 300)
    found.narrow(3000)
    assert found.until_ns == 1000


def test_a_part_that_is_never_quiet_ends_the_question() -> None:
    never, other = Part(NOT_AT_ALL_NS), Part(700)
    found = Lookahead()
    assert found.end_ns == NEVER_NS
    found.over(never, other)
    assert (found.until_ns, found.is_open, never.reads, other.reads) == (NOT_AT_ALL_NS, False, 1, 0)
    found.dispatches_ahead = True
    assert found.is_open
    found.over()
    assert found.until_ns == NEVER_NS


def test_hand_overs_bound_instances_by_themselves_and_none_runs_ahead_where_that_is_off() -> None:
    found = Lookahead(1000)
    found.hands_over = True
    found.over(Part(400))
    assert (found.until_ns, found.parts_until_ns) == (NOT_AT_ALL_NS, 400)
    off = Lookahead(1000, none_ahead=True)
    off.over(Part(400))
    off.narrow(300)
    assert (off.until_ns, off.parts_until_ns) == (NOT_AT_ALL_NS, NOT_AT_ALL_NS)


def test_a_fleet_changes_only_in_runs_that_begin_with_an_event() -> None:
    events = EventQueue()
    quiet = FleetEvents(events)
    quiet.require_used("Fleet.add")
    quiet.begin()
    for act in (lambda: quiet.require_used("Fleet.add"), lambda: quiet.call_at(5, lambda now_ns: None)):
        with pytest.raises(InputError, match="the run looks ahead"):
            act()
    assert quiet.safe_until_ns() == NOT_AT_ALL_NS
    used = FleetEvents(events)
    seen: list[int] = []
    assert not used.is_used
    used.call_at(0, seen.append)
    assert used.is_used
    used.begin()
    used.call_at(7, seen.append)
    events.run(10)
    assert (seen, used.now_ns) == ([0, 7], 10)
    used.call_at(10, seen.append)
    with pytest.raises(InputError, match="the time is over"):
        used.call_at(9, seen.append)


def test_rounds_of_blocks_have_their_means_and_none_without_any() -> None:
    none, some = DiffusionCounters(), DiffusionCounters()
    some.block_rounds, some.committed_blocks, some.emitted_tokens = 12, 3, 30
    assert (none.steps_per_block, none.committed_tokens_per_step) == (0.0, 0.0)
    assert (some.steps_per_block, some.committed_tokens_per_step) == (4.0, 2.5)
    batch = DenoiseBatch()
    for is_first in (True, False):
        found: Any = batch.round_features(7, 2, is_first)
        assert (found.emitted_rows, found.commit_blocks, found.begins_batch) == (7, 2, int(is_first))
