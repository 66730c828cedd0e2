"""Scheduler for block diffusion and FDFO: which blocks run together, and the effects of a final block.

A request fills one block of masked tokens at a time by rounds of forward and step. The scheduler plans
batches of such blocks, receives an accept length per request, 0 (the block goes on) or the block's size (it
is final), and is independent of tokens, algorithms and time. Engine and simulator run the same code:

    batch = scheduler.schedule(now_ns)         # which blocks, and which prompt chunks
    ...                                        # run_sync or run_fdfo: one round, or several
    commits = scheduler.finish(batch, outcome)

Two modes. *Synchronous*: a batch runs until all its blocks are final; prompts are computed in rounds of their
own. *FDFO* (first done, first out): a batch ends with the first final block, the others continue in the next
one, together with admitted requests and prompt chunks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, cast

from blis_py.core.config import SchedulerConfig
from blis_py.core.diffusion_config import DiffusionConfig, check_diffusion_config
from blis_py.core.diffusion_features import DiffusionFeatures
from blis_py.core.diffusion_request import (
    NO_SLOT,
    BatchOutcome,
    Commit,
    DenoiseBatch,
    DiffusionCounters,
    DiffusionRequest,
)
from blis_py.core.features import computed, further_features
from blis_py.core.lifecycle import Lifecycle, note_scheduled
from blis_py.core.policies import PREEMPTION_POLICIES
from blis_py.core.request import DECODING, PREFILLING, FinishReason, Request, Status

_DENOISING: Final = DECODING


class DiffusionScheduler(Lifecycle):
    """Slots, KV blocks and block life cycle of one instance's `DiffusionRequest`s.

    Args:
        config: limits and policies; `max_num_seqs` is the number of request slots.
        diffusion: block size and execution mode.

    Raises:
        InputError: invalid settings.
    """

    def __init__(self, config: SchedulerConfig, diffusion: DiffusionConfig) -> None:
        check_diffusion_config(config, diffusion)
        block = diffusion.block_tokens
        room = min(config.max_model_len, config.num_kv_blocks * config.block_size) // block * block
        totals = DiffusionCounters()
        super().__init__(config, totals, room, granularity=block)
        self.diffusion = diffusion
        self.totals = totals
        """The counters, with their specific type."""
        self._block = block
        self._further = further_features()
        self._pick_victim = PREEMPTION_POLICIES[config.preemption_policy]
        self._chunk = (config.long_prefill_token_threshold or config.max_num_batched_tokens) // block * block
        self._free_slots = list(range(config.max_num_seqs - 1, -1, -1))

    # -- one batch -----------------------------------------------------------------------------

    def schedule(self, now_ns: int) -> DenoiseBatch | None:
        """Plan the next batch; None if there is nothing to compute.

        Raises:
            RuntimeError: no request can make progress, which is a bug.
        """
        if not (self.waiting or self.running):
            return None
        batch = DenoiseBatch()
        if self.diffusion.fdfo:
            self._make_room_for_blocks(batch)
            self._fill_with_prompts(batch, now_ns)
        else:
            self._fill_with_prompts(batch, now_ns)
            if not batch.prefills:
                self._make_room_for_blocks(batch)
        if self.diffusion.fdfo or not batch.prefills:
            batch.denoise = self._in_state(_DENOISING)
        if not (batch.prefills or batch.denoise):
            raise RuntimeError(f"the scheduler is stuck: {self!r}")  # work-conserving by construction
        note_scheduled(batch.admitted, now_ns)
        batch.features = features = self._features(batch)
        if self._further:
            features.further = computed(self._further, batch, self)
        return batch

    def must_yield(self, now_ns: int) -> bool:
        """Whether a batch whose blocks all go on should return to the scheduler nevertheless.

        True if re-looping is off, or if a waiting request could be admitted or has to leave.
        """
        return (
            not self.diffusion.reloop
            or self.first_deadline_ns <= now_ns
            or (bool(self.waiting) and self._admissible(now_ns))
        )

    def finish(self, batch: DenoiseBatch, outcome: BatchOutcome) -> list[Commit]:
        """Apply the outcome of a batch; returns the blocks that became final, in running order.

        Raises:
            ValueError: an accept length that is neither 0 nor the size of the block.
        """
        counters = self.totals
        counters.batches += 1
        counters.rounds += outcome.rounds
        self.kv.pool.tick = counters.rounds
        for request, tokens in batch.prefills:
            counters.prefill_tokens += tokens
            request.computed += tokens
            self.kv.publish(request)
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

    # -- state visible to the driver -----------------------------------------------------------

    @property
    def free_slots(self) -> int:
        """Free request slots."""
        return len(self._free_slots)

    @property
    def decode_tokens(self) -> int:
        """Block positions computed so far, including those of finished blocks that rode along."""
        return self._block * (self.totals.block_rounds + self.totals.idle_block_rounds)

    def blocks_in_use(self, steps: int = 1) -> int:
        """KV blocks held by requests."""
        return self.kv.pool.in_use

    def check(self) -> None:
        """Check that every slot and KV block is either free or held by exactly one request.

        To be called between batches.

        Raises:
            AssertionError: one is not.
        """
        slots = [request.slot for request in self._requests() if request.slot != NO_SLOT]
        assert sorted(slots + self._free_slots) == list(range(self.config.max_num_seqs)), "a slot is lost"
        assert not self.kv.pool.num_reserved, "blocks were taken for no request"
        self.kv.pool.check([block for request in self.running for block in request.block_table])

    def __repr__(self) -> str:
        pool = self.kv.pool
        return (
            f"DiffusionScheduler(round {self.totals.rounds}: {len(self.running)} running, "
            f"{len(self.waiting)} waiting, {pool.num_free} of {pool.total} blocks free)"
        )

    # -- planning ------------------------------------------------------------------------------

    def _requests(self) -> Iterator[DiffusionRequest]:
        """The running requests, in running order."""
        return (cast(DiffusionRequest, request) for request in self.running)

    def _in_state(self, status: Status) -> list[DiffusionRequest]:
        return [request for request in self._requests() if request.status is status]

    def _make_room_for_blocks(self, batch: DenoiseBatch) -> None:
        """Allocate slot and pages for the current block of every denoising request that lacks them."""
        for request in self._in_state(_DENOISING):
            if request not in self.running:
                continue  # preempted by an earlier request
            parked = request.slot == NO_SLOT
            if self._extend(request, self._block, batch, parked) and parked:
                self._take_slot(request, parked)

    def _fill_with_prompts(self, batch: DenoiseBatch, now_ns: int) -> None:
        """Continue unfinished prompts, then admit waiting requests, within the limits of tokens, slots and
        pages."""
        budget_tokens = self.config.max_num_batched_tokens
        if self.diffusion.fdfo:
            budget_tokens -= self._block * len(self._in_state(_DENOISING))
        for request in self._in_state(PREFILLING):
            tokens = min(
                self._prefill_target(request) - request.computed, self._chunk, self._whole(budget_tokens)
            )
            if tokens and request in self.running and self._extend(request, tokens, batch):
                batch.prefills.append((request, tokens))
                budget_tokens -= tokens
        # A request with tokens may have been preempted by a later one.
        batch.prefills = [(r, n) for r, n in batch.prefills if r in self.running]
        if batch.preempted:
            return
        for admitted, tokens in self.admit(budget_tokens, now_ns):
            request = cast(DiffusionRequest, admitted)
            batch.admitted.append(request)
            if request.status is PREFILLING:
                batch.prefills.append((request, tokens))

    def _whole(self, tokens: int) -> int:
        return tokens // self._block * self._block

    def _prefill_target(self, request: Request) -> int:
        """Tokens to compute before denoising: whole blocks of the prompt, and of what was committed."""
        return self._whole(request.num_tokens)

    def _admissible(self, now_ns: int) -> bool:
        """Whether the head of the queue would get a slot and pages now."""
        if len(self.running) == self.config.max_num_seqs:
            return False
        request = self.waiting.head(now_ns)
        assert request is not None
        shared, own = self._cached(request)
        budget_tokens = self.config.max_num_batched_tokens - self._block * len(self.running)
        tokens = self._first_tokens(request, (len(shared) + own) * self._block_size, budget_tokens)
        return self.kv.can_admit(request, shared, own, tokens)

    def _extend(
        self, request: DiffusionRequest, tokens: int, batch: DenoiseBatch, parked: bool = False
    ) -> bool:
        """Allocate pages for `tokens` more, with preemption if needed; False if the request itself was
        preempted."""
        fresh = self.kv.shortfall(request, tokens)
        while not self.kv.extend(request, tokens):
            order = list(self.running)
            victim = cast(DiffusionRequest, order[self._pick_victim(order)])
            self.preempt(victim)
            batch.preempted.append(victim)
            if victim is request:
                return False
        if fresh > 0:
            self._count_call(parked)
        return True

    def _features(self, batch: DenoiseBatch) -> DiffusionFeatures:
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

    # -- what a kind of request supplies ----------------------------------------------------------

    def _refusal(self, tokens: int) -> str:
        return f"needs {tokens} tokens, there is room for {self._max_tokens} in whole blocks"

    def _first_tokens(self, request: Request, cached: int, budget_tokens: int) -> int:
        """A chunk of the prompt, or a block."""
        missing = self._prefill_target(request) - cached
        return min(missing, self._chunk, self._whole(budget_tokens)) or self._block

    def _admitted(self, request: Request) -> None:
        request.status = PREFILLING if request.computed < self._prefill_target(request) else _DENOISING
        self._count_call()
        self._take_slot(cast(DiffusionRequest, request))

    def _leave(self, request: Request, keep: bool = False) -> None:
        del self.running[request]
        self.kv.release(request, keep)
        self._count_call()
        self._give_back_slot(cast(DiffusionRequest, request))

    def _forget(self, request: Request) -> None:
        self._forget_block(cast(DiffusionRequest, request))

    # -- the life of a block -----------------------------------------------------------------------

    def _commit(self, request: DiffusionRequest, outcome: BatchOutcome) -> Commit:
        """Commit a final block; its tokens beyond the end of the output are wasted."""
        new = self._block - request.known_tokens
        emitted = min(new, request.target - request.generated)
        if request in outcome.stopped:
            emitted = min(emitted, outcome.stopped[request])
            request.finish_reason = FinishReason.STOP
        request.computed += self._block
        request.generated += emitted
        request.rounds_per_block.append(request.block_rounds)
        request.note_emission(self.totals.rounds - 1)
        self._forget_block(request)
        if request in outcome.keys:
            request.block_keys = [*request.block_keys, *outcome.keys[request]]
        self.kv.publish(request)
        counters = self.totals
        counters.committed_blocks += 1
        counters.emitted_tokens += emitted
        counters.wasted_tokens += new - emitted
        finished = request in outcome.stopped or request.generated >= request.target
        if finished:
            self._complete(request)
        return Commit(request, emitted, new - emitted, finished)

    def _forget_block(self, request: DiffusionRequest) -> None:
        request.dllm_incomplete_ids = request.dllm_algo_state = None
        request.block_rounds = 0

    def _park(self, request: DiffusionRequest) -> None:
        """Without reuse in place: free slot and pages of an unfinished block after every batch."""
        page, table = self.config.block_size, request.block_table
        if request.computed % page == 0:  # otherwise the page also holds committed blocks
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

    def _count_call(self, unfinished: bool = False) -> None:
        self.totals.allocator_calls += 1
        self.totals.unfinished_allocator_calls += unfinished
