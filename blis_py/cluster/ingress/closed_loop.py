"""Closed-loop clients, which wait for a response before they send the next request, beside open loops."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from simpy import Event, Store

from blis_py.cluster.ingress.source import CHUNK, RequestFactory, Send
from blis_py.cluster.time.clock import SimClock
from blis_py.cluster.time.events import Action
from blis_py.core.request import FinishReason, Request
from blis_py.requests.loops import Loop, Loops
from blis_py.requests.sessions import next_turns
from blis_py.requests.table import RequestTable

_ANSWERED = (FinishReason.STOP, FinishReason.LENGTH)


class ClosedLoops:
    """Requests that need one of the limited permits of their loop to be sent.

    A request of a paced loop is due at its arrival in the table, and is sent then or when a permit becomes
    free, in the order of due times. In other loops the next request is due when a permit is free. A permit
    becomes free at the end of a request, as seen by its client, plus a pause; a session keeps its permit up
    to the end of its last turn. Patience and latencies of a request count from its sending. Requests of open
    loops (without permits) are sent when due.

    With a network delay the next request of a client reaches the cluster a round trip later: the response on
    its way down, and the request on its way up.

    Later turns of a session are sent once the client has received the previous response and its think time
    has passed. A turn without a response, for whatever reason, is the last of its session.

    Args:
        table: the requests that may be sent, within a loop in order of arrival.
    """

    listens = True

    def __init__(self, table: RequestTable, loops: Loops) -> None:
        self._due_ns, self._deadline_ns = table.arrival_ns, table.deadline_ns
        loops.check(table)
        self._loops = loops.parts
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
        self._users = None
        if loops.as_blis and not all(loop.paced for loop in loops.parts):
            self._users = _Users(self.table, loops.parts)
            self.table = self._users.table
        self._network_ns = None if loops.as_blis else self.table.network_ns
        self._permit_of: dict[int, tuple[int, int]] = {}
        """Loop and permit number of each request that holds a permit, by row."""
        self._at_most = len(table) if loops.at_most is None else loops.at_most

    def start(self, env: SimClock, make: RequestFactory, send: Send, ahead: bool) -> None:
        self._env, self._events = env, env.events
        self._make, self._send, self._left = make, send, self._at_most
        self._permits = [None if loop.permits is None else self._first_permits(loop) for loop in self._loops]
        for which in range(len(self._loops)):
            env.process(self._run(which))

    def _first_permits(self, loop: Loop) -> Store:
        """The permits of a loop: all available at the beginning, or spread over the first pause."""
        assert loop.permits is not None
        permits, pause_us = Store(self._env), loop.think_ns // 1000
        spread = self._as_blis and not loop.paced and pause_us > 0
        at_once = 1 if spread else loop.permits
        permits.items.extend(range(at_once))
        for number in range(at_once, loop.permits):
            self._after(number * pause_us // loop.permits * 1000, partial(_free, permits, number))
        return permits

    def _run(self, which: int) -> Generator[Event, Any, None]:
        env, loop, permits = self._env, self._loops[which], self._permits[which]
        for request in self._requests(loop):
            if loop.paced and request.arrival_ns > env.now:
                yield env.timeout(request.arrival_ns - env.now)
            if permits is not None:
                permit = permits.get()
                value: Any = permit.value if permit.triggered else (yield permit)
                number = int(value)
                self._permit_of[request.row] = which, number
            if not self._left:
                return
            self._left -= 1
            if not loop.paced:
                assert self.table.due_ns is not None
                self.table.due_ns[request.row] = env.now
                if self._users is not None:
                    self._users.note(loop, number, request.row)
            if permits is None or self._network_ns is None:
                self._send_now(request)
            else:
                self._after(self._upload_ns(request.row), partial(self._arrives, request))

    def _requests(self, loop: Loop) -> Iterator[Request]:
        """Create the requests of a loop lazily."""
        for first in range(loop.rows.start, loop.rows.stop, CHUNK):
            yield from self._make(slice(first, min(first + CHUNK, loop.rows.stop)))

    def _send_now(self, request: Request) -> None:
        late_ns = int(self._env.now) - request.arrival_ns
        request.arrival_ns += late_ns
        if self._deadline_ns[request.row] >= 0:
            request.deadline_ns += late_ns
        self._send([request])

    def safe_until_ns(self) -> int:
        """Never called: this source is a listening one."""
        raise NotImplementedError

    def ended(self, request: Request, seen_ns: int) -> None:
        row, answered = request.row, request.finish_reason in _ANSWERED
        held = self._permit_of.pop(row, None)
        if self._as_blis:
            if not answered:
                return
            seen_ns = int(self._env.now)
        elif self._network_ns is not None:
            rtt_ns, token_ns = self._network_ns[row]
            seen_ns += round(rtt_ns + request.generated * token_ns)
        if answered and row in self._next:
            assert self.table.think_ns is not None
            following = self._next[row]
            sent_ns = seen_ns + int(self.table.think_ns[following]) + self._upload_ns(following)
            self._at(sent_ns, partial(self._send_turn, following))
            if held is not None:
                self._permit_of[following] = held
        elif held is not None:
            which, number = held
            permits = self._permits[which]
            assert permits is not None
            self._at(seen_ns + self._loops[which].think_ns, partial(_free, permits, number))

    def _send_turn(self, row: int, now_ns: int) -> None:
        """Send a turn: its client has the previous response, and its think time has passed."""
        if self._left:
            self._left -= 1
            (request,) = self._make(slice(row, row + 1))
            if row in self._permit_of:
                assert self.table.due_ns is not None
                self.table.due_ns[row] = now_ns
            self._send_now(request)

    def _arrives(self, request: Request, now_ns: int) -> None:
        self._send_now(request)

    def _upload_ns(self, row: int) -> int:
        """Duration of a prompt's upload."""
        if self._network_ns is None:
            return 0
        return round(float(self.table.prompt_tokens[row] * self._network_ns[row, 1]))

    def _at(self, time_ns: int, action: Action) -> None:
        self._events.call_at(max(time_ns, self._events.now_ns), action)

    def _after(self, delay_ns: int, action: Action) -> None:
        self._events.call_at(self._events.now_ns + delay_ns, action)


