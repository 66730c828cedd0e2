"""Lookahead of decode instances: the time up to which no hand-over reaches one of them.

A decode instance with neither queued requests nor KV on its way acts on itself alone. What reaches it next is
the end of a prefill whose KV it is to get, or of a transfer to it. Neither comes before the prefill instance
has the request, before the step that it computes now has ended, or before the bytes have crossed idle links.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from blis_py.cluster.instances.instance import Horizon
from blis_py.core.request import NEVER_NS

if TYPE_CHECKING:
    from blis_py.cluster.instances.fleet import Fleet, MemberState
    from blis_py.cluster.instances.pairs import Pair
    from blis_py.cluster.time.events import EventQueue


class DecodeHorizon(Horizon):
    """The pairs in transit to each decode instance, present and future.

    Args:
        front_end_ns: time from a dispatch to the queue of an instance.
    """

    def __init__(self, events: EventQueue, fleet: Fleet, front_end_ns: int) -> None:
        self._events, self._fleet, self._instances = events, fleet, fleet.instances
        self._only_prefill: list[bool] = []
        """Whether no arrival cuts the work in progress of each instance short."""
        self._front_end_ns = front_end_ns
        self._towards: list[deque[Pair]] = []
        """By decode instance, in the order of dispatch; some have arrived."""
        self._known_ns: list[int] = []
        """The latest answer for each decode instance: it holds until another pair is expected."""
        fleet.follow(self._change)

    def _change(self, index: int, state: MemberState) -> None:
        """Bound an instance that is added."""
        if state != "added":
            return
        role = self._fleet.pool_of(index).role
        self._only_prefill.append(role == "prefill")
        self._towards.append(deque())
        self._known_ns.append(-1)
        if role == "decode":
            self._instances[index].bound_by(self, index)

    def expect(self, pair: Pair) -> None:
        """Add a pair whose decode instance is chosen."""
        decode = pair.decode
        self._towards[decode].append(pair)
        before_ns = pair.arrived_ns + self._front_end_ns - 1
        if before_ns < self._known_ns[decode]:
            self._known_ns[decode] = before_ns

    def forget(self, decode: int) -> None:
        """Handle that a decode instance may get less KV than expected: its own steps matter to others."""
        self._known_ns[decode] = -1

    def is_quiet(self, index: int, time_ns: int) -> bool:
        """Whether no hand-over reaches a decode instance before or at a time."""
        known_ns = self._known_ns
        if time_ns > known_ns[index]:
            known_ns[index] = self.safe_until_ns(index)
        return time_ns <= known_ns[index]

    def safe_until_ns(self, decode: int) -> int:
        """No hand-over reaches a decode instance before or at this time."""
        towards = self._towards[decode]
        while towards and not towards[0].is_open:
            towards.popleft()
        now_ns, until_ns = self._events.now_ns, NEVER_NS
        for pair in towards:
            begins_ns = pair.arrived_ns + self._front_end_ns
            if begins_ns > until_ns:
                break
            if pair.is_open:
                reaches_ns = begins_ns if begins_ns > now_ns else self._reaches_ns(pair, now_ns)
                if reaches_ns <= until_ns:
                    until_ns = reaches_ns - 1
        return until_ns

    def _reaches_ns(self, pair: Pair, now_ns: int) -> int:
        """The earliest time at which a pair whose instances may have begun reaches the decode instance."""
        if pair.is_lost:
            return now_ns  # it is computed there, and ends as a hand-over
        if pair.prefill_end_ns < 0:
            if not pair.started:
                return NEVER_NS  # it is in the queue of the decode instance
            at = pair.prefill
            return max(now_ns, self._instances[at].step_end_ns) if self._only_prefill[at] else now_ns
        if pair.begin_ns < 0:
            return NEVER_NS  # in that queue
        return max(now_ns, pair.begin_ns + pair.alone_ns)
