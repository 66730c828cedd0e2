"""Closed loops: clients who wait for an answer before sending the next request, beside others who do not."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
from simpy import Container, Environment, Event

from blis_py.cluster.source import CHUNK, Maker, Send
from blis_py.core.request import FinishReason, Request
from blis_py.requests.loops import Loop, Loops
from blis_py.requests.sessions import next_turns
from blis_py.requests.table import RequestTable

_ANSWERED = (FinishReason.STOP, FinishReason.LENGTH)


class ClosedLoops:
    """Requests that need a permit of their loop to be sent, of which there are few.

    A request of a paced loop is due at its arrival in the table, and is sent then, or when a permit is free;
    whoever was due first comes first. Of other loops the next one is due whenever a permit is. The end of a
    request, as its client sees it, and a pause after it free the permit. What a request's patience and its
    latencies count from is its sending. Requests of open loops (without permits) are sent when due.

    The later turns of sessions are sent when their client has seen the answer before and thought. A turn
    without an answer, for whatever reason, is the last of its session.

    Args:
        table: the requests that may be sent; those of a loop in order of arrival.
    """

    listens = True

    def __init__(self, table: RequestTable, loops: Loops) -> None:
        self._due_ns, self._deadline_ns = table.arrival_ns, table.deadline_ns
        self._loops, self._loop_of = loops.parts, loops.of_rows(table)
        limited = [loop for loop in loops.parts if loop.permits is not None]
        due_ns = np.full(len(table), -1, dtype=np.int64)
        for loop in limited:
            due_ns[loop.rows] = self._due_ns[loop.rows]
        self.table = replace(
            table,
            arrival_ns=table.arrival_ns.copy(),
            deadline_ns=table.deadline_ns.copy(),
            due_ns=due_ns if limited else None,
        )
        self._next = next_turns(table) if loops.later_turns else {}
        self._as_blis = loops.as_blis
        self._at_most = len(table) if loops.at_most is None else loops.at_most

    def start(self, env: Environment, make: Maker, send: Send, ahead: bool) -> None:
        self._env, self._make, self._send, self._left = env, make, send, self._at_most
        self._permits = [None if loop.permits is None else self._first_permits(loop) for loop in self._loops]
        for loop, permits in zip(self._loops, self._permits, strict=True):
            env.process(self._run(loop, permits))

    def _first_permits(self, loop: Loop) -> Container:
        """Those of a loop: all at the beginning, or spread over the first pause."""
        assert loop.permits is not None
        if not self._as_blis or loop.paced or not loop.think_ns:
            return Container(self._env, init=loop.permits)
        permits, pause_us = Container(self._env, init=1), loop.think_ns // 1000
        for user in range(1, loop.permits):
            self._after(user * pause_us // loop.permits * 1000, partial(_free, permits))
        return permits

    def _run(self, loop: Loop, permits: Container | None) -> Generator[Event, None, None]:
        env = self._env
        for request in self._requests(loop):
            if loop.paced and request.arrival_ns > env.now:
                yield env.timeout(request.arrival_ns - env.now)
            if permits is not None:
                if permits.level:
                    permits.get(1)
                else:
                    yield permits.get(1)
            if not self._left:
                return
            self._left -= 1
            if not loop.paced:
                assert self.table.due_ns is not None
                self.table.due_ns[request.row] = env.now
            self._send_now(request)

    def _requests(self, loop: Loop) -> Iterator[Request]:
        """Made as they are needed."""
        for first in range(loop.rows.start, loop.rows.stop, CHUNK):
            yield from self._make(slice(first, min(first + CHUNK, loop.rows.stop)))

    def _send_now(self, request: Request) -> None:
        late_ns = int(self._env.now) - request.arrival_ns
        request.arrival_ns += late_ns
        if self._deadline_ns[request.row] >= 0:
            request.deadline_ns += late_ns
        self._send([request])

    def quiet_until_ns(self) -> int:
        """Not asked: it listens."""
        raise NotImplementedError

    def ended(self, request: Request, seen_ns: int) -> None:
        answered = request.finish_reason in _ANSWERED
        if self._as_blis:
            if not answered:
                return
            seen_ns = int(self._env.now)
        row = request.row
        if answered and row in self._next:
            assert self.table.think_ns is not None
            following = self._next[row]
            self._at(seen_ns + int(self.table.think_ns[following]), partial(self._send_turn, following))
        which = self._loop_of[row]
        permits = None if which < 0 else self._permits[which]
        if permits is not None:
            self._at(seen_ns + self._loops[which].think_ns, partial(_free, permits))

    def _send_turn(self, row: int, event: Event) -> None:
        """Its client has the answer, and has thought."""
        if self._left:
            self._left -= 1
            (request,) = self._make(slice(row, row + 1))
            self._send_now(request)

    def _at(self, time_ns: int, callback: Callable[[Event], None]) -> None:
        self._after(max(time_ns - int(self._env.now), 0), callback)

    def _after(self, delay_ns: int, callback: Callable[[Event], None]) -> None:
        callbacks = self._env.timeout(delay_ns).callbacks
        assert callbacks is not None
        callbacks.append(callback)


def _free(permits: Container, event: Event) -> None:
    permits.put(1)


class ClosedLoop(ClosedLoops):
    """All requests of a table in one loop.

    Args:
        concurrency: permits: requests under way at once, at most.
        think_ns: a client's pause between an answer and its next request.
        paced, as_blis: see `Loop` and `Loops`.
    """

    def __init__(
        self,
        table: RequestTable,
        concurrency: int,
        think_ns: int = 0,
        *,
        paced: bool = True,
        as_blis: bool = False,
    ) -> None:
        loop = Loop(slice(0, len(table)), concurrency, think_ns, paced)
        super().__init__(table, Loops([loop], as_blis=as_blis))
