"""The scheduler: decides what one engine instance computes in each step.

It plans a step, is told when the step is over, and knows neither SimPy nor torch, nor the time
except for the `now_ns` it is given. The simulator and the engine run this very code:

    step = scheduler.schedule(now_ns)          # what to compute
    ...                                        # the engine computes it, the simulator prices it
    finished = scheduler.finish(step)           # what came of it

The cost of a step is that of its changes: decoding requests are kept as aggregates (`DecodeSet`) and
touched when something happens to them. The simulator may also ask how many steps would look alike
(`repeats`) and finish them all at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from blis_py.core.cache_aware import CacheAwareQueue
from blis_py.core.caches import build_cache
from blis_py.core.checks import check_scheduler_config
from blis_py.core.config import SchedulerConfig
from blis_py.core.decoding import DecodeSet
from blis_py.core.features import StepFeatures
from blis_py.core.policies import PREEMPTION_POLICIES, SCHEDULERS
from blis_py.core.radix_kv import RadixKV
from blis_py.core.request import NEVER_NS, FinishReason, Request, Status

_WAITING, _PREFILLING, _DECODING = Status.WAITING, Status.PREFILLING, Status.DECODING
_STALLED, _FINISHED = Status.STALLED, Status.FINISHED
_NO_FEATURES = StepFeatures()

Prefills = list[tuple[Request, int]]


class Step:
    """A planned step. `Scheduler.decoding` lists the requests that compute one token in it."""

    __slots__ = ("admitted", "features", "preempted", "prefills")

    def __init__(
        self,
        features: StepFeatures,
        prefills: Sequence[tuple[Request, int]] = (),
        admitted: Sequence[Request] = (),
        preempted: Sequence[Request] = (),
    ) -> None:
        self.features = features
        self.prefills = prefills
        """Requests computing (part of) a prompt, with the number of tokens."""
        self.admitted = admitted
        self.preempted = preempted


@dataclass(frozen=True, slots=True)
class Emitted:
    """What a real model emitted in a step; a simulated one has nothing to say."""

    token_ids: Mapping[Request, int] = field(default_factory=dict)
    stopped: Iterable[Request] = ()
    """Requests whose token was an end of sequence or completed a stop string."""


@dataclass(slots=True)
class Counters:
    """Totals over the life of a scheduler."""

    prefill_tokens: int = 0
    preemptions: int = 0
    prefix_queried_tokens: int = 0
    prefix_hit_tokens: int = 0
    priority_inversions: int = 0
    head_of_line_events: int = 0


class Scheduler:
    """Queues, token budget, KV blocks and preemption of one instance.

    Args:
        config: limits and policies.
        track_longest: report the longest context in the features (-1 otherwise).

    Raises:
        InputError: a setting that cannot work.
    """

    def __init__(self, config: SchedulerConfig, track_longest: bool = False) -> None:
        check_scheduler_config(config)
        self.config = config
        self._budget = config.max_num_batched_tokens
        self.waiting = SCHEDULERS[config.scheduler](config)
        self.running: dict[Request, None] = {}
        """In running order: the order of admission."""
        self.kv = build_cache(config)
        self._publish = self.kv.publish if isinstance(self.kv, RadixKV) else None
        self.counters = Counters()
        self.tick = 0
        """Steps finished; the index of the step being planned or executed."""

        self.first_deadline_ns = NEVER_NS
        """No request gives up before this time."""

        self._block_size = config.block_size
        self._pick_victim = PREEMPTION_POLICIES[config.preemption_policy]
        self._running_first = config.batch_former == "running-first"
        # A sequence can be no longer than the pool, or it could never finish.
        self._max_len = min(config.max_model_len, config.num_kv_blocks * config.block_size + 1)
        self._chunk = config.long_prefill_token_threshold or config.max_num_batched_tokens
        self._prefilling: dict[Request, None] = {}
        self._cache_aware: CacheAwareQueue | None = None
        """The waiting queue, if its order depends on the cache."""
        if isinstance(self.waiting, CacheAwareQueue):
            self._cache_aware = self.waiting
            self.waiting.attach(self.kv, self._prefilling, self.counters)
        self._stalled: dict[Request, None] = {}
        self._track_longest = track_longest
        self._decoding = DecodeSet(config.block_size, track_longest)
        self._owed_blocks = 0
        """Blocks the decodes of the planned step need, not yet taken from the pool."""
        self._admissions = 0
        self._deadlines: list[tuple[int, int, Request]] = []
        self._submitted = 0
        self._waiting_priorities: defaultdict[int, int] = defaultdict(int)

    # -- requests come and go ------------------------------------------------------------------

    def add(self, request: Request) -> str | None:
        """Puts a request into the waiting queue, or says why it can never be served here."""
        limit, prompt = request.max_tokens, request.prompt_tokens
        if prompt + (limit or 1) > self._max_len:
            return self._refusal(prompt + (limit or 1))
        target = limit or self._max_len - prompt
        if request.output_tokens is not None and request.output_tokens < target:
            target = request.output_tokens
        request.target = target
        if request.deadline_ns >= 0:
            self._submitted += 1
            heappush(self._deadlines, (request.deadline_ns, self._submitted, request))
            if request.deadline_ns < self.first_deadline_ns:
                self.first_deadline_ns = request.deadline_ns
        self._waiting_priorities[request.priority] += 1
        self.waiting.push(request)
        return None

    def place(self, request: Request, computed: int) -> None:
        """Lets a request run with `computed` of its prompt tokens in the cache, though nobody computed them.

        The next step computes the others. Whoever measures steps gets to any composition like this; call it
        between steps.

        Raises:
            RuntimeError: there is no place for another, or too few blocks are free.
        """
        room = len(self.running) < self.config.max_num_seqs
        if not (room and (computed == 0 or self.kv.admit(request, [], 0, computed))):
            raise RuntimeError(f"no room for {request!r} in {self!r}")
        request.target = request.max_tokens or self._max_len - request.prompt_tokens
        request.computed = request.cached_tokens = computed
        if self._publish is not None:
            self._publish(request)
        request.status = _PREFILLING
        request.seq = self._admissions
        self._admissions += 1
        self.running[request] = self._prefilling[request] = None

    def _refusal(self, longest: int) -> str:
        if longest > self.config.max_model_len:
            return f"needs {longest} tokens, max_model_len is {self.config.max_model_len}"
        blocks = -(-(longest - 1) // self._block_size)
        return f"needs {blocks} KV blocks, the pool has {self.config.num_kv_blocks}"

    def expire(self, now_ns: int) -> list[Request]:
        """Drops the requests whose deadline has come; call it between steps."""
        expired, deadlines = [], self._deadlines
        while deadlines and (deadlines[0][0] <= now_ns or deadlines[0][2].status is _FINISHED):
            request = heappop(deadlines)[2]
            if request.status is not _FINISHED:
                self.abort(request, FinishReason.TIMEOUT)
                expired.append(request)
        self.first_deadline_ns = deadlines[0][0] if deadlines else NEVER_NS
        return expired

    def abort(self, request: Request, reason: FinishReason = FinishReason.ABORT) -> None:
        """Drops a request, waiting or running; call it between steps."""
        if request.status is _WAITING:
            self.waiting.remove(request)
            self._waiting_priorities[request.priority] -= 1
        else:
            self._leave_running(request)
            self.kv.release(request)
        request.status, request.finish_reason = _FINISHED, reason

    # -- one step ------------------------------------------------------------------------------

    def schedule(self, now_ns: int) -> Step | None:
        """Plans the next step, or returns None when there is nothing to compute.

        Allocates the blocks the step needs and, if there are too few, preempts.
        """
        if not (self.waiting or self._prefilling or self._stalled):
            decoding, tick = self._decoding, self.tick
            decodes = decoding.count
            if decodes == 0:
                return None
            blocks = decoding.crossings[tick % self._block_size]
            if decodes <= self._budget and blocks <= self.kv.pool.num_free:
                self._owed_blocks = blocks
                kv_tokens = decoding.base_sum + decodes * tick
                longest = decoding.longest(tick) if self._track_longest else -1
                return Step(StepFeatures(0, 0, 0, 0, 0.0, decodes, kv_tokens, longest, decodes))
        prefills: Prefills = []
        step = Step(_NO_FEATURES, prefills, [], [])
        if self._running_first:
            budget = self._plan_running(step, prefills, self._budget)
            if self.waiting and not step.preempted:
                self._admit_waiting(step, prefills, budget, now_ns)
        else:
            budget = self._continue_prefills(prefills, self._budget)
            if self.waiting and len(prefills) == len(self._prefilling):
                budget = self._admit_waiting(step, prefills, budget, now_ns)
            self._plan_running(step, prefills, budget)
        if not prefills and not self._decoding.count:
            raise RuntimeError(f"the scheduler is stuck: {self!r}")  # work-conserving by construction
        for request in step.admitted:
            if request.scheduled_ns < 0:
                request.scheduled_ns = now_ns
        step.features = self._features(prefills)
        return step

    def finish(self, step: Step, steps: int = 1, emitted: Emitted | None = None) -> list[Request]:
        """Applies the outcome of a step, or of `steps` alike ones; returns the requests that finished.

        A request whose computed tokens have reached its length emits one token. `steps` may not
        exceed `repeats(step)`.
        """
        pool, decoding, tick = self.kv.pool, self._decoding, self.tick
        blocks = self._owed_blocks
        if steps > 1:
            blocks += decoding.blocks_for(tick + 1, steps - 1)
        if blocks:
            pool.reserve(blocks)
            self._owed_blocks = 0
        self.tick = pool.tick = tick = tick + steps
        finished = self._finish_prefills(step.prefills, tick) if step.prefills else []
        finishing = decoding.finishing
        if finishing and finishing[0][0] <= tick:
            finished += decoding.due(tick)
        if emitted is not None:
            finished += self._apply(emitted)
        if len(finished) > 1:
            finished.sort(key=_running_order)
        for request in finished:
            self._complete(request)
        return finished

    def _finish_prefills(self, prefills: Sequence[tuple[Request, int]], tick: int) -> list[Request]:
        """Who has its whole prompt in the cache begins to decode; returns those who need not."""
        finished, publish = [], self._publish
        for request, tokens in prefills:
            self.counters.prefill_tokens += tokens
            request.computed = computed = request.computed + tokens
            if publish is not None:
                publish(request)
            if computed < request.prompt_tokens + request.generated:
                continue
            del self._prefilling[request]
            request.generated += 1
            if request.first_tick < 0:
                request.first_tick = tick - 1
            else:
                self._note_gap(request, tick - 1)
            request.last_tick = tick - 1
            if request.generated < request.target:
                self._decoding.start(request, tick)
            else:
                finished.append(request)
        return finished

    def repeats(self, step: Step) -> int:
        """How many steps, this one included, are alike if nobody arrives or gives up.

        For that many steps the same requests decode one token each, nobody finishes before the
        last of them, every block allocation succeeds, and whoever waits goes on waiting: free
        blocks only become fewer, so a head of the queue that does not fit now will not fit then.
        """
        if step.prefills or step.preempted:
            return 1
        decoding, tick = self._decoding, self.tick
        steps = decoding.next_finish_tick() - tick
        if steps == 1:
            return 1
        free = self.kv.pool.num_free - self._owed_blocks
        if self._cache_aware and self._cache_aware.looks_at_cache and self._room_to_admit():
            # What is evicted may put another request, one that fits, at the head of the queue.
            if not self._running_first and decoding.crossings[tick % self._block_size]:
                return 1  # it was asked before this step's decodes took blocks
            free = max(min(free, self.kv.pool.num_blank - self._owed_blocks), 0)
        return 1 + decoding.steps_within(tick + 1, free, steps - 1)

    def _room_to_admit(self) -> bool:
        """Whether whoever waits, waits for blocks: places and token budget are left in a decode step."""
        budget_left = not self._running_first or self._decoding.count < self._budget
        return budget_left and len(self.running) < self.config.max_num_seqs

    def next_change_ns(self, now_ns: int) -> int:
        """Earliest time at which a step boundary may bring a change that depends on time alone."""
        change = self.waiting.next_change_ns(now_ns) if self.waiting else None
        return self.first_deadline_ns if change is None else min(change, self.first_deadline_ns)

    # -- what the driver may look at -------------------------------------------------------------

    @property
    def decoding(self) -> Iterator[Request]:
        """The requests that decode in the current step, in running order."""
        return (request for request in self.running if request.status is _DECODING)

    @property
    def decode_tokens(self) -> int:
        """Tokens computed by decoding requests so far."""
        return self._decoding.computed_tokens(self.tick)

    def blocks_in_use(self, steps: int = 1) -> int:
        """Blocks in use during the last of `steps` steps like the one just planned."""
        more = self._decoding.blocks_for(self.tick + 1, steps - 1) if steps > 1 else 0
        return self.kv.pool.in_use + self._owed_blocks + more

    def settle(self, request: Request) -> None:
        """Brings `computed`, `generated` and the block table of a decoding request up to date.

        During a step, too, it gets what it had when the step began.
        """
        if request.status is _DECODING:
            request.computed = request.base + self.tick
            request.generated = request.computed + 1 - request.prompt_tokens
            request.last_tick = self.tick - 1
            self.kv.settle(request, request.computed)

    def block_table(self, request: Request) -> list[int]:
        """The blocks of a request that computes tokens in the planned step, these tokens included."""
        if self._owed_blocks:
            self.kv.pool.reserve(self._owed_blocks)
            self._owed_blocks = 0
        if request.status is _DECODING:
            self.kv.settle(request, request.base + self.tick, in_step=1)
        return request.block_table

    def __repr__(self) -> str:
        return (
            f"Scheduler(step {self.tick}: {len(self.running)} running, {len(self.waiting)} waiting, "
            f"{self.kv.pool.num_free} of {self.kv.pool.total} blocks free)"
        )

    def check(self) -> None:
        """Raises `AssertionError` unless every block is either free or held by a running request.

        To be called between steps; settles all requests, so it costs a walk.
        """
        for request in self.running:
            self.settle(request)
        held = [block for request in self.running for block in request.block_table]
        assert not self.kv.pool.num_reserved, "blocks were taken for nobody"
        for request in self.running:
            expected = -(-request.computed // self._block_size)
            assert len(request.block_table) == expected, f"{request!r} holds a wrong number of blocks"
        self.kv.pool.check(held)

    # -- planning --------------------------------------------------------------------------------

    def _plan_running(self, step: Step, prefills: Prefills, budget: int) -> int:
        """Every running request that has no tokens in the step yet; returns the budget left."""
        decodes = self._decoding.count
        if decodes <= budget and not self._stalled:
            free = self.kv.pool.num_free
            blocks = self._decoding.crossings[self.tick % self._block_size]
            if blocks <= free:
                chunks: Prefills | None = []
                if self._prefilling:
                    chunks = self._plan_chunks(prefills, budget - decodes, free - blocks)
                if chunks is not None:
                    if blocks:
                        self.kv.pool.reserve(blocks)
                    for request, tokens in chunks:
                        self.kv.extend(request, tokens)
                        budget -= tokens
                    prefills += chunks
                    return budget - decodes
        return self._walk_running(step, prefills, budget)

    def _plan_chunks(self, prefills: Prefills, budget: int, free: int) -> Prefills | None:
        """The next chunk of each unfinished prefill, all decodes being served; None if order matters."""
        chunks: Prefills = []
        if not self._running_first:
            return chunks if len(prefills) == len(self._prefilling) else None
        for request in self._prefilling:
            wanted = min(request.num_tokens - request.computed, self._chunk)
            if wanted > budget and next(iter(self._prefilling)).seq < self._decoding.last_seq:
                return None  # a decode behind this prefill would find the budget spent
            tokens = min(wanted, budget)
            free -= self.kv.shortfall(request, tokens)
            if free < 0:
                return None
            budget -= tokens
            if tokens:
                chunks.append((request, tokens))
        return chunks

    def _walk_running(self, step: Step, prefills: Prefills, budget: int) -> int:
        """The general case, in running order: too little budget for all, or too few blocks."""
        granted = dict(prefills)
        preempted: list[Request] = []
        order = list(self.running)
        i = 0
        while i < len(order) and budget > 0:
            request = order[i]
            if request in granted:
                i += 1
                continue
            tokens = self._wanted(request, budget)
            while not self._allocate(request, tokens):
                victims = self._victims(order, step, granted)
                for victim in victims:
                    v = order.index(victim)
                    del order[v]
                    i -= v < i
                    budget += granted.get(victim, 0)
                    self._preempt(victim, in_step=granted.pop(victim, 0) > 0)
                preempted += victims
                if request in victims:
                    break
            else:
                granted[request] = tokens
                budget -= tokens
                i += 1
                continue
            if granted:
                break  # it gave up its own place; those behind it wait for the next step
        prefills[:] = [(r, n) for r, n in granted.items() if r.status is _PREFILLING]
        step.admitted = [r for r in step.admitted if r in granted]
        step.preempted = preempted
        self._stall_all_but(granted, order)
        return budget

    def _victims(self, order: list[Request], step: Step, granted: Mapping[Request, int]) -> list[Request]:
        """Whom to preempt so that an allocation may succeed."""
        victim = order[self._pick_victim(order)]
        if victim.status is not _PREFILLING or victim not in granted:
            return [victim]
        # Whoever was admitted after it in this very step may share blocks it will now not compute.
        return [*reversed([r for r in step.admitted if r.seq > victim.seq and r in granted]), victim]

    def _stall_all_but(self, granted: Mapping[Request, int], order: list[Request]) -> None:
        """Keeps the decode aggregates to those that really compute a token in this step."""
        for request in order:
            if request.status is _DECODING and request not in granted:
                self._decoding.stop(request, self.tick)
                self.kv.settle(request, request.computed)
                request.status = _STALLED
                self._stalled[request] = None
            elif request.status is _STALLED and request in granted:
                del self._stalled[request]
                self._decoding.start(request, self.tick)
                self._note_gap(request, self.tick)

    def _wanted(self, request: Request, budget: int) -> int:
        """Tokens the request may compute in this step. Never beyond max_model_len: lengths are capped."""
        if request.status is not _PREFILLING:
            return 1
        return min(request.num_tokens - request.computed, self._chunk, budget)

    def _allocate(self, request: Request, tokens: int) -> bool:
        if request.status is _PREFILLING:
            return self.kv.extend(request, tokens)
        context = request.computed if request.status is _STALLED else request.base + self.tick
        if context % self._block_size:
            return True
        if not self.kv.pool.num_free:
            return False
        self.kv.pool.reserve(1)
        return True

    def _continue_prefills(self, prefills: Prefills, budget: int) -> int:
        """Prefill-first: prompts longer than the budget go on before anything else.

        While one of them lacks blocks, nobody is admitted past it.
        """
        for request in list(self._prefilling):
            tokens = self._wanted(request, budget)
            if tokens and self.kv.extend(request, tokens):
                prefills.append((request, tokens))
                budget -= tokens
        return budget

    def _admit_waiting(self, step: Step, prefills: Prefills, budget: int, now_ns: int) -> int:
        """Waiting requests from the head, until one does not fit; returns the budget left."""
        waiting, running, counts = self.waiting, self.running, self._waiting_priorities
        max_num_seqs = self.config.max_num_seqs
        admitted: list[Request] = []
        while waiting and budget > 0 and len(running) < max_num_seqs:
            request = waiting.head(now_ns)
            tokens = 0 if request is None else self._admit(request, budget)
            if request is None or tokens == 0:
                break
            waiting.pop_head(now_ns)
            counts[request.priority] -= 1
            if waiting:
                self._note_inversion(request.priority)
            request.status = _PREFILLING
            request.seq = self._admissions
            self._admissions += 1
            running[request] = self._prefilling[request] = None
            admitted.append(request)
            prefills.append((request, tokens))
            budget -= tokens
        step.admitted = admitted
        return budget

    def _note_inversion(self, admitted_priority: int) -> None:
        for priority, count in self._waiting_priorities.items():
            if count and priority < admitted_priority:
                self.counters.priority_inversions += 1
                return

    def _admit(self, request: Request, budget: int) -> int:
        """Tokens the request at the head of the queue computes in this step; 0 if it must wait."""
        kv = self.kv
        shared = kv.cached_blocks(request) if request.block_keys else []
        own = kv.own_blocks(request, len(shared)) if request.kept_blocks else 0
        start = (len(shared) + own) * self._block_size
        wanted = request.prompt_tokens + request.generated - start
        tokens = min(wanted, min(self._chunk, budget))
        if tokens < wanted and not self._running_first and budget < self._budget:
            return 0  # prefill-first takes whole prompts; one longer than any step begins a step
        if not kv.admit(request, shared, own, tokens):
            if not request.blocked_at_head and len(self.waiting) > 1:
                request.blocked_at_head = True
                self.counters.head_of_line_events += 1
            return 0
        request.computed = start
        if request.cached_tokens < 0:
            request.cached_tokens = start
            self.counters.prefix_queried_tokens += request.prompt_tokens
            self.counters.prefix_hit_tokens += start
        return tokens

    def _features(self, prefills: Sequence[tuple[Request, int]]) -> StepFeatures:
        """What the planned step consists of."""
        decoding, tick = self._decoding, self.tick
        decodes = rows = decoding.count
        kv_tokens = decoding.base_sum + decodes * tick
        tokens = pairs = past_tokens = 0
        prompt_pairs = 0.0
        for request, new in prefills:
            past, length = request.computed, request.prompt_tokens + request.generated
            tokens += new
            pairs += new * past + new * (new + 1) // 2
            past_tokens += past
            prompt_pairs += new * (length + new / 2)
            if past + new == length:
                rows += 1
        longest = -1
        if self._track_longest:
            longest = max(decoding.longest(tick), *(request.computed for request, _ in prefills), 0)
        return StepFeatures(
            len(prefills), tokens, pairs, past_tokens, prompt_pairs, decodes, kv_tokens, longest, rows
        )

    # -- transitions -----------------------------------------------------------------------------

    def _preempt(self, request: Request, in_step: bool) -> None:
        """Back to the queue; what it had computed is computed again, what it had emitted stays."""
        self._leave_running(request)
        self.kv.settle(request, request.computed, in_step)  # a granted token may have brought a block
        self.kv.release(request, keep=True)
        request.status = _WAITING
        request.computed = 0
        request.preemptions += 1
        self.counters.preemptions += 1
        self._waiting_priorities[request.priority] += 1
        self.waiting.push_front(request)

    def _leave_running(self, request: Request) -> None:
        if request.status is _DECODING:
            self._decoding.stop(request, self.tick)
        elif request.status is _PREFILLING:
            self._prefilling.pop(request, None)
        else:
            del self._stalled[request]
        del self.running[request]

    def _complete(self, request: Request) -> None:
        if request.status is _DECODING:
            self._decoding.stop(request, self.tick)
        del self.running[request]
        self.kv.release(request)
        request.status = _FINISHED
        if request.finish_reason is None:
            # At the cap, and neither the client nor the model wanted to stop there.
            capped = request.generated == self._max_len - request.prompt_tokens
            if capped and request.generated not in (request.max_tokens, request.output_tokens):
                request.finish_reason = FinishReason.LENGTH
            else:
                request.finish_reason = FinishReason.STOP

    def _apply(self, emitted: Emitted) -> list[Request]:
        """Stores real token ids; returns the requests the model itself stopped."""
        for request, token in emitted.token_ids.items():
            if request.output_ids is None:
                request.output_ids = []
            request.output_ids.append(token)
        stopped = []
        for request in emitted.stopped:
            request.finish_reason = FinishReason.STOP
            self.settle(request)
            if request.generated < request.target:
                stopped.append(request)
        return stopped

    def _note_gap(self, request: Request, step: int) -> None:
        if step > request.last_tick + 1:
            if request.gaps is None:
                request.gaps = []
            request.gaps.append((request.last_tick, step))


def _running_order(request: Request) -> int:
    return request.seq
