"""A cluster simulation on the wall clock.

SimPy's clock is bound to the wall clock: simulated time = (wall time - start) * speedup. A timer fires when
the next simulated event is due; an arrival is stamped with the present time, after which all earlier events
happen first. The delay of events against their due times is the lag.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from blis_py.cluster.simulation import ClusterSimulation
from blis_py.core.request import FINISHED, NEVER_NS, Request
from blis_py.core.step import Step
from blis_py.errors import InputError
from blis_py.requests.table import Content, RequestTable
from blis_py.serve.fleet.live_source import LiveSource
from blis_py.serve.wallclock import WallTimer

if TYPE_CHECKING:
    from blis_py.cluster.topology import Cluster
    from blis_py.latency.base import FrontendDelays
    from blis_py.latency.step_run import StepRun
    from blis_py.metrics.record import RunRecord

log = logging.getLogger("blis.serve")
_TURN_S = 0.02
"""Longest time spent on events before the event loop gets a turn."""
_LATE_S = 0.1
"""Lag that is reported as an overload of the host."""
_WARN_EVERY_S = 10.0


SLOWEST, FASTEST = 1e-3, 1e6


def check_speedup(speedup: float, key: str) -> None:
    """
    Raises:
        InputError: a speed at which the clock would overflow.
    """
    if not SLOWEST <= speedup <= FASTEST:
        fix = f"use {SLOWEST:g} to {FASTEST:,.0f} simulated seconds per second"
        raise InputError("out of range", key=key, value=speedup, fix=fix)


class LiveRequest:
    """A request in the live cluster.

    Args:
        on_tokens: called with the number of tokens that the client sees now.
        on_end: called once, at the end, with why it was ended from outside; empty = it was not.
    """

    __slots__ = ("closed", "emitted", "late_ns", "latest", "on_end", "on_tokens", "request")

    def __init__(
        self, request: Request, on_tokens: Callable[[int], None], on_end: Callable[[str], None]
    ) -> None:
        self.request, self.on_tokens, self.on_end = request, on_tokens, on_end
        self.latest = request
        """As the instance serves it that has it now."""
        self.emitted = 0
        """Tokens that its instance has emitted."""
        self.late_ns = 0
        """Further delay of each of its tokens, by its prompt and by those that the server streams with the
        first one."""
        self.closed = False


class TokenTap:
    """A `StepEvents` that reports the tokens of every step of one instance, and forwards all events."""

    def __init__(self, live: LiveCluster, scheduler: Any, events: Any) -> None:
        self._live, self._scheduler, self._events = live, scheduler, events
        self.idle, self.unservable, self.timed_out = events.idle, events.unservable, events.timed_out
        self.finished, self.goes_on, self.ended = events.finished, events.goes_on, events.ended
        self.in_progress = events.in_progress

    def steps(self, step: Step, start_ns: int, run: StepRun) -> None:
        live, end_ns = self._live, run.end_ns
        features = step.features
        live.stepped(features.prefill_tokens + features.decode_seqs)
        for request, tokens in step.prefills:
            if request.computed + tokens >= request.num_tokens or request.continues:
                count = 1 if step.emissions is None else step.emissions.get(request, 1)
                live.emitted(request, count, end_ns, features.emitted_rows)
        live.decoded(self._scheduler.decoding, end_ns)
        self._events.steps(step, start_ns, run)


Sight = tuple[LiveRequest, int]
"""Tokens of a request that its client sees; 0 = its end."""


class LiveCluster:
    """A running cluster.

    Args:
        options: of the `ClusterSimulation`.
        table: room for all requests; see `empty_table`.
        speedup: simulated seconds per second.
        tap: reports what instances emit.
        on_lengths: called with the prompt and output tokens of every request, before it is sent.

    Attributes:
        lag_s, max_lag_s: delay of the latest event, and the longest so far.
    """

    def __init__(
        self,
        cluster: Cluster,
        options: dict[str, Any],
        table: RequestTable,
        speedup: float = 1.0,
        tap: type[TokenTap] = TokenTap,
        on_lengths: Callable[[int, int], None] | None = None,
    ) -> None:
        self.table, self.speedup = table, speedup
        self._tap, self._on_lengths = tap, on_lengths
        self.source = LiveSource(table, self._ended)
        self.schedulers: list[Any] = []
        """The scheduler of every instance, by index."""
        self.on_instance: Callable[[Any], None] | None = None
        """Called with the scheduler of every further instance."""
        self.simulation = ClusterSimulation(
            self.source, cluster, **{**options, "horizon_ns": None}, single_step=True, observer=self
        )
        self._handoff = self.simulation.handoff
        if self._handoff is not None:
            self._handoff.on_arrival = self._handed_over
        self.lag_s = self.max_lag_s = 0.0
        self.failure: BaseException | None = None
        self.on_step: Callable[[int], None] = _ignore
        self._frontend: FrontendDelays = cluster.frontend
        self._live: dict[int, LiveRequest] = {}
        self._outbox: list[tuple[int, int, list[Sight]]] = []
        """(time, number, what clients see then)."""
        self._sent = 0
        self._timer: WallTimer | None = None
        self._origin_ns = 0
        self._warned_s = 0.0
        self._running = False

    def beside(self, index: int, scheduler: Any, events: Any) -> TokenTap:
        """See `Observer`."""
        self.schedulers.append(scheduler)
        if self.on_instance is not None:
            self.on_instance(scheduler)
        return self._tap(self, scheduler, events)

    # -- the clock ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the clock, in the running event loop."""
        self.simulation.call_at(0, lambda now_ns: None)  # instances may come and go
        self.simulation.begin()
        self.simulation.env.step()
        self._timer = WallTimer(self.advance)
        self._origin_ns = time.monotonic_ns()
        self._running = True

    def now_ns(self) -> int:
        """Simulated time that the wall clock has reached."""
        return int((time.monotonic_ns() - self._origin_ns) * self.speedup)

    def set_speedup(self, speedup: float) -> None:
        """Change the speed from now on."""
        now_ns = self.now_ns()
        self.speedup = speedup
        self._origin_ns = time.monotonic_ns() - int(now_ns / speedup)
        self.advance()

    def advance(self) -> None:
        """Let everything happen that is due, and set the timer for the next event."""
        if not self._running:
            return
        assert self._timer is not None
        try:
            next_ns = self._catch_up()
            while next_ns == NEVER_NS and self._handoff is not None and self._handoff.resolve_deadlock():
                next_ns = self._catch_up()
        except BaseException as error:
            self._broken(error)
            return
        if next_ns == NEVER_NS:
            self._timer.cancel()
        else:
            self._timer.set(self._origin_ns + math.ceil(next_ns / self.speedup))

    def _catch_up(self) -> int:
        """Process due events for at most a turn; returns the time of the next one."""
        env, outbox = self.simulation.env, self._outbox
        now_ns = self.now_ns()
        due_ns = self._next_ns()
        if due_ns <= now_ns:
            self._note_lag((now_ns - due_ns) / self.speedup / 1e9)
        until_s = time.monotonic() + _TURN_S
        while True:
            event_ns = env.peek()
            if outbox and outbox[0][0] <= min(event_ns, now_ns):
                self._deliver(heappop(outbox)[2])
            elif event_ns <= now_ns:
                env.step()
            else:
                return self._next_ns()
            if time.monotonic() > until_s:
                return self._next_ns()

    def _next_ns(self) -> int:
        event_ns = min(self.simulation.env.peek(), NEVER_NS)
        return int(min(event_ns, self._outbox[0][0]) if self._outbox else event_ns)

    def _note_lag(self, lag_s: float) -> None:
        self.lag_s, self.max_lag_s = lag_s, max(self.max_lag_s, lag_s)
        now_s = time.monotonic()
        if lag_s > _LATE_S and now_s - self._warned_s > _WARN_EVERY_S:
            self._warned_s = now_s
            log.warning(
                "the simulated fleet lags %.0f ms behind the wall clock: this host is overloaded", lag_s * 1e3
            )

    # -- requests ----------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """Requests that the record has room for."""
        return len(self.table) - self.source.rows

    def add(
        self,
        name: str,
        prompt_tokens: int,
        output_tokens: int,
        max_tokens: int,
        content: Content,
        slo_class: str,
        priority: int | None,
        model: str,
        on_tokens: Callable[[int], None],
        on_end: Callable[[str], None],
    ) -> LiveRequest:
        """Send a request now; `advance` lets it arrive."""
        table, row = self.table, self.source.rows
        self.source.rows += 1
        now_ns = self.now_ns()
        table.arrival_ns[row] = now_ns
        table.prompt_tokens[row], table.output_tokens[row] = prompt_tokens, output_tokens
        table.max_tokens[row] = max_tokens
        table.slo_class.codes[row] = table.slo_class.names.index(slo_class)
        if model in table.model.names:
            table.model.codes[row] = table.model.names.index(model)
        assert isinstance(table.request_id, list)
        assert isinstance(table.contents, list)
        table.request_id[row] = name
        if content:
            table.content[row] = len(table.contents)
            table.contents.append(content)
        if self._on_lengths is not None:
            self._on_lengths(prompt_tokens, output_tokens)
        request = self.source.made(row)
        if priority is not None:
            request.priority = priority
        live = self._live[row] = LiveRequest(request, on_tokens, on_end)
        self.source.arrive(now_ns, request)
        return live

    def abort(self, live: LiveRequest) -> None:
        """End a request as if its client had timed out now.

        One whose KV is on the wire is at no instance: its visit to the decode instance ends as it begins.
        """
        if live.closed:
            return
        self._forget(live)
        now_ns, (index, request) = self.now_ns(), self._whereabouts(live)
        is_over = request.status is FINISHED
        if is_over and not self._is_handed_over(request.row):
            return
        self.table.deadline_ns[request.row] = request.deadline_ns = now_ns
        if index >= 0 and not is_over:
            self.simulation.fleet.instances[index].cancel(request, now_ns)
        self.advance()

    def instance_of(self, live: LiveRequest) -> int:
        """Index of the instance that has it; -1 = none yet."""
        return self._whereabouts(live)[0]

    def _whereabouts(self, live: LiveRequest) -> tuple[int, Request]:
        between = None if self._handoff is None else self._handoff.whereabouts(live.request.row)
        return between or (int(self.simulation.recorder.instance[live.latest.visit]), live.latest)

    def _is_handed_over(self, row: int) -> bool:
        """Whether a request is on its way between two instances."""
        return self._handoff is not None and self._handoff.whereabouts(row) is not None

    def stepped(self, tokens: int) -> None:
        """A step with so many tokens."""
        self.on_step(tokens)

    def emitted(self, request: Request, tokens: int, end_ns: int, together: int) -> None:
        """Tokens of a step that ends then.

        Args:
            together: sequences with a token in the step, where it is the first of a request; else 0.
        """
        live = self._live.get(request.row)
        if live is None or self._is_of_prefill(request):
            return
        if not live.emitted:
            live.late_ns = self._frontend.late_ns(request.prompt_tokens, together)
        live.emitted += tokens
        self._later(end_ns + self._frontend.token_ns(live.emitted) + live.late_ns, [(live, tokens)])

    def decoded(self, requests: Iterable[Request], end_ns: int) -> None:
        """A token of each request, from a step that ends then; those seen together are one entry."""
        known, behind_ns = self._live, end_ns + self._frontend.behind_ns
        per_token_ns = self._frontend.per_token_ns
        sights_of: dict[int, list[Sight]] = {}
        for request in requests:
            live = known.get(request.row)
            if live is not None:
                tokens = 1 if live.emitted else 1 + request.carried
                live.emitted += tokens
                seen_ns = behind_ns + live.emitted * per_token_ns + live.late_ns
                sights_of.setdefault(seen_ns, []).append((live, tokens))
        for seen_ns, sights in sights_of.items():
            self._later(seen_ns, sights)

    def _is_of_prefill(self, request: Request) -> bool:
        """Whether a token is that of a prefill instance, which the client gets with the KV or not at all."""
        between = None if self._handoff is None else self._handoff.whereabouts(request.row)
        return between is not None and between[1] is request

    def _handed_over(self, request: Request, now_ns: int) -> None:
        """The KV of a request is at its decode instance, and with it the token of its prefill."""
        live = self._live.get(request.row)
        if live is not None:
            live.latest = request
            if request.carried:
                self.emitted(request, request.carried, now_ns, 1)

    def _ended(self, request: Request, seen_ns: int) -> None:
        live = self._live.get(request.row)
        if live is not None:
            live.latest = request
            self._later(seen_ns, [(live, 0)])

    def _later(self, time_ns: int, sights: list[Sight]) -> None:
        self._sent += 1
        heappush(self._outbox, (time_ns, self._sent, sights))

    def _deliver(self, sights: list[Sight]) -> None:
        for live, tokens in sights:
            if live.closed:
                continue
            if tokens:
                live.on_tokens(tokens)
            else:
                self._forget(live)
                live.on_end("")

    def _forget(self, live: LiveRequest) -> None:
        live.closed = True
        self._live.pop(live.request.row, None)

    # -- the end -----------------------------------------------------------------------------------

    def _broken(self, error: BaseException) -> None:
        """The simulation has failed: so do all requests."""
        log.critical("the simulated fleet has failed", exc_info=error)
        self.failure, self._running = error, False
        self.fail_all("the simulated fleet has failed")

    def fail_all(self, why: str, index: int | None = None) -> int:
        """End all requests in progress, or those of one instance; returns their number."""
        failing = [live for live in self._live.values() if index is None or self.instance_of(live) == index]
        for live in failing:
            if self._running:
                self.abort(live)
            else:
                self._forget(live)
            live.on_end(why)
        return len(failing)

    def stop(self) -> RunRecord | None:
        """End the run; returns its record, if the simulation has not failed."""
        if self.failure is not None:
            return None
        self.fail_all("the server is stopping")
        self._catch_up()
        self._running = False
        assert self._timer is not None
        self._timer.close()
        return self.simulation.end(int(self.simulation.env.now))


def _ignore(tokens: int) -> None:
    """No listener."""
