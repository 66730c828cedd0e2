"""Send the requests of a workload at their times, and receive the responses.

Open loops are sent when they are due, whatever the server does; in a loop with permits the next request is
due when one has ended; later turns of a session when the previous one has been answered.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Any

from blis_py.observe.answer import ObservedAnswer
from blis_py.observe.http import HttpClient, HttpError
from blis_py.observe.prompts import WordedPrompts
from blis_py.requests.loops import Loop, Loops
from blis_py.requests.sessions import next_turns
from blis_py.requests.table import RequestTable
from blis_py.serve.wallclock import WallTimer
from blis_py.traces.tracev2_write import End

_AHEAD = 4096
"""Requests whose bodies are made ahead of time, at most."""
_PREPARE_S = 2.0
"""Longest time spent on bodies before the first request."""

_Due = tuple[int, int]
"""Time in ns at which a request is due, and its row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """Wording of prompts."""

    model: str
    chat: bool = False
    streams: bool = True
    unconstrained: bool = False
    """The model may end an answer; else it is as long as the workload says."""
    timeout_s: float = 300.0
    """For requests without patience of their own."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Further fields of every body."""


@dataclass(slots=True)
class MeasuredRequest:
    """One request as the client saw it; times in ns since the start."""

    row: int
    due_ns: int
    sent_ns: int = -1
    token_ns: list[int] = field(default_factory=list)
    ended_ns: int = -1
    end: End = ("error", "no end seen", "")
    prompt_tokens: int = -1
    completion_tokens: int = -1


