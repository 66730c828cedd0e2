"""Closed loops: clients who wait for an answer before sending the next request, beside others who do not."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace

from simpy import Container, Environment, Event

from blis_py.cluster.source import CHUNK, Maker, Send
from blis_py.core.request import Request
from blis_py.requests.loops import Loop, Loops
from blis_py.requests.table import RequestTable


class ClosedLoops:
    """Requests that need a permit of their loop to be sent, of which there are few.

    A request of a paced loop is due at its arrival in the table, and is sent then, or when a permit is free;
    whoever was due first comes first. Of other loops the next one is due whenever a permit is. The end of a
    request, as its client sees it, and a pause after it free the permit. What a request's patience and its
    latencies count from is its sending. Requests of open loops (without permits) are sent when due.

    Args:
        table: the requests that may be sent; those of a loop in order of arrival.
    """

    listens = True

    def __init__(self, table: RequestTable, loops: Loops) -> None:
        self._due_ns, self._deadline_ns = table.arrival_ns, table.deadline_ns
        due_ns = self._due_ns.copy()
        for loop in loops.parts:
            if loop.permits is None:
                due_ns[loop.rows] = -1
        self.table = replace(
            table, arrival_ns=table.arrival_ns.copy(), deadline_ns=table.deadline_ns.copy(), due_ns=due_ns
        )
        self._loops, self._loop_of = loops.parts, loops.of_rows(table)
        self._at_most = len(table) if loops.at_most is None else loops.at_most

    def start(self, env: Environment, make: Maker, send: Send, ahead: bool) -> None:
        self._env, self._make, self._send, self._left = env, make, send, self._at_most
        self._permits = [
            None if loop.permits is None else Container(env, init=loop.permits) for loop in self._loops
        ]
        for loop, permits in zip(self._loops, self._permits, strict=True):
            env.process(self._run(loop, permits))

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
        which = self._loop_of[request.row]
        permits = self._permits[which]
        if permits is None:
            return
        pause_ns = max(seen_ns + self._loops[which].think_ns - int(self._env.now), 0)
        callbacks = self._env.timeout(pause_ns, permits).callbacks
        assert callbacks is not None
        callbacks.append(_free)


def _free(event: Event) -> None:
    permits = event.value
    assert isinstance(permits, Container)
    permits.put(1)


class ClosedLoop(ClosedLoops):
    """All requests of a table in one loop.

    Args:
        concurrency: permits: requests under way at once, at most.
        think_ns: a client's pause between an answer and its next request.
    """

    def __init__(self, table: RequestTable, concurrency: int, think_ns: int = 0) -> None:
        super().__init__(table, Loops([Loop(slice(0, len(table)), concurrency, think_ns)]))
