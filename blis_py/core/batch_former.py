"""Batch formation: how many tokens each request computes in a step, and which are preempted when blocks run
out.

A batch former is a class and one line in `batch_formers.BATCH_FORMERS`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from blis_py.core.admission_rule import AdmissionRule
from blis_py.core.config import SchedulerConfig
from blis_py.core.decoding import DecodeSet
from blis_py.core.emission import Bursts
from blis_py.core.kv import KVCache
from blis_py.core.lifecycle import Lifecycle
from blis_py.core.policies import PREEMPTION_POLICIES
from blis_py.core.prefill_cadence import PrefillCadence
from blis_py.core.request import DECODING, ENDING, PREFILLING, STALLED, Request
from blis_py.core.state_chunks import state_chunks
from blis_py.core.step import Prefills, Step


class Running:
    """The running requests of an instance by their next action. `Lifecycle.running` has all of them, in
    order."""

    def __init__(self, decoding: DecodeSet, bursts: Bursts | None = None) -> None:
        self.prefilling: dict[Request, None] = {}
        """Prompts not fully computed yet; also, because they too are handled one by one, all requests whose
        decode steps may emit several tokens."""
        self.bursts = bursts
        self.resolved = 0
        """Steps whose outcome was known when the last one was planned."""
        self.decoding = decoding
        self.stalled: dict[Request, None] = {}
        """Decoding requests that the budget did not reach."""
        self.ending: dict[Request, int] = {}
        """Requests whose last step has been launched and whose outcome is not known yet. With the number of
        steps after which their last computed token is known to the engine."""


class BatchFormer:
    """Composition of steps from one instance's requests, under its token budget.

    Args:
        kv: the KV cache of the instance.
        running: its running requests.
    """

    def __init__(self, config: SchedulerConfig, kv: KVCache, running: Running) -> None:
        self._kv = kv
        self._grouped = kv.grouped
        self._running = running
        self._budget_tokens = config.max_num_batched_tokens
        self._chunk = config.long_prefill_token_threshold or config.max_num_batched_tokens
        self._keeps_ending = config.blocks_await_outcome
        self._ends_with_itself = config.self_preemption_ends_step
        self._skips_next = config.preemption_skips_next
        self._planned_stays = config.planned_content_stays
        self._block_size = config.block_size
        self._state_chunks = state_chunks(config, kv)
        self._pick_victim = PREEMPTION_POLICIES[config.preemption_policy]
        self.decode_tokens = config.max_num_batched_tokens
        """Most decodes of a step."""
        self.opens_tick = 0
        """Step from which waiting requests are looked at again."""
        self.rule: AdmissionRule | None = None
        """Rule of admission; None = blocks for the first step are enough."""

        self.cadence: PrefillCadence | None = None
        """Steps that may compute prompts; None = all."""
        self.held = False
        """Whether this step computes no prompts for that."""
        self.serves_running = self.continues_prompts = False
        """Whether the step computes anything of running requests, and anything of their prompts."""

    @property
    def admits_first(self) -> bool:
        """Whether waiting requests are admitted before the decodes of this step take blocks and budget."""
        return False

    def hold(self, until_tick: int) -> bool:
        """Admit no waiting request before this step; whether that is a change."""
        return False

    def fill(self, step: Step, prefills: Prefills, life: Lifecycle, tick: int, now_ns: int) -> None:
        """Distribute the budget of step `tick`.

        Args:
            prefills: the step's list, which is appended to.
            life: the queue of waiting requests, which also receives the preempted ones.
        """
        raise NotImplementedError

    def first_tokens(self, uncomputed: int, budget_tokens: int) -> int:
        """Tokens that a waiting request lacking `uncomputed` tokens computes in its first step."""
        return min(uncomputed, min(self._chunk, budget_tokens))

    def budgeted_tokens(self, tokens: int) -> int:
        """Tokens of the budget that a prompt's tokens take."""
        return tokens

    # -- running requests ----------------------------------------------------------------------------

    def _serve_running(
        self, step: Step, prefills: Prefills, life: Lifecycle, budget_tokens: int, tick: int
    ) -> int:
        """Serve every running request that has no tokens in the step yet; returns the budget left."""
        running = self._running
        decodes = running.decoding.count
        if decodes <= budget_tokens and not running.stalled:
            free = self._kv.pool.num_free
            blocks = running.decoding.crossings[tick % self._block_size] * self._kv.per_crossing
            if blocks <= free:
                if not running.prefilling or (self.held and running.bursts is None):
                    if self._grouped:
                        self._plan_by_groups((), tick)
                    elif blocks:
                        self._kv.pool.reserve(blocks)
                    return budget_tokens - decodes
                chunks = self._next_chunks(prefills, budget_tokens - decodes, free - blocks)
                if chunks is not None and self._grouped:
                    self._plan_by_groups(chunks, tick)
                    prefills += chunks
                    return budget_tokens - decodes - sum(tokens for _, tokens in chunks)
                if chunks is not None:
                    if blocks:
                        self._kv.pool.reserve(blocks)
                    for request, tokens in chunks:
                        self._kv.extend(request, tokens, self._doubtful(request))
                        budget_tokens -= tokens
                    prefills += chunks
                    return budget_tokens - decodes
        return self._walk_running(step, prefills, life, budget_tokens, tick)

    def _plan_by_groups(self, chunks: Iterable[tuple[Request, int]], tick: int) -> None:
        """Take and free the blocks of decodes and of chunks of prompts, for several groups of layers."""
        running = self._running
        every = [(request, tokens, self._doubtful(request)) for request, tokens in chunks]
        self._kv.plan_step(running.decoding, tick, every, running.resolved < tick)

    def _next_chunks(self, prefills: Prefills, budget_tokens: int, free: int) -> Prefills | None:
        """The next chunk of each unfinished prefill when all decodes are served; None if order matters."""
        raise NotImplementedError

    def _walk_running(
        self, step: Step, prefills: Prefills, life: Lifecycle, budget_tokens: int, tick: int
    ) -> int:
        """The general case, in running order: too little budget for all, or too few blocks."""
        granted = dict(prefills)
        preempted: list[Request] = []
        order = list(life.running)
        i = 0
        while i < len(order) and budget_tokens > 0:
            request = order[i]
            if request in granted or request.status is ENDING or self._is_held(request):
                i += 1
                continue
            tokens = self._chunk_of(request, budget_tokens)
            if tokens == 0:
                i += 1
                continue
            while not self._allocate(request, tokens, tick):
                if not self._keeps_ending and self._free_ending():
                    continue
                if life.loads is not None and len(_not_ending(order)) == 1:
                    dropped = life.drop_load()
                    if dropped is not None:
                        preempted.append(dropped)
                        continue
                victims = self._victims(order, step, granted)
                for victim in victims:
                    v = order.index(victim)
                    del order[v]
                    if v < i and (victim in granted or not self._skips_next):
                        i -= 1
                    planned = granted.pop(victim, 0)
                    budget_tokens += planned
                    if planned:
                        self._claim(victim, planned, tick)
                    life.preempt(victim)
                preempted += victims
                if request in victims:
                    break
            else:
                granted[request] = tokens
                budget_tokens -= tokens
                i += 1
                continue
            if self._ends_with_itself:
                break  # it preempted itself
        prefills[:] = [(r, n) for r, n in granted.items() if r.status is PREFILLING]
        step.admitted = [r for r in step.admitted if r in granted]
        step.preempted = preempted
        self._stall_all_but(granted, order, tick)
        return budget_tokens

    def _is_held(self, request: Request) -> bool:
        return self.held and request.status is PREFILLING and not request.bursting

    def _chunk_of(self, request: Request, budget_tokens: int) -> int:
        """Tokens the request may compute in this step. Never beyond max_model_len, since lengths are
        capped."""
        if request.status is not PREFILLING:
            return 1
        return self.cut(request, request.computed, min(self._lacking(request), self._chunk, budget_tokens))

    def cut(self, request: Request, computed: int, tokens: int) -> int:
        """Tokens of a chunk that may have so many, where states have to be kept at its end."""
        chunks = self._state_chunks
        return tokens if chunks is None or not tokens else chunks.tokens(request, computed, tokens)

    def _lacking(self, request: Request) -> int:
        """Tokens a request computes before it emits; if it decodes in bursts, those it can use."""
        if self._running.bursts is not None and request.bursting:
            return self._running.bursts.rows(request, self._running.resolved)
        return request.num_tokens - request.computed

    def _doubtful(self, request: Request) -> int:
        """Positions of drafts in flight that count as computed until they are known to be rejected."""
        running = self._running
        return 0 if running.bursts is None else running.bursts.doubtful(request, running.resolved)

    def _allocate(self, request: Request, tokens: int, tick: int) -> bool:
        if request.status is PREFILLING:
            return self._kv.extend(request, tokens, self._doubtful(request))
        context = request.computed if request.status is STALLED else request.base + tick
        if self._grouped:
            in_flight = request.status is not STALLED and self._running.resolved < tick
            return self._kv.extend_decode(request, context, in_flight)
        if context % self._block_size:
            return True
        if not self._kv.pool.num_free:
            return False
        self._kv.pool.reserve(1)
        return True

    def _victims(self, order: list[Request], step: Step, granted: Mapping[Request, int]) -> list[Request]:
        """Requests to preempt so that an allocation may succeed."""
        candidates = order if self._keeps_ending else _not_ending(order)
        victim = candidates[self._pick_victim(candidates)]
        if victim.status is not PREFILLING or victim not in granted:
            return [victim]
        # Requests admitted after it in this step may share blocks that it will not compute now.
        return [*reversed([r for r in step.admitted if r.seq > victim.seq and r in granted]), victim]

    def _free_ending(self) -> bool:
        """Free the pages of a request whose last step has been launched, if there is any.

        The forward pass that still reads them precedes the one that will write.
        """
        for request in self._running.ending:
            if request.block_table and not request.keeps_blocks:
                self._kv.release(request)
                request.computed = 0
                return True
        return False

    def _claim(self, request: Request, planned: int, tick: int) -> None:
        """Turn the block reserved for its token in this step into its own, so that it is freed with it.

        Args:
            planned: tokens of the request in this step.
        """
        context = request.base + tick if request.status is DECODING else request.computed
        self._kv.settle(request, context, in_step=1)
        if not self._planned_stays:
            return
        running = self._running
        if request.status is not PREFILLING:
            in_flight = running.resolved < tick and request.status is DECODING
            request.known = context if in_flight else context + 1
        elif request.bursting:
            request.known = request.num_tokens - request.in_flight(running.resolved)
        else:
            request.known = request.computed + planned

    def _stall_all_but(self, granted: Mapping[Request, int], order: list[Request], tick: int) -> None:
        """Restrict the decode aggregates to the requests that compute a token in this step."""
        running = self._running
        for request in order:
            if request.status is DECODING and request not in granted:
                running.decoding.stop(request, tick)
                self._kv.settle(request, request.computed)
                request.status = STALLED
                running.stalled[request] = None
            elif request.status is STALLED and request in granted:
                del running.stalled[request]
                running.decoding.start(request, tick)
                request.note_gap(tick)

    # -- waiting requests ----------------------------------------------------------------------------

    def _admit(
        self,
        step: Step,
        prefills: Prefills,
        life: Lifecycle,
        budget_tokens: int,
        now_ns: int,
        only_arrived: bool = False,
    ) -> int:
        """Admit waiting requests from the head, until one does not fit; returns the budget left."""
        admitted = life.admit(budget_tokens, now_ns, only_arrived)
        if not admitted:
            return budget_tokens
        step.admitted = [request for request, _ in admitted]
        prefills += admitted
        for _, tokens in admitted:
            budget_tokens -= tokens
        return budget_tokens


