"""Tournament trees of wake-up times and loads, against a scan of all."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blis_py.cluster.instances.fleet import MemberState
from blis_py.cluster.routing.least_load import LeastLoad
from blis_py.cluster.time.events import EventQueue
from blis_py.cluster.time.lookahead import Lookahead
from blis_py.cluster.time.wakeups import Wakeable, WakeupQueue
from blis_py.core.request import NEVER_NS


class Napper(Wakeable):
    """Sleeps again a given number of times, and wakes others."""

    def __init__(self, wakeups: WakeupQueue, woken: list[tuple[int, int]]) -> None:
        super().__init__(wakeups)
        self.wakeups, self.woken = wakeups, woken
        self.naps: list[tuple[Napper, int]] = []
        """Whom it has wait, and how long, at each waking; itself, maybe."""

    def wake(self, time_ns: int) -> None:
        self.woken.append((time_ns, self.turn.place))
        if self.naps:
            who, nap_ns = self.naps.pop(0)
            self.wakeups.set(who, time_ns + nap_ns)


def walked(count: int, first: list[int], naps: list[list[tuple[int, int]]]) -> list[tuple[int, int]]:
    """The same by a scan of all each time."""
    wakes, woken = list(first), []
    naps = [list(each) for each in naps]
    while min(wakes) != NEVER_NS:
        place = min(range(count), key=lambda one: (wakes[one], one))
        now_ns, wakes[place] = wakes[place], NEVER_NS
        woken.append((now_ns, place))
        if naps[place]:
            who, nap_ns = naps[place].pop(0)
            wakes[who] = now_ns + nap_ns
    return woken


@pytest.mark.slow
@given(data=st.data(), count=st.integers(1, 9))
def test_objects_wake_in_the_order_of_times_and_of_places(data: Any, count: int) -> None:
    times = st.integers(0, 20)
    first = data.draw(st.lists(times, min_size=count, max_size=count))
    nap = st.tuples(st.integers(0, count - 1), times)
    naps = data.draw(st.lists(st.lists(nap, max_size=5), min_size=count, max_size=count))
    wakeups, woken = WakeupQueue(EventQueue(), Lookahead()), []
    nappers = [Napper(wakeups, woken) for _ in range(count)]
    for napper, own in zip(nappers, naps, strict=True):
        napper.naps = [(nappers[who], nap_ns) for who, nap_ns in own]
    for napper, time_ns in zip(nappers, first, strict=True):
        wakeups.set(napper, time_ns)
    wakeups.pass_until(NEVER_NS)
    assert woken == walked(count, first, naps)


@pytest.mark.slow
@given(data=st.data(), count=st.integers(1, 9))
def test_the_least_loaded_are_those_with_the_smallest_load_by_index(data: Any, count: int) -> None:
    """The ready ones among them, while instances come and go."""
    followers: list[Any] = []
    signals: Any = SimpleNamespace(load=[0] * count, moved=[], weights=None, follow=followers.append)
    signals.track_moves = lambda: None
    least, ready = LeastLoad(signals), set(range(count))
    for index in range(count):
        followers[0](index, MemberState.ADDED)
        followers[0](index, MemberState.READY)
    for _ in range(data.draw(st.integers(1, 20))):
        fewest = min(signals.load[index] for index in ready)
        assert [least.tied(n) for n in range(least.ties())] == [
            index for index in sorted(ready) if signals.load[index] == fewest
        ]
        index = data.draw(st.integers(0, len(signals.load) - 1))
        signals.load[index] = data.draw(st.integers(0, 3))
        signals.moved.append(index)
        if data.draw(st.booleans()):
            ready.add(len(signals.load))
            followers[0](len(signals.load), MemberState.ADDED)
            signals.load.append(0)
            followers[0](len(signals.load) - 1, MemberState.READY)
        if len(ready) > 1 and data.draw(st.booleans()):
            gone = data.draw(st.sampled_from(sorted(ready)))
            ready.remove(gone)
            followers[0](gone, MemberState.DRAINING)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
def test_nothing_precedes_a_turn_if_no_other_is_earlier_or_as_early_and_in_front(count: int) -> None:
    rng = Random(count)
    wakeups = WakeupQueue(EventQueue(), Lookahead())
    nappers = [Napper(wakeups, []) for _ in range(count)]
    wakeups._passing = True  # as while one of them is awake: none of the times is an event of its own
    for napper in nappers:
        wakeups.set(napper, rng.randrange(9))
    for _ in range(30):
        wakeups.set(rng.choice(nappers), rng.randrange(9))
        awake, time_ns = rng.choice(nappers), rng.randrange(9)
        others = [(one.wakes_ns, one.turn.place) for one in nappers if one is not awake]
        assert wakeups.precedes(awake, time_ns) == all(
            other > (time_ns, awake.turn.place) for other in others
        )