class Driver:
    """Sender of the requests of a table.

    Args:
        done: rows that have been measured before, and are not sent again.
        on_end: called with every request that has ended.
        started_ns: time of the workload that has passed before.
    """

    def __init__(
        self,
        table: RequestTable,
        loops: Loops | None,
        prompts: WordedPrompts,
        client: HttpClient,
        style: Style,
        on_end: Callable[[MeasuredRequest], None],
        *,
        done: frozenset[int] = frozenset(),
        max_concurrency: int | None = None,
        started_ns: int = 0,
    ) -> None:
        self._table, self._loops, self._prompts = table, loops, prompts
        self._client, self._style, self._on_end = client, style, on_end
        self._done = done
        self._parts = [Loop(slice(0, len(table)))] if loops is None else loops.parts
        self._limit = None if max_concurrency is None else asyncio.Semaphore(max_concurrency)
        self._next = next_turns(table) if loops is not None and loops.later_turns else {}
        at_most = len(table) if loops is None or loops.at_most is None else loops.at_most
        self._left = at_most - len(done)
        self._made: dict[int, bytes] = {}
        self._to_make: deque[int] = deque()
        self._talks: dict[int, Any] = {}
        """Messages of each session so far, by its number."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._due: list[tuple[int, int]] = []
        self._started_ns = started_ns
        self._origin_ns = 0
        self._timer: WallTimer | None = None

    def now_ns(self) -> int:
        return time.monotonic_ns() - self._origin_ns

    def prepare(self) -> None:
        """Make the first bodies."""
        for loop in self._parts:
            if loop.permits is None:
                self._open(loop)
        heapify(self._due)
        self._to_make.extend(row for _, row in sorted(self._due))
        until_s = time.monotonic() + _PREPARE_S
        while self._make_one() and time.monotonic() < until_s:
            pass

    async def run(self) -> None:
        """Send everything and wait for the last response; after `prepare`."""
        self._timer = WallTimer(self._fire)
        self._origin_ns = time.monotonic_ns() - self._started_ns
        try:
            for loop in self._parts:
                if loop.permits is not None:
                    rows = (row for row in range(loop.rows.start, loop.rows.stop) if row not in self._done)
                    for _ in range(loop.permits):
                        self._begin(self._worker(loop, rows))
            self._fire()
            while self._tasks or self._due:
                await asyncio.wait(self._tasks, timeout=0.2) if self._tasks else await asyncio.sleep(0.01)
        finally:
            self._timer.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _open(self, loop: Loop) -> None:
        arrivals_ns = self._table.arrival_ns
        self._due += [
            (int(arrivals_ns[row]), row)
            for row in range(loop.rows.start, loop.rows.stop)
            if row not in self._done
        ]

    def _begin(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            raise RuntimeError("a request could not be handled") from task.exception()

    # -- when ------------------------------------------------------------------------------------------

    def _fire(self) -> None:
        """Send what is due, and set the timer for the next request."""
        due = self._due
        while due and due[0][0] <= self.now_ns():
            time_ns, row = heappop(due)
            if self._left > 0:
                self._left -= 1
                self._begin(self._open_turn(row, time_ns))
        if due:
            assert self._timer is not None
            self._timer.set(self._origin_ns + due[0][0])
        asyncio.get_running_loop().call_soon(self._make_one)

    def _later(self, time_ns: int, row: int) -> None:
        heappush(self._due, (time_ns, row))
        assert self._timer is not None
        self._timer.set(self._origin_ns + self._due[0][0])

    async def _worker(self, loop: Loop, rows: Iterator[int]) -> None:
        """One client of a loop with permits; a session keeps its permit."""
        for first in rows:
            turn: _Due | None = (int(self._table.arrival_ns[first]) if loop.paced else self.now_ns(), first)
            while turn is not None:
                due_ns, row = turn
                await self._until(due_ns)
                if self._left <= 0:
                    return
                self._left -= 1
                turn = await self._one(row, max(due_ns, 0))
            if loop.think_ns:
                await asyncio.sleep(loop.think_ns / 1e9)

    async def _open_turn(self, row: int, due_ns: int) -> None:
        """A request of an open loop, whose next turn may be sent beside others."""
        following = await self._one(row, due_ns)
        if following is not None:
            self._later(*following)

    async def _until(self, time_ns: int) -> None:
        wait_ns = time_ns - self.now_ns()
        if wait_ns > 0:
            await asyncio.sleep(wait_ns / 1e9)

    # -- a request -------------------------------------------------------------------------------------

    async def _one(self, row: int, due_ns: int) -> _Due | None:
        """Send one request and measure its response; return the next turn of its session, if there is one."""
        if self._limit is None:
            return await self._sent(row, due_ns)
        async with self._limit:
            return await self._sent(row, due_ns)

    async def _sent(self, row: int, due_ns: int) -> _Due | None:
        measured, answer = MeasuredRequest(row, due_ns), ObservedAnswer()

        def on_sent(time_ns: int) -> None:
            measured.sent_ns = time_ns - self._origin_ns

        request = self._made.pop(row, None) or self._made_now(row)
        try:
            async with asyncio.timeout(self._patience_s(row)):
                await self._client.send(request, answer, on_sent)
            answer.ended(time.monotonic_ns())
            measured.end = answer.end
        except TimeoutError:
            measured.end = "timeout", "", ""
        except HttpError as error:
            measured.end = "error", str(error), ""
        measured.ended_ns = self.now_ns()
        if measured.sent_ns < 0:
            measured.sent_ns = measured.ended_ns
        measured.token_ns = [time_ns - self._origin_ns for time_ns in answer.times_ns]
        measured.prompt_tokens, measured.completion_tokens = answer.prompt_tokens, answer.completion_tokens
        self._on_end(measured)
        return self._following(row, measured, "".join(answer.text))

    def _patience_s(self, row: int) -> float:
        deadline_ns = int(self._table.deadline_ns[row])
        if deadline_ns < 0:
            return self._style.timeout_s
        return max(deadline_ns - int(self._table.arrival_ns[row]), 0) / 1e9

    def _following(self, row: int, measured: MeasuredRequest, answer: str) -> _Due | None:
        """The next turn of a session, if there is one and this one was answered."""
        following = self._next.get(row)
        if following is None or measured.end[0] != "ok":
            return None
        assert self._table.session is not None
        assert self._table.think_ns is not None
        talk = self._talks.setdefault(int(self._table.session[row]), [])
        if not talk:
            talk.append(self._prompts.prompt(row))
        talk.append(answer)
        return measured.ended_ns + int(self._table.think_ns[following]), following

    # -- bodies ----------------------------------------------------------------------------------------

    def _make_one(self) -> bool:
        """Make the next body ahead of time; whether there was one to make."""
        if not self._to_make or len(self._made) >= _AHEAD:
            return False
        row = self._to_make.popleft()
        self._made[row] = self._request(row)
        return True

    def _made_now(self, row: int) -> bytes:
        """A body that is not ready when it is due."""
        if self._to_make and self._to_make[0] == row:
            self._to_make.popleft()
        return self._request(row)

    def _request(self, row: int) -> bytes:
        table, style = self._table, self._style
        limit = int(table.max_tokens[row]) or int(table.output_tokens[row])
        body: dict[str, Any] = {"model": style.model, "stream": style.streams}
        if style.chat:
            body["messages"] = self._messages(row)
            body["max_completion_tokens"] = limit
        else:
            body["prompt"] = self._prompt(row)
            body["max_tokens"] = limit
        if style.streams:
            body["stream_options"] = {"include_usage": True}
        if not style.unconstrained:
            body |= {"ignore_eos": True, "temperature": 0}
        body |= style.extra
        path = "/v1/chat/completions" if style.chat else "/v1/completions"
        headers = {"X_Request_Id": table.id_of(row)}
        if table.slo_class[row]:
            headers["X_SLO_Class"] = table.slo_class[row]
        return self._client.target.request("POST", path, json.dumps(body).encode(), **headers)

    def _prompt(self, row: int) -> str | list[int]:
        talk = self._talk(row)
        if not talk:
            return self._prompts.prompt(row)
        if not all(isinstance(part, str) for part in talk):
            return self._prompts.prompt(row)  # ids: the workload's own account of the session
        talk.append(self._more(row))
        return "".join(talk)

    def _messages(self, row: int) -> list[dict[str, str]]:
        talk = self._talk(row)
        talk = [self._prompts.prompt(row)] if not talk else [*talk, self._more(row)]
        if len(talk) > 1:
            assert self._table.session is not None
            self._talks[int(self._table.session[row])] = talk
        roles = ("user", "assistant")
        return [{"role": roles[number % 2], "content": str(part)} for number, part in enumerate(talk)]

    def _talk(self, row: int) -> Any:
        session = -1 if self._table.session is None else int(self._table.session[row])
        return self._talks.get(session)

    def _more(self, row: int) -> str:
        """Text that a later turn adds to the session."""
        table = self._table
        before = next((early for early, late in self._next.items() if late == row), None)
        prefix = 0 if before is None else int(table.prompt_tokens[before] + table.output_tokens[before])
        return self._prompts.text(self._prompts.more(row, int(table.prompt_tokens[row]) - prefix))
