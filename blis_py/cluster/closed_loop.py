"""A closed loop: so many clients, each of whom waits for an answer before sending the next request."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace

from simpy import Container, Environment, Event

from blis_py.cluster.source import CHUNK, Maker, Send
from blis_py.core.request import Request
from blis_py.requests.table import RequestTable


class ClosedLoop:
    """Requests that need a permit to be sent, of which there are few.

    A request is due at its arrival in the table, and is sent then, or when a permit is free; whoever was due
    first comes first. The end of a request, as its client sees it, and a pause after it free the permit.
    What a request's patience and its latencies count from is its sending.

    Args:
        concurrency: permits: requests under way at once, at most.
        think_ns: a client's pause between an answer and its next request.
    """

    listens = True

    def __init__(self, table: RequestTable, concurrency: int, think_ns: int = 0) -> None:
        self._due_ns, self._deadline_ns = table.arrival_ns, table.deadline_ns
        self.table = replace(
            table,
            arrival_ns=table.arrival_ns.copy(),
            deadline_ns=table.deadline_ns.copy(),
            due_ns=self._due_ns,
        )
        self._concurrency, self._think_ns = concurrency, think_ns

    def start(self, env: Environment, make: Maker, send: Send, ahead: bool) -> None:
        self._env, self._permits = env, Container(env, init=self._concurrency)
        env.process(self._run(make, send))

    def _run(self, make: Maker, send: Send) -> Generator[Event, None, None]:
        env = self._env
        for first in range(0, len(self.table), CHUNK):
            for request in make(slice(first, min(first + CHUNK, len(self.table)))):
                if request.arrival_ns > env.now:
                    yield env.timeout(request.arrival_ns - env.now)
                if self._permits.level:
                    self._permits.get(1)
                else:
                    yield self._permits.get(1)
                late_ns = int(env.now) - request.arrival_ns
                request.arrival_ns += late_ns
                if self._deadline_ns[request.row] >= 0:
                    request.deadline_ns += late_ns
                send([request])

    def quiet_until_ns(self) -> int:
        """Not asked: it listens."""
        raise NotImplementedError

    def ended(self, request: Request, seen_ns: int) -> None:
        pause_ns = max(seen_ns + self._think_ns - int(self._env.now), 0)
        callbacks = self._env.timeout(pause_ns).callbacks
        assert callbacks is not None
        callbacks.append(self._free)

    def _free(self, event: Event) -> None:
        self._permits.put(1)
