"""Block diffusion and FDFO: which blocks run together, and what follows when one of them is final.

A request fills one block of masked tokens at a time by rounds of forward and step. The scheduler plans
batches of such blocks, is told per request an accept length, 0 (the block goes on) or the block's size
(it is final), and knows nothing of tokens, algorithms or time. Engine and simulator run this very code:

    batch = scheduler.schedule(now_ns)         # which blocks, and which prompt chunks
    ...                                        # run_sync or run_fdfo: one round, or several
    commits = scheduler.finish(batch, outcome)

Two modes. *Synchronous*: a batch runs until all its blocks are final; prompts are computed in rounds of
their own. *FDFO* (first done, first out): a batch ends with the first final block, the others go on in
the next one, beside whoever came in and beside chunks of prompts.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

from blis_py.core.caches import build_cache
from blis_py.core.config import SchedulerConfig
from blis_py.core.diffusion_config import DiffusionConfig, check_diffusion_config
from blis_py.core.diffusion_request import (
    NO_SLOT,
    Batch,
    Commit,
    DiffusionCounters,
    DiffusionFeatures,
    DiffusionRequest,
    Outcome,
)
from blis_py.core.policies import PREEMPTION_POLICIES, SCHEDULERS
from blis_py.core.radix_kv import RadixKV
from blis_py.core.request import NEVER_NS, FinishReason, Request, Status

_WAITING, _PREFILLING, _DENOISING, _FINISHED = (
    Status.WAITING,
    Status.PREFILLING,
    Status.DECODING,
    Status.FINISHED,
)


class DiffusionScheduler:
    """Queue, slots, KV blocks and the life of diffusion blocks of one instance.

    Args:
        config: limits and policies; `max_num_seqs` is the number of request slots.
        diffusion: block size and execution mode.

    Raises:
        InputError: settings that cannot work.
    """

    def __init__(self, config: SchedulerConfig, diffusion: DiffusionConfig) -> None:
        check_diffusion_config(config, diffusion)
        self.config, self.diffusion = config, diffusion
        self.waiting = SCHEDULERS[config.scheduler](config)
        self.running: dict[DiffusionRequest, None] = {}
        """In running order: the order of admission."""
        self.kv = build_cache(config)
        self.counters = DiffusionCounters()
        self.first_deadline_ns = NEVER_NS
        """No request gives up before this time."""
        self._block = block = diffusion.block_tokens
        self._pick_victim = PREEMPTION_POLICIES[config.preemption_policy]
        self._max_len = min(config.max_model_len, config.num_kv_blocks * config.block_size) // block * block
        self._chunk = (config.long_prefill_token_threshold or config.max_num_batched_tokens) // block * block
        self._free_slots = list(range(config.max_num_seqs - 1, -1, -1))
        self._deadlines: list[tuple[int, int, DiffusionRequest]] = []
        self._submitted = self._admissions = 0
        self._waiting_priorities: dict[int, int] = {}
        """Waiting requests by priority."""

    # -- requests come and go ------------------------------------------------------------------

    def add(self, request: DiffusionRequest) -> str | None:
        """Puts a request into the waiting queue, or says why it can never be served here."""
        prompt, limit = request.prompt_tokens, request.max_tokens
        if prompt + (limit or 1) > self._max_len:
            return f"needs {prompt + (limit or 1)} tokens, there is room for {self._max_len} in whole blocks"
        target = limit or self._max_len - prompt
        if request.output_tokens is not None and request.output_tokens < target:
            target = request.output_tokens
        request.target = target
        self._submitted += 1
        if request.deadline_ns >= 0:
            heappush(self._deadlines, (request.deadline_ns, self._submitted, request))
            self.first_deadline_ns = self._deadlines[0][0]
        self.waiting.push(request)
        self._count_waiting(request, 1)
        return None

    def place(self, request: DiffusionRequest, computed: int) -> None:
        """Lets a request run with the first `computed` tokens in the cache, though nobody computed them.

        The next batch computes what its prompt has beyond them, or its first block. See `Scheduler.place`.

        Raises:
            RuntimeError: there is no place for another, or too few blocks are free.
        """
        room = bool(self._free_slots_left()) and bool(self._free_slots)
        if not (room and (computed == 0 or self.kv.admit(request, [], 0, computed))):
            raise RuntimeError(f"no room for {request!r} in {self!r}")
        request.target = request.max_tokens or self._max_len - request.prompt_tokens
        request.computed = request.cached_tokens = computed
        self._share(request)
        request.status = _PREFILLING if computed < self._prefill_target(request) else _DENOISING
        request.seq = self._admissions
        self._admissions += 1
        self.running[request] = None
        self._take_slot(request)

    def expire(self, now_ns: int) -> list[DiffusionRequest]:
        """Drops the requests whose deadline has come; call it between batches."""
        expired, deadlines = [], self._deadlines
        while deadlines and (deadlines[0][0] <= now_ns or deadlines[0][2].status is _FINISHED):
            request = heappop(deadlines)[2]
            if request.status is not _FINISHED:
                self.abort(request, FinishReason.TIMEOUT)
                expired.append(request)
        self.first_deadline_ns = deadlines[0][0] if deadlines else NEVER_NS
        return expired

    def abort(self, request: DiffusionRequest, reason: FinishReason = FinishReason.ABORT) -> None:
        """Drops a request, waiting or running; call it between batches."""
        if request.status is _WAITING:
            self.waiting.remove(request)
            self._count_waiting(request, -1)
        else:
            self._leave_running(request)
        self._forget_block(request)
        request.status, request.finish_reason = _FINISHED, reason

    # -- one batch -----------------------------------------------------------------------------

    def schedule(self, now_ns: int) -> Batch | None:
        """Plans the next batch, or returns None when there is nothing to compute."""
        if not (self.waiting or self.running):
            return None
        batch = Batch()
        if self.diffusion.fdfo:
            self._make_room_for_blocks(batch)
            self._fill_with_prompts(batch, now_ns)
        else:
            self._fill_with_prompts(batch, now_ns)
            if not batch.prefills:
                self._make_room_for_blocks(batch)
        if self.diffusion.fdfo or not batch.prefills:
            batch.denoise = list(self._denoising())
        if not (batch.prefills or batch.denoise):
            raise RuntimeError(f"the scheduler is stuck: {self!r}")  # work-conserving by construction
        for request in batch.admitted:
            if request.scheduled_ns < 0:
                request.scheduled_ns = now_ns
        batch.features = self._features(batch)
        return batch

    def must_yield(self, now_ns: int) -> bool:
        """Whether a batch whose blocks all go on should come back to the scheduler nevertheless.

        So it is when re-looping is off, when somebody waits who could be admitted, or has to go.
        """
        return (
            not self.diffusion.reloop
            or self.first_deadline_ns <= now_ns
            or (bool(self.waiting) and self._admissible(now_ns))
        )

    def finish(self, batch: Batch, outcome: Outcome) -> list[Commit]:
        """Applies the outcome of a batch; returns the blocks that became final, in running order."""
        counters = self.counters
        counters.batches += 1
        counters.rounds += outcome.rounds
        self.kv.pool.tick = counters.rounds
        for request, tokens in batch.prefills:
            counters.prefill_tokens += tokens
            request.computed += tokens
            self._share(request)
            if request.computed == self._prefill_target(request):
                request.status = _DENOISING
        spent = outcome.spent or [outcome.rounds] * len(batch.denoise)
        commits = []
        for request, accepted, rounds in zip(batch.denoise, outcome.accept_lengths, spent, strict=True):
            request.block_rounds += rounds
            counters.block_rounds += rounds
            counters.idle_block_rounds += outcome.rounds - rounds
            if accepted == self._block:
                commits.append(self._commit(request, outcome))
            elif accepted:
                raise ValueError(f"accept length {accepted}: a block is accepted as a whole or not at all")
            elif not self.diffusion.reuse_in_place:
                self._park(request)
        return commits

    # -- what the driver may look at -----------------------------------------------------------

    @property
    def free_slots(self) -> int:
        """Request slots nobody holds."""
        return len(self._free_slots)

    def blocks_in_use(self) -> int:
        """KV blocks that requests hold."""
        return self.kv.pool.in_use

    def check(self) -> None:
        """Raises `AssertionError` unless every slot and KV block is either free or held, by one request.

        To be called between batches.
        """
        slots = [request.slot for request in self.running if request.slot != NO_SLOT]
        assert sorted(slots + self._free_slots) == list(range(self.config.max_num_seqs)), "a slot is lost"
        assert not self.kv.pool.num_reserved, "blocks were taken for nobody"
        self.kv.pool.check([block for request in self.running for block in request.block_table])

    def __repr__(self) -> str:
        pool = self.kv.pool
        return (
            f"DiffusionScheduler(round {self.counters.rounds}: {len(self.running)} running, "
            f"{len(self.waiting)} waiting, {pool.num_free} of {pool.total} blocks free)"
        )

    # -- planning ------------------------------------------------------------------------------

    def _denoising(self) -> Iterator[DiffusionRequest]:
        return (request for request in self.running if request.status is _DENOISING)

    def _make_room_for_blocks(self, batch: Batch) -> None:
        """Slot and pages for the current block of every denoising request; those that have them keep them."""
        for request in list(self._denoising()):
            if request not in self.running:
                continue  # preempted by one before it
            parked = request.slot == NO_SLOT
            if self._extend(request, self._block, batch, parked) and parked:
                self._take_slot(request, parked)

    def _fill_with_prompts(self, batch: Batch, now_ns: int) -> None:
        """Prompts under way go on, then waiting requests come in, as far as tokens, slots and pages reach."""
        budget = self.config.max_num_batched_tokens
        if self.diffusion.fdfo:
            budget -= self._block * len(list(self._denoising()))
        for request in [r for r in self.running if r.status is _PREFILLING]:
            tokens = min(self._prefill_target(request) - request.computed, self._chunk, self._whole(budget))
            if tokens and request in self.running and self._extend(request, tokens, batch):
                batch.prefills.append((request, tokens))
                budget -= tokens
        # Who was given tokens may have been preempted by one that came after it.
        batch.prefills = [(r, n) for r, n in batch.prefills if r in self.running]
        while self.waiting and not batch.preempted and self._free_slots_left() and budget >= self._block:
            tokens = self._admit(batch, budget, now_ns)
            if not tokens:
                break
            budget -= tokens

    def _free_slots_left(self) -> int:
        return self.config.max_num_seqs - len(self.running)

    def _whole(self, tokens: int) -> int:
        return tokens // self._block * self._block

    def _prefill_target(self, request: Request) -> int:
        """Tokens to compute before denoising: whole blocks of the prompt, and of what was committed."""
        return self._whole(request.num_tokens)

    def _first_tokens(self, request: Request, budget: int) -> tuple[list[int], int, int]:
        """Of a waiting request: cached pages, own pages kept over a preemption, and the tokens of its first
        round, prompt chunk or block.
        """
        kv = self.kv
        shared = kv.cached_blocks(request) if request.block_keys else []
        own = kv.own_blocks(request, len(shared)) if request.kept_blocks else 0
        missing = self._prefill_target(request) - (len(shared) + own) * self.config.block_size
        return shared, own, min(missing, self._chunk, self._whole(budget)) or self._block

    def _admit(self, batch: Batch, budget: int, now_ns: int) -> int:
        """Tokens that the head of the queue takes of the round; 0 if it must wait."""
        request = self.waiting.head(now_ns)
        assert isinstance(request, DiffusionRequest)
        shared, own, tokens = self._first_tokens(request, budget)
        if not self.kv.admit(request, shared, own, tokens):
            if not request.blocked_at_head and len(self.waiting) > 1:
                request.blocked_at_head = True
                self.counters.head_of_line_events += 1
            return 0
        self.waiting.pop_head(now_ns)
        self._count_waiting(request, -1)
        if any(count and priority < request.priority for priority, count in self._waiting_priorities.items()):
            self.counters.priority_inversions += 1
        counters, cached = self.counters, (len(shared) + own) * self.config.block_size
        counters.allocator_calls += 1
        request.computed = cached
        if request.cached_tokens < 0:
            request.cached_tokens = cached
            counters.prefix_queried_tokens += request.prompt_tokens
            counters.prefix_hit_tokens += cached
        if cached < self._prefill_target(request):
            request.status = _PREFILLING
            batch.prefills.append((request, tokens))
        else:
            request.status = _DENOISING
        request.seq = self._admissions
        self._admissions += 1
        self.running[request] = None
        self._take_slot(request)
        batch.admitted.append(request)
        return tokens

    def _admissible(self, now_ns: int) -> bool:
        """Whether the head of the queue would get a slot and pages now."""
        if not self._free_slots_left():
            return False
        budget = self.config.max_num_batched_tokens - self._block * len(self.running)
        request = self.waiting.head(now_ns)
        assert request is not None
        shared, own, tokens = self._first_tokens(request, budget)
        if isinstance(self.kv, RadixKV):
            from_free = self.kv.tree.unlocked(request.match) if request.match is not None else 0
        else:
            from_free = self.kv.pool.count_free(shared)
        return -(-tokens // self.config.block_size) + own + from_free <= self.kv.pool.num_free

    def _extend(self, request: DiffusionRequest, tokens: int, batch: Batch, parked: bool = False) -> bool:
        """Pages for `tokens` more, preempting if need be; False if the request had to go itself."""
        fresh = self.kv.shortfall(request, tokens)
        while not self.kv.extend(request, tokens):
            order: list[Request] = list(self.running)
            victim = order[self._pick_victim(order)]
            assert isinstance(victim, DiffusionRequest)
            self._preempt(victim)
            batch.preempted.append(victim)
            if victim is request:
                return False
        if fresh > 0:
            self._count_call(parked)
        return True

    def _features(self, batch: Batch) -> DiffusionFeatures:
        block, features = self._block, DiffusionFeatures(denoise_blocks=len(batch.denoise))
        sequences = [(request, block) for request in batch.denoise] + batch.prefills
        for request, tokens in sequences:
            past, blocks = request.computed, tokens // block
            features.prefill_seqs += 1
            features.prefill_tokens += tokens
            features.prefill_pairs += tokens * past + block * block * blocks * (blocks + 1) // 2
            features.prefill_kv_tokens += past
            features.prefill_prompt_pairs += tokens * (past + tokens)
            features.max_context = max(features.max_context, past)
        features.prefill_blocks = features.prefill_tokens // block - features.denoise_blocks
        return features

    # -- transitions ---------------------------------------------------------------------------

    def _commit(self, request: DiffusionRequest, outcome: Outcome) -> Commit:
        """The block is final; what it says beyond the end of the output is waste."""
        new = self._block - request.known_tokens
        emitted = min(new, request.target - request.generated)
        if request in outcome.stopped:
            emitted = min(emitted, outcome.stopped[request])
            request.finish_reason = FinishReason.STOP
        request.computed += self._block
        request.generated += emitted
        request.rounds_per_block.append(request.block_rounds)
        _note_emission(request, self.counters.rounds - 1)
        self._forget_block(request)
        if request in outcome.keys:
            request.block_keys = [*request.block_keys, *outcome.keys[request]]
        self._share(request)
        counters = self.counters
        counters.committed_blocks += 1
        counters.emitted_tokens += emitted
        counters.wasted_tokens += new - emitted
        finished = request in outcome.stopped or request.generated >= request.target
        if finished:
            self._complete(request)
        return Commit(request, emitted, new - emitted, finished)

    def _share(self, request: DiffusionRequest) -> None:
        """What is final can be found by others; a hash cache learns of an answer when the request leaves."""
        if isinstance(self.kv, RadixKV):
            self.kv.publish(request)

    def _complete(self, request: DiffusionRequest) -> None:
        self._leave_running(request)
        request.status = _FINISHED
        if request.finish_reason is None:
            capped = request.generated == self._max_len - request.prompt_tokens
            wanted = request.generated in (request.max_tokens, request.output_tokens)
            request.finish_reason = FinishReason.LENGTH if capped and not wanted else FinishReason.STOP

    def _preempt(self, request: DiffusionRequest) -> None:
        """Back to the queue: its KV is lost; what it emitted and the block it was at stay with it."""
        self._leave_running(request, keep=True)
        request.status, request.computed = _WAITING, 0
        request.preemptions += 1
        self.counters.preemptions += 1
        self.waiting.push_front(request)
        self._count_waiting(request, 1)

    def _leave_running(self, request: DiffusionRequest, keep: bool = False) -> None:
        del self.running[request]
        self.kv.release(request, keep)
        self._count_call()
        self._give_back_slot(request)

    def _forget_block(self, request: DiffusionRequest) -> None:
        request.dllm_incomplete_ids = request.dllm_algo_state = None
        request.block_rounds = 0

    def _park(self, request: DiffusionRequest) -> None:
        """Without reuse in place, an unfinished block gives back slot and pages after every batch."""
        page, table = self.config.block_size, request.block_table
        if request.computed % page == 0:  # else the page also holds committed blocks
            own = table[request.computed // page :]
            del table[request.computed // page :]
            self.kv.pool.give_back(own)
            self._count_call(unfinished=True)
        self._give_back_slot(request, unfinished=True)

    def _take_slot(self, request: DiffusionRequest, unfinished: bool = False) -> None:
        request.slot = self._free_slots.pop()
        self._count_call(unfinished)

    def _give_back_slot(self, request: DiffusionRequest, unfinished: bool = False) -> None:
        if request.slot != NO_SLOT:
            self._free_slots.append(request.slot)
            request.slot = NO_SLOT
            self._count_call(unfinished)

    def _count_waiting(self, request: Request, change: int) -> None:
        counts = self._waiting_priorities
        counts[request.priority] = counts.get(request.priority, 0) + change

    def _count_call(self, unfinished: bool = False) -> None:
        self.counters.allocator_calls += 1
        self.counters.unfinished_allocator_calls += unfinished


def _note_emission(request: DiffusionRequest, index: int) -> None:
    """Round `index`, counted from 0, made a block final."""
    if request.first_tick < 0:
        request.first_tick = index
    elif index > request.last_tick + 1:
        request.gaps = [*(request.gaps or ()), (request.last_tick, index)]
    request.last_tick = index
