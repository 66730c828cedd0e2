"""Life cycle of requests on one instance, independent of what a step is.

    add -> waiting -> admitted -> running -> completed
              ^                      |
              +----- preempted ------+          expired or aborted from anywhere

With a `KVSource`, a request may wait for KV between the waiting queue and admission.

Queue, priorities, deadlines, admission and the counters are here. A kind of requests supplies how
much of it a step computes, what it holds while it runs, and how a batch is formed and finished; that of
autoregressive requests is `blis_py.core.scheduler`, the others are in `blis_py.core.kinds`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from blis_py.core._caches import build_cache
from blis_py.core.config import SchedulerConfig
from blis_py.core.counters import Counters
from blis_py.core.deadlines import Deadlines
from blis_py.core.kv_loads import KVLoads
from blis_py.core.kv_source import KVSource, Supply
from blis_py.core.policies import SCHEDULERS
from blis_py.core.request import FINISHED, NEVER_NS, WAITING, FinishReason, Request

_LOADING: Final = -1
"""Marks a request that waits for KV: others may be admitted past it."""


class _Count:
    """A number of requests."""

    def __init__(self) -> None:
        self.count = 0


class Lifecycle:
    """The requests of one instance, and the KV blocks they hold.

    Args:
        config: limits and policies.
        counters: new.
        max_tokens: length of the longest sequence that fits; longer ones are refused, or cut.
        granularity: tokens of the smallest piece of work.
        source: KV from outside the instance.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        counters: Counters,
        max_tokens: int,
        granularity: int = 1,
        source: KVSource | None = None,
    ) -> None:
        self.config = config
        self.counters = counters
        self.waiting = SCHEDULERS[config.scheduler](config)
        self.running: dict[Request, None] = {}
        """In running order: the order of admission."""
        self.kv = build_cache(config)
        self.loads = None if source is None else KVLoads(source, self.kv)
        """Requests that have left the queue and hold blocks, but do not run."""
        self.loads_kv = source is not None
        """Whether requests may wait for KV from outside."""
        self.holding: dict[Request, None] = {}
        """Completed requests whose blocks another instance still reads, see `Request.keeps_blocks`."""
        self._let_go: list[Request] = []
        """Those among them whose blocks are freed at the next step boundary."""
        self.first_deadline_ns = NEVER_NS
        """The earliest deadline of the requests that have not ended."""
        self._max_tokens = max_tokens
        self._granularity = granularity
        self._max_num_seqs = config.max_num_seqs
        self._block_size = config.block_size
        self._async, self._late_length_stops = config.async_scheduling, config.late_length_stops
        self._admissions = 0
        self._deadlines = Deadlines()
        self._waiting_priorities: dict[int, _Count] = {}
        """Waiting requests by priority."""
        self._latest: _Count | None = None
        self._latest_priority = 0
        """That count which has changed last, and its priority."""
        self._num_waiting = 0
        self.withdraws_late = config.aborts_at != "boundary" and source is None
        """Whether running requests go on to their next output when their clients give up."""
        self._withdrawn: dict[Request, None] = {}
        """Those that go on to it."""

    # -- supplied by the kind of request ----------------------------------------------------------

    def _refusal(self, tokens: int) -> str:
        """The reason why a sequence of this length can never be served."""
        raise NotImplementedError

    def _first_tokens(self, request: Request, cached: int, budget_tokens: int) -> int:
        """Tokens a waiting request computes in its first step, in addition to cached ones; 0 = not now."""
        raise NotImplementedError

    def _padding(self, request: Request, positions: int) -> int:
        """Number of a waiting request's first `positions` behind its tokens."""
        return 0

    def _may_load(self, request: Request, cached: int) -> bool:
        """Whether a request may take blocks for KV that arrives later."""
        return True

    def _has_headroom(self, request: Request, shared: list[int], own: int, new_tokens: int) -> bool:
        """Whether as many blocks are free as a request's admission demands beyond those of its first step.

        Args:
            shared, own: as for `KVCache.admit`.
            new_tokens: tokens of the first step.
        """
        return True

    def _arrived_fits(self, request: Request, new_tokens: int) -> bool:
        """The same of a request whose KV has arrived, which holds blocks."""
        return True

    def _load_fits(self, request: Request, shared: list[int], own: int, loaded_tokens: int) -> bool:
        """Whether as many blocks are free as the admission of a load demands beyond those of its tokens."""
        return True

    def _admitted(self, request: Request) -> None:
        """Start a request that has its blocks."""
        raise NotImplementedError

    def _leave(self, request: Request, keep: bool = False) -> None:
        """Remove a request from the running list and release what it holds.

        Args:
            keep: the request will return and may find its blocks again.
        """
        raise NotImplementedError

    def _forget(self, request: Request) -> None:
        """Release remaining per-request state after the final exit."""

    # -- arrivals and departures ------------------------------------------------------------------

    @property
    def most_tokens(self) -> int:
        """Longest request that can be served here, its answer included."""
        return self._max_tokens

    def add(self, request: Request) -> str | None:
        """Add a request to the waiting queue; returns the reason if it can never be served here."""
        limit, prompt_tokens = request.max_tokens, request.prompt_tokens
        least = prompt_tokens + (limit or 1)
        if least > self._max_tokens:
            return self._refusal(least)
        target = limit or self._max_tokens - prompt_tokens
        if request.carried >= target:
            return f"has all its {target} output tokens"
        if request.output_tokens is not None and request.output_tokens < target:
            target = request.output_tokens
        request.target = target
        request.ends_late = self._async and (
            self._late_length_stops
            or (request.ends_by_eos and target < (limit or self._max_tokens - prompt_tokens))
        )
        if request.deadline_ns >= 0:
            self._deadlines.add(request)
            self._deadlines_changed()
        self._count_waiting(request.priority, 1)
        self.waiting.push(request)
        return None

    @property
    def queue_depth(self) -> int:
        """Requests that do not run: queued, or waiting for KV."""
        return len(self.waiting) + (0 if self.loads is None else len(self.loads))

    @property
    def queued(self) -> list[Request]:
        """These requests, in no particular order."""
        return [*self.waiting, *(() if self.loads is None else self.loads.requests)]

    @property
    def committed(self) -> int:
        """Requests that run, or hold blocks for KV on its way."""
        return len(self.running) + (0 if self.loads is None else len(self.loads))

    def committed_beside(self, request: Request) -> int:
        """The same where a request is to run: of its rank, with attention DP."""
        return self.committed

    def free_places(self, request: Request) -> int:
        """Places in the running list where a request is to run, less those of running requests and of
        requests that hold blocks for their KV."""
        return self._max_num_seqs - self.committed

    def receiving_beside(self, request: Request) -> list[Request]:
        """Requests that hold blocks for KV on its way, in the pool that a request is to use."""
        return [] if self.loads is None else self.loads.receiving

    @property
    def kv_under_way(self) -> bool:
        """Whether KV is on its way."""
        return self.loads is not None and self.loads.under_way

    @property
    def holds(self) -> bool:
        """Whether it holds blocks of completed requests."""
        return bool(self.holding)

    @property
    def has_candidates(self) -> bool:
        """Whether a request could be admitted if there were capacity."""
        return self._num_waiting > 0 or (self.loads is not None and bool(self.loads.arrived))

    def kv_ready_at(self, request: Request, ready_ns: int) -> None:
        """Change the ready time of the KV a request waits for; call between steps."""
        if self.loads is not None:
            self.loads.move(request, ready_ns)

    def let_go(self, request: Request, now_ns: int) -> None:
        """Free the blocks of a completed request at the next step boundary."""
        if request.keeps_blocks and request in self.holding:
            request.keeps_blocks = False
            self._let_go.append(request)
            self.first_deadline_ns = min(self.first_deadline_ns, now_ns)

    def set_deadline(self, request: Request, deadline_ns: int) -> None:
        """Change the deadline of a request that has not ended; -1 = never."""
        if request.number >= 0:
            self._deadlines.remove(request)
            request.number = -1
        request.deadline_ns = deadline_ns
        if deadline_ns >= 0:
            self._deadlines.add(request)
        self._deadlines_changed()

    def next_change_ns(self, now_ns: int) -> int:
        """Earliest time at which the state at a step boundary may change due to time alone."""
        change = self.waiting.next_change_ns(now_ns) if self._num_waiting else None
        first_ns = self.first_deadline_ns if change is None else min(change, self.first_deadline_ns)
        return first_ns if self.loads is None else min(first_ns, self.loads.first_ready_ns)

    def expire(self, now_ns: int) -> list[Request]:
        """Drop the requests whose deadline has passed, and free what was let go; call between steps.

        Those that go on to their next output are not returned; they finish with their reason.
        """
        self.free_let_go()
        expired: list[Request] = []
        while self.first_deadline_ns <= now_ns:
            request = self._deadlines.first()
            if self.withdraw(request, FinishReason.TIMEOUT):
                expired.append(request)
        return expired

    @property
    def lets_go(self) -> bool:
        """Whether blocks are to be freed at the next step boundary."""
        return bool(self._let_go)

    def free_let_go(self) -> None:
        """Free what was let go; call between steps."""
        for request in self._let_go:
            del self.holding[request]
            self.kv.release(request)
        self._let_go.clear()
        self.first_deadline_ns = self._deadlines.first_ns

    def cancel(self, request: Request, now_ns: int) -> None:
        """Set its deadline to now: the next `expire` drops it."""
        request.deadline_ns = now_ns
        self._deadlines.add(request)
        self._deadlines_changed()

    def withdraw(self, request: Request, reason: FinishReason = FinishReason.ABORT) -> bool:
        """End a request as the engine does when its client gives up; call between steps.

        Returns:
            Whether it has left; otherwise it finishes with its next output.
        """
        self.abort(request, reason)
        return True

    def abort(self, request: Request, reason: FinishReason = FinishReason.ABORT) -> None:
        """Drop a request, waiting or running; call between steps."""
        request.keeps_blocks = False
        self._part_with(request)
        self._forget(request)
        request.finish_reason = reason

    def place(self, request: Request, computed: int) -> None:
        """Run a request with its first `computed` tokens in the cache, without computing them.

        The next step computes the rest of its prompt. Step measurements use this to reach an arbitrary batch
        composition; call between steps. Content already in the prefix cache is shared.

        Raises:
            RuntimeError: there is no free place in the running list, or too few blocks are free.
        """
        room = len(self.running) < self._max_num_seqs
        shared = self.kv.cached_blocks(request) if request.block_keys else []
        rest = computed - len(shared) * self._block_size
        if not (room and (computed == 0 or self.kv.admit(request, shared, 0, rest))):
            raise RuntimeError(f"no room for {request!r} in {self!r}")
        request.target = request.max_tokens or self._max_tokens - request.prompt_tokens
        request.computed = request.cached_tokens = computed
        self.kv.publish(request)
        self._run(request)

    def admit(self, budget_tokens: int, now_ns: int, only_arrived: bool = False) -> list[tuple[Request, int]]:
        """Admit waiting requests until one does not fit: first those whose KV has arrived, then the queue.

        Args:
            budget: tokens the step has left.
            only_arrived: leave the queue alone.

        Returns:
            The admitted requests, with the tokens each computes in its first step.
        """
        waiting = self.waiting
        admitted: list[tuple[Request, int]] = []
        if self.loads is not None and self.loads.arrived:
            budget_tokens = self._admit_arrived(admitted, budget_tokens)
            if self.loads.arrived:
                return admitted
        if only_arrived:
            return admitted
        while self._num_waiting and self._has_room(budget_tokens):
            request = waiting.head(now_ns)
            tokens = 0 if request is None else self._find_room(request, budget_tokens, now_ns)
            if request is None or tokens == 0:
                break
            waiting.pop_head(now_ns)
            self._count_waiting(request.priority, -1)
            if tokens == _LOADING:
                continue
            if self._num_waiting:
                self._note_inversion(request.priority)
            self._run(request)
            admitted.append((request, tokens))
            budget_tokens -= self._charge(request, tokens)
            if not self._goes_on(budget_tokens):
                break
        return admitted

    def _has_room(self, budget_tokens: int) -> bool:
        """Whether the next waiting request may be looked at."""
        return budget_tokens >= self._granularity and len(self.running) < self._max_num_seqs

    def _charge(self, request: Request, tokens: int) -> int:
        """Tokens of the budget that a request takes which has just been admitted with these tokens."""
        return tokens

    def _goes_on(self, budget_tokens: int) -> bool:
        """Whether more requests may be admitted behind it."""
        return True

    def _run(self, request: Request) -> None:
        """Append a request to the running list."""
        request.seq = self._admissions
        self._admissions += 1
        self.running[request] = None
        self._admitted(request)

    def _admit_arrived(self, admitted: list[tuple[Request, int]], budget_tokens: int) -> int:
        """Admit requests whose KV has arrived, in that order; returns the budget left."""
        loads = self.loads
        assert loads is not None
        while loads.arrived and budget_tokens >= self._granularity and len(self.running) < self._max_num_seqs:
            request = loads.arrived[0]
            tokens = self._first_tokens(request, request.computed, budget_tokens)
            padding = self._padding(request, request.computed + tokens)
            if not (tokens and self._arrived_fits(request, tokens)):
                break
            if not self.kv.extend(request, tokens - padding, padding):
                break
            self._run(loads.next_arrived())
            admitted.append((request, tokens))
            budget_tokens -= tokens
        return budget_tokens

    def _find_room(self, request: Request, budget_tokens: int, now_ns: int) -> int:
        """Find KV of the head of the queue, and blocks for its first step; 0 if it must wait."""
        shared, own = self._cached(request)
        cached = (len(shared) + own) * self._block_size
        supply = None if self.loads is None else self.loads.offer(request, cached, now_ns)
        later = supply is not None and supply.ready_ns > now_ns
        supplied = 0 if supply is None else supply.tokens
        tokens = 0 if later else self._first_tokens(request, cached + supplied, budget_tokens)
        if not (self._may_load(request, cached) if later else tokens):
            return 0
        fits = supply is None or not supply.free_tokens or self._leaves_free(request, shared, own, supply)
        fits = fits and self._has_headroom(request, shared, own, supplied + tokens)
        fits = fits and not (later and not self._load_fits(request, shared, own, supplied))
        padding = self._padding(request, cached + supplied + tokens)
        new_tokens = supplied + tokens - padding
        if not (fits and self.kv.admit(request, shared, own, new_tokens, not later, padding)):
            if not request.blocked_at_head and len(self.waiting) > 1:
                request.blocked_at_head = True
                self.counters.head_of_line_events += 1
            return 0
        request.computed = cached
        if request.cached_tokens < 0:
            request.cached_tokens = cached
            self.counters.prefix_queried_tokens += request.prompt_tokens
            self.counters.prefix_hit_tokens += cached
        return tokens if supply is None else self._load(request, supply, tokens, now_ns)

    def _leaves_free(self, request: Request, shared: list[int], own: int, supply: Supply) -> bool:
        """Whether as many blocks as a supply demands remain free behind its own."""
        besides = self.kv.blocks_of(supply.free_tokens)
        return self.kv.can_admit(request, shared, own, supply.tokens, besides)

    def _cached(self, request: Request) -> tuple[list[int], int]:
        """Cached blocks of a waiting request, and the number of its own behind them."""
        known = request.block_keys or request.private is not None
        shared = self.kv.cached_blocks(request) if known else []
        return shared, self.kv.own_blocks(request, len(shared)) if request.kept_blocks else 0

    def _load(self, request: Request, supply: Supply, tokens: int, now_ns: int) -> int:
        """Start the load of an offer for which the head of the queue has blocks."""
        assert self.loads is not None
        self.loads.begin(request, request.computed, supply, now_ns)
        return _LOADING if supply.ready_ns > now_ns else tokens

    def drop_load(self) -> Request | None:
        """Return the request whose load started last to the queue, which frees its blocks."""
        request = None if self.loads is None else self.loads.latest
        if request is not None:
            assert self.loads is not None
            self.loads.remove(request)
            self._back_to_queue(request)
        return request

    def preempt(self, request: Request) -> None:
        """Return a request to the queue; its computed tokens are recomputed, its emitted ones stay."""
        self._leave(request, keep=True)
        self._back_to_queue(request)

    def retract(self, request: Request) -> None:
        """Return a request to the end of the queue: its blocks are dropped, and its tokens whose step's
        outcome is not known."""
        raise NotImplementedError

    def known_outputs(self, request: Request) -> int:
        """Output tokens of a request whose step's outcome is known."""
        raise NotImplementedError

    def _back_to_queue(self, request: Request, at_end: bool = False) -> None:
        request.status = WAITING
        request.computed = 0
        request.preemptions += 1
        self.counters.preemptions += 1
        self._count_waiting(request.priority, 1)
        if at_end:
            self.waiting.push(request)
        else:
            self.waiting.push_front(request)

    def _complete(self, request: Request) -> None:
        """Finish a request that has all its output."""
        self._part_with(request)
        if request.finish_reason is None:
            # At the cap, without a stop by client or model at that length.
            capped = request.generated == self._max_tokens - request.prompt_tokens
            if capped and request.generated not in (request.max_tokens, request.output_tokens):
                request.finish_reason = FinishReason.LENGTH
            else:
                request.finish_reason = FinishReason.STOP

    def _part_with(self, request: Request) -> None:
        """Remove a request for good, from the queue or from the running list."""
        if self.loads is not None and request in self.loads:
            self.loads.remove(request)
        elif request.status is WAITING:
            self.waiting.remove(request)
            self._count_waiting(request.priority, -1)
        else:
            self._leave(request)
        self._withdrawn.pop(request, None)
        self._expect_no_timeout(request)
        request.status = FINISHED

    def _expect_no_timeout(self, request: Request) -> None:
        if request.number >= 0:
            self._deadlines.remove(request)
            request.number = -1
            self._deadlines_changed()

    def _deadlines_changed(self) -> None:
        first_ns = self._deadlines.first_ns
        if not self._let_go or first_ns < self.first_deadline_ns:
            self.first_deadline_ns = first_ns

    # -- bookkeeping ------------------------------------------------------------------------------

    def _count_waiting(self, priority: int, change: int) -> None:
        self._num_waiting += change
        if priority != self._latest_priority or self._latest is None:
            self._latest_priority, self._latest = priority, self._waiting_priorities.get(priority)
            if self._latest is None:
                self._waiting_priorities[priority] = self._latest = _Count()
        self._latest.count += change

    def _note_inversion(self, admitted_priority: int) -> None:
        for priority, waiting in self._waiting_priorities.items():
            if waiting.count and priority < admitted_priority:
                self.counters.priority_inversions += 1
                return


def note_scheduled(admitted: Iterable[Request], now_ns: int) -> None:
    """Record that the step into which requests are admitted begins now."""
    for request in admitted:
        if request.scheduled_ns < 0:
            request.scheduled_ns = now_ns