def _free(permits: Store, permit: int, now_ns: int) -> None:
    permits.put(permit)


class _Users:
    """Users that send again and again, as in BLIS: an endless session for each permit.

    Args:
        table: receives the columns; the user of a request is known when it is sent.
    """

    def __init__(self, table: RequestTable, loops: Sequence[Loop]) -> None:
        names = list(table.session_names or ())
        if table.session is not None and not names:
            names = [f"session_{number}" for number in range(int(table.session.max(initial=-1)) + 1)]
        self._first: dict[int, int] = {}
        """Number of a loop's first user, by the loop's first row."""
        for loop in loops:
            if loop.permits is not None and not loop.paced:
                self._first[loop.rows.start] = len(names)
                client = table.client[loop.rows.start] if len(table) else ""
                names += [f"concurrency_{client}_user_{user}" for user in range(loop.permits)]
        self._rounds = [0] * len(names)
        self._session = np.full(len(table), -1) if table.session is None else table.session.copy()
        self._round = (
            np.zeros(len(table), dtype=np.int64) if table.round_index is None else table.round_index.copy()
        )
        self.table = replace(table, session=self._session, session_names=names, round_index=self._round)

    def note(self, loop: Loop, user: int, row: int) -> None:
        """Assign a request of the loop to a user, as its next turn."""
        number = self._first[loop.rows.start] + user
        self._session[row], self._round[row] = number, self._rounds[number]
        self._rounds[number] += 1


class ClosedLoop(ClosedLoops):
    """A single loop with all requests of a table.

    Args:
        concurrency: permits: the maximum number of requests in progress.
        think_ns: a client's pause between a response and its next request.
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
