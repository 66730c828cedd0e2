"""SGLang's admission: `PrefillAdder` of `schedule_policy.py`, `batch_is_full` and `new_token_ratio` of
`scheduler.py`, as in releases 0.5.6 to 0.5.23.

A pass takes waiting requests as long as free tokens cover each one's prompt and limit beside what the pass
has taken so far, each with its whole limit, and beside a share of every running request's remaining limit. A
refusal shuts admission until a request leaves. The share falls with every step of decodes; it is set from
the decoded share of the limits when requests are retracted, and to its first value when there is nothing to
do.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from blis_py.core.admission_rule import AdmissionRule, Admitted, limit_of
from blis_py.core.config import SchedulerConfig
from blis_py.core.pass_order import MostUrgentFirst, PassOrder
from blis_py.core.request import ENDING, PREFILLING, Request

_LONGEST: Final = 4096
"""Limits count up to this length."""
_INITIAL, _LEAST_SHARE, _STEPS = 0.7, 0.14, 600
"""First share, its least part, and the steps of decodes in which it falls to that."""
AHEAD_TOKENS: Final = 20
"""Output tokens of every request that go on, with which the share is set after a retraction and for which
there is to be room."""
_REFRESHED: Final = 128
"""Waiting requests whose prefixes are refreshed at most."""


class NewTokenRatio(AdmissionRule):
    """The rule of one rank; see the module.

    Requests that ended count as running until a step of decodes is planned, where releases do that
    (`departures_at_decodes`).
    """

    _SHARE_OF_RANKS = 1.0
    """Part of the share that a rank sets aside."""

    def __init__(self, config: SchedulerConfig, instance: Admitted) -> None:
        super().__init__(config, instance)
        factor = config.schedule_conservativeness * self._SHARE_OF_RANKS
        self._initial = min(_INITIAL * factor, 1.0)
        self._least = min(self._initial * _LEAST_SHARE, 1.0)
        self._decay = (self._initial - self._least) / _STEPS
        self._ratio = self._initial
        self._since_tick = 0
        """Step from which on decodes have not been counted."""
        self._rests = False
        self.full = False
        """Whether admission is shut until a request leaves."""
        self._caches = config.prefix_cache != "none" and config.enable_prefix_caching
        self._whole_limits = config.fixed_lengths_reserved
        self._late_departures = config.departures_at_decodes
        self._chunks_count_twice = config.chunks_count_twice
        self._ends_known = config.async_scheduling and not config.late_length_stops
        page = config.block_size
        self._page_needed = page if config.page_reserve in ("needed", "always") else 0
        self._page_always = page if config.page_reserve == "always" else 0
        self._page_charged = 0 if config.page_reserve == "none" else page
        self._gone: list[tuple[int, int, Request]] = []
        """Requests that ended and still count as running: the step planned next then, output tokens."""
        self._passes_from = 0
        """First of the latest steps that computed prompts without one of decodes between them."""
        self._passes_end = -1
        """The step after the latest that computed prompts."""
        # Of the pass being planned.
        self._refresh_every = config.waiting_prefix_refresh if self._caches else 0
        waiting = instance.waiting
        self._order = waiting if isinstance(waiting, PassOrder) else None
        """The queue, if it is sorted in every pass."""
        self._reopens = isinstance(waiting, MostUrgentFirst)
        """Whether every pass looks at the queue, for a request that may interrupt others."""
        self._refreshes = 0
        """Passes with waiting requests so far."""
        self._begun_tick = -1
        self._opens = True
        self._counted = self._slots = self._held = self._taken = self._taken_tokens = 0
        self._free_tokens = self._locking = 0
        self._reserved = -1.0
        """Tokens that running requests may still write, by the share, and those that the pass has taken;
        negative = not counted yet."""
        self._left_by_length: list[tuple[float, int]] | None = None

    # -- the share -------------------------------------------------------------------------------------

    def ratio(self) -> float:
        """The share at the step being planned."""
        tick = self._instance.tick
        if self._rests:
            self._rests, self._since_tick = False, tick
        while self._since_tick < tick and self._ratio > self._least:
            self._ratio = max(self._ratio - self._decay, self._least)
            self._since_tick += 1
        self._since_tick = tick
        return self._ratio

    def rested(self) -> None:
        self._rests, self._ratio = True, self._initial

    def retracted(self, remaining: list[Request]) -> None:
        self.ratio()
        decoded = limits = 0
        for request in remaining:
            decoded += self._instance.known_outputs(request)
            limits += limit_of(request)
        self._ratio = min(1.0, (decoded + AHEAD_TOKENS * len(remaining)) / (limits + 1))
        self._since_tick += 1
        self.full = False

    # -- departures ------------------------------------------------------------------------------------

    def left(self, request: Request) -> None:
        tick = self._instance.tick
        after_pass = self._passes_end == tick
        if request.status is PREFILLING or (after_pass and request.last_tick == tick - 1):
            self.full = False  # not among the running ones yet
        elif request.status is ENDING and self._ends_known and not request.ends_late and not after_pass:
            self.full = False  # no longer among them: its end was foreseen
        else:
            self._gone.append((tick, self._instance.settled_generated(request), request))

    def _let_go(self) -> None:
        """Forget those that no longer count as running."""
        if not self._gone:
            return
        tick = self._instance.tick
        first = tick + 1
        if self._late_departures:
            first = self._passes_from if self._passes_end == tick else tick
        kept = [each for each in self._gone if each[0] >= first]
        if len(kept) < len(self._gone):
            self.full = False
        self._gone = kept

    def skipped(self) -> None:
        if self._late_departures and self._gone:
            self._gone.clear()
            self.full = False

    def forgets_departed(self) -> bool:
        if not self._gone:
            return False
        self._gone.clear()
        self.full = False
        return self._instance.resolved == self._instance.tick  # else a step in flight comes first

    def may_change(self) -> bool:
        return not self.full or self._reopens or bool(self._gone)

    # -- a pass ----------------------------------------------------------------------------------------

    def begin(self, prompts: int) -> bool:
        instance = self._instance
        tick = instance.tick
        if self._begun_tick == tick and self._taken:
            return self._opens
        self._begun_tick = tick
        self._let_go()
        self._slots = len(instance.running)
        self._counted = self._slots - prompts + len(self._gone)
        self._held = 0 if self._chunks_count_twice else prompts
        if self._counted <= 0:
            self.full = False
        self._taken = self._taken_tokens = self._locking = 0
        self._reserved, self._left_by_length = -1.0, None
        self._free_tokens = instance.kv.pool.num_free * self._block_size
        if self._reopens:
            self.full = False
        elif not prompts and not self.full and self._allocatable() <= 0:
            self.full = True
        self._opens = not self.full
        if self._opens or prompts:
            sorts = self._order is not None and self._order.begin_pass()
            if self._refresh_every and not sorts:
                self._refresh_waiting()
        return self._opens

    def _refresh_waiting(self) -> None:
        """In some passes, count the prefixes of waiting requests as used, the first one last."""
        waiting = list(islice(self._instance.waiting, _REFRESHED))
        if waiting:
            if self._refreshes % self._refresh_every == 0:
                for request in reversed(waiting):
                    self._instance.kv.touch(request)
            self._refreshes += 1

    def _allocatable(self) -> int:
        """Requests that the pass may take."""
        return min(self._max_num_seqs - self._counted, self._max_num_seqs - self._slots + self._held)

    def _remaining_tokens(self) -> float:
        """Tokens that neither the pass nor running requests have claimed."""
        if self._reserved < 0:
            self._reserved = self._count_reserve()
        return self._free_tokens - self._reserved

    def _count_reserve(self) -> float:
        ratio = self.ratio()
        shares: list[float] = []
        for request, outputs in self._members():
            share = 1.0 if self._whole_limits and ignores_eos(request) else ratio
            shares.append(min(limit_of(request) - outputs, _LONGEST) * share)
        return float(sum(shares))

    def _members(self) -> list[tuple[Request, int]]:
        """Requests that count as running, in running order, with their output tokens."""
        instance = self._instance
        members = [
            (each, instance.known_outputs(each)) for each in instance.running if each.status is not PREFILLING
        ]
        if self._gone:
            members += [(request, outputs) for _, outputs, request in self._gone]
            members.sort(key=_running_order)
        return members

    def looks(self, budget_tokens: int) -> bool:
        if not self._opens:
            return False
        if not self._late_departures and budget_tokens == 0 and self._has_tokens():
            return False
        if self._taken >= self._allocatable():
            self.full = True
            return False
        return True

    def _has_tokens(self) -> bool:
        return self._remaining_tokens() > 0 and self._free_tokens - self._taken_tokens > 0

    def chunk_tokens(self, budget_tokens: int) -> int:
        tokens = min(budget_tokens, int(self._remaining_tokens()))
        return tokens if tokens > 0 else budget_tokens

    def admits(self, request: Request, uncached_tokens: int) -> bool:
        if not self._caches and ignores_eos(request):
            fits = self._fits_to_the_end(request, uncached_tokens)
        else:
            self._locking = self._instance.kv.idle_match(request) * self._block_size
            limit = min(max(limit_of(request) - request.generated, 0), _LONGEST)
            needed = uncached_tokens + limit + self._page_needed
            fits = needed < self._remaining_tokens() - self._locking
        if not fits and (self._counted or self._taken):
            self.full = True
            return False
        return True  # SGLang cuts the limits of those that an empty pool does not hold

    def _fits_to_the_end(self, request: Request, uncached_tokens: int) -> bool:
        """Without a prefix cache, of a request whose client ignores the end of sequence: whether all that run
        reach their ends, the shortest first, whose tokens are then free."""
        needed = self._paged(uncached_tokens) + self._page_always
        free_tokens = self._free_tokens - self._taken_tokens
        if needed > min(free_tokens, self._remaining_tokens()):
            return False
        states = self._states(request)
        free, count = free_tokens - needed, len(states)
        for i in range(count):
            tokens_left, occupied = states[i]
            if free - tokens_left * (count - i) <= count - i:
                return False
            free += occupied
        return True

    def _states(self, request: Request) -> list[tuple[float, int]]:
        """Tokens left and tokens held of all that run, the request included."""
        own = _state(request, request.generated, 1.0)
        states = self._left_by_length
        if states is None:
            ratio = self.ratio()
            prompts = [(each, each.generated) for each in self._instance.running if each.status is PREFILLING]
            states = own
            for each, outputs in [*self._members(), *prompts]:
                states += _state(each, outputs, 1.0 if ignores_eos(each) else ratio)
            states.sort(key=_tokens_left)
            self._left_by_length = states
        elif own:
            i = 0
            for i in range(len(states)):
                if own[0][0] <= states[i][0]:
                    break
            states[i:i] = own
        return states

    def _paged(self, tokens: int) -> int:
        return -(-tokens // self._block_size) * self._block_size

    def took(self, request: Request, tokens: int) -> None:
        paged = self._paged(tokens)
        complete = request.computed + tokens >= request.num_tokens
        limit = min(limit_of(request), _LONGEST) if complete else 0
        self._reserved += paged + limit + self._page_charged
        self._taken_tokens += paged + self._page_charged
        self._free_tokens -= self._locking
        self._locking = 0
        self._taken += 1

    def goes_on(self, budget_tokens: int) -> bool:
        if not self._has_tokens():
            self.full = True
            return False
        return budget_tokens > 0

    def passed(self, goes_on: bool) -> None:
        tick = self._instance.tick
        self.ratio()
        self._since_tick = tick + 1
        if self._passes_end != tick:
            self._passes_from = tick
        self._passes_end = tick + 1
        if goes_on or not self._counted:
            self.full = False

    # -- KV from elsewhere -----------------------------------------------------------------------------

    def covers(self, request: Request, uncached_tokens: int) -> bool:
        instance = self._instance
        if not instance.running:
            return True
        free = instance.kv.pool.num_free * self._block_size
        needed = uncached_tokens + min(limit_of(request), _LONGEST)
        return needed + self._count_reserve() < free


class NewTokenRatioOfRanks(NewTokenRatio):
    """With attention DP: 0.3 of the share (`schedule_conservativeness` in `_handle_data_parallelism` of
    `server_args.py`)."""

    _SHARE_OF_RANKS = 0.3


def ignores_eos(request: Request) -> bool:
    """Whether a request is known to reach its limit, as those of benchmarks that ignore the end of
    sequence."""
    known = request.output_tokens is not None
    return known and not request.ends_by_eos and request.target == limit_of(request)


def _running_order(member: tuple[Request, int]) -> int:
    return member[0].seq


def _state(request: Request, outputs: int, share: float) -> list[tuple[float, int]]:
    """Tokens left and tokens held of a request, if any are left."""
    tokens_left = limit_of(request) * share - outputs
    return [(tokens_left, request.prompt_tokens + outputs)] if tokens_left > 0 else []


def _tokens_left(state: tuple[float, int]) -> float:
    return state[0]