class RunningFirst(BatchFormer):
    """vLLM's order: decodes and unfinished prompts in running order, then waiting requests. Prompts are
    chunked."""

    def __init__(self, config: SchedulerConfig, kv: KVCache, running: Running) -> None:
        super().__init__(config, kv, running)
        self._threshold_tokens = config.long_prefill_token_threshold
        self._adapts = config.long_prefill_token_threshold_adaptive
        self._spares_lone = config.lone_prefill_has_no_threshold
        self._least_held = 1 if config.prefill_interval_holds_last_tokens else 2
        """Tokens that a waiting request lacks, at least, to be held."""
        if config.prefill_schedule_interval > 1 and not config.prefill_interval_needs_ranks:
            self.cadence = PrefillCadence(config.prefill_schedule_interval)

    def fill(self, step: Step, prefills: Prefills, life: Lifecycle, tick: int, now_ns: int) -> None:
        if self._threshold_tokens and (self._adapts or self._spares_lone):
            self._chunk = self._longest_chunk(len(life.running) + life.queue_depth)
        if self.cadence is not None:
            self._hold_prompts(self.cadence, life, tick)
        budget_tokens = self._serve_running(step, prefills, life, self._budget_tokens, tick)
        if life.has_candidates and not step.preempted:
            if self._running.bursts is not None:
                self.serves_running = bool(prefills) or self._running.decoding.count > 0
                self.continues_prompts = any(not request.bursting for request, _ in prefills)
            self._admit(step, prefills, life, budget_tokens, now_ns)
        if self.cadence is not None and not self.held:
            if not step.preempted:
                self.cadence.crowded = any(not _is_deferred(request) for request in life.waiting)
            if any(self._counts_as_prompt(request, step) for request, _ in prefills):
                self.cadence.computed_prompts(tick)

    def first_tokens(self, uncomputed: int, budget_tokens: int) -> int:
        if self.held and uncomputed >= self._least_held:
            return 0
        return min(uncomputed, min(self._chunk, budget_tokens))

    def _counts_as_prompt(self, request: Request, step: Step) -> bool:
        """Whether a request begins the interval anew: one that goes on with its prompt, or one admitted with
        more than its last token to compute."""
        if request in step.admitted:
            return request.num_tokens - request.computed > 1
        return not request.bursting

    def _longest_chunk(self, requests: int) -> int:
        """Longest chunk of a prompt while so many requests run or wait."""
        if self._spares_lone and requests <= 1:
            return self._budget_tokens
        if self._adapts:
            return max(self._threshold_tokens, self._budget_tokens // max(requests, 1))
        return self._threshold_tokens

    def _hold_prompts(self, cadence: PrefillCadence, life: Lifecycle, tick: int) -> None:
        """Decide whether this step computes no prompts; without decodes it always may."""
        self.opens_tick = cadence.opens_tick(tick)
        prompts = sum(not request.bursting for request in self._running.prefilling)
        self.held = self.opens_tick > tick and len(life.running) > prompts

    def _next_chunks(self, prefills: Prefills, budget_tokens: int, free: int) -> Prefills | None:
        chunks: Prefills = []
        prefilling, last_decode = self._running.prefilling, self._running.decoding.last_seq
        for request in prefilling:
            if self.held and not request.bursting:
                continue
            uncomputed = min(self._lacking(request), self._chunk)
            if uncomputed == 0:
                continue
            if uncomputed > budget_tokens and next(iter(prefilling)).seq < last_decode:
                return None  # a decode behind this prefill would have no budget left
            tokens = self.cut(request, request.computed, min(uncomputed, budget_tokens))
            if not tokens:
                continue
            free -= max(self._kv.shortfall(request, tokens + self._doubtful(request)), 0)
            if free < 0:
                return None
            budget_tokens -= tokens
            if tokens:
                chunks.append((request, tokens))
        return chunks


class PrefillFirst(BatchFormer):
    """Waiting prompts before running decodes, both in the same step. Prompts are not chunked.

    A prompt longer than any step starts a step and continues before anything else; while it lacks blocks, no
    request is admitted past it.
    """

    @property
    def admits_first(self) -> bool:
        return True

    def fill(self, step: Step, prefills: Prefills, life: Lifecycle, tick: int, now_ns: int) -> None:
        prompts = self._prompts()
        budget_tokens = self._continue_prefills(prompts, prefills, self._budget_tokens)
        if life.has_candidates and len(prefills) == len(prompts):
            budget_tokens = self._admit(step, prefills, life, budget_tokens, now_ns)
        self._serve_running(step, prefills, life, budget_tokens, tick)

    def first_tokens(self, uncomputed: int, budget_tokens: int) -> int:
        tokens = super().first_tokens(uncomputed, budget_tokens)
        return 0 if tokens < uncomputed and budget_tokens < self._budget_tokens else tokens

    def _prompts(self) -> list[Request]:
        """Requests with an unfinished prompt."""
        if self._running.bursts is None:
            return list(self._running.prefilling)
        return [request for request in self._running.prefilling if not request.bursting]

    def _continue_prefills(self, prompts: list[Request], prefills: Prefills, budget_tokens: int) -> int:
        for request in prompts:
            tokens = self._chunk_of(request, budget_tokens)
            if tokens and self._kv.extend(request, tokens):
                prefills.append((request, tokens))
                budget_tokens -= tokens
        return budget_tokens

    def _next_chunks(self, prefills: Prefills, budget_tokens: int, free: int) -> Prefills | None:
        return [] if len(prefills) == len(self._running.prefilling) else None


class InFlight(RunningFirst):
    """TensorRT-LLM's order: decodes, then whole prompts, in one step. A prompt that does not fit waits; only
    one longer than any step is computed in pieces. Prompts may wait a few steps for others to share
    theirs."""

    def __init__(self, config: SchedulerConfig, kv: KVCache, running: Running) -> None:
        super().__init__(config, kv, running)
        self._wait_steps = config.prompt_wait_steps
        self._enough_tokens = config.prompt_wait_share * config.max_num_batched_tokens
        self._waits_since = -1
        self._held_until = 0

    def fill(self, step: Step, prefills: Prefills, life: Lifecycle, tick: int, now_ns: int) -> None:
        if self._held_until > tick or (self._wait_steps and life.has_candidates and self._waits(life, tick)):
            self._serve_running(step, prefills, life, self._budget_tokens, tick)
            return
        super().fill(step, prefills, life, tick, now_ns)

    def hold(self, until_tick: int) -> bool:
        if until_tick == self._held_until:
            return False
        self._held_until = self.opens_tick = until_tick
        return True

    def _waits(self, life: Lifecycle, tick: int) -> bool:
        """Whether waiting prompts hold for more of them."""
        decodes = self._running.decoding.count
        if self._waits_since < 0:
            self._waits_since = tick
        waited = tick - self._waits_since
        if decodes and waited < self._wait_steps and not self._enough(life, decodes):
            self.opens_tick = self._waits_since + self._wait_steps
            return True
        self._waits_since, self.opens_tick = -1, 0
        return False

    def _enough(self, life: Lifecycle, decodes: int) -> bool:
        if not self._enough_tokens:
            return False
        tokens = decodes
        for request in life.waiting:
            tokens += request.prompt_tokens
            if tokens >= self._enough_tokens:
                return True
        return False

    def first_tokens(self, uncomputed: int, budget_tokens: int) -> int:
        if uncomputed <= budget_tokens:
            return uncomputed
        return budget_tokens if uncomputed > self._budget_tokens else 0


def _is_deferred(request: Request) -> bool:
    """Whether a waiting request does not count as left over: it has a grammar and has not run."""
    return request.constrained and not request.preemptions


def _not_ending(order: list[Request]) -> list[Request]:
    """Requests that still take part in steps."""
    return [request for request in order if request.status is not ENDING]
