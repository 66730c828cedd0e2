"""The scheduler: decides what one engine instance computes in each step.

It plans a step and is notified when the step has ended; it depends neither on SimPy nor on torch, nor on any
time but the `now_ns` passed in. Simulator and engine run the same code:

    step = scheduler.schedule(now_ns)          # what to compute
    ...                                        # the engine computes it, the simulator prices it
    finished = scheduler.finish(step)           # what came of it

The cost of a step is that of its changes: decoding requests are kept as aggregates (`DecodeSet`) and touched
only when their state changes. The simulator may also query the number of identical steps ahead
(`identical_decode_steps`) and finish them all at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from blis_py.core.admission_rule import AdmissionRule
from blis_py.core.admission_rules import ADMISSION_RULES
from blis_py.core.batch_formers import BATCH_FORMERS
from blis_py.core.config import SchedulerConfig
from blis_py.core.counters import Counters
from blis_py.core.emission import Emission
from blis_py.core.features import FEATURES, StepFeatures, computed, further_features
from blis_py.core.kv_source import KVSource
from blis_py.core.lifecycle import note_scheduled
from blis_py.core.request import Request
from blis_py.core.step import Prefills, Step
from blis_py.core.step_progress import StepProgress

_NO_FEATURES: Final = StepFeatures()


class Scheduler(StepProgress):
    """Queues, token budget, KV blocks and preemption of one instance.

    Args:
        config: limits and policies.
        track_longest: report the longest context in the features (-1 otherwise).
        source: KV from outside the instance; None = there is none.
        emission: requests whose decode steps emit several tokens; None = every step emits one.
        counters: shared with other schedulers; None = its own.
        check: check the settings; False where they are known to be valid.

    Raises:
        InputError: an invalid setting.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        track_longest: bool = False,
        source: KVSource | None = None,
        emission: Emission | None = None,
        counters: Counters | None = None,
        check: bool = True,
    ) -> None:
        super().__init__(config, track_longest, source, emission, counters, check)
        self._budget_tokens = config.max_num_batched_tokens
        self._track_longest = track_longest
        self._further = further_features()
        self._foresees = not any(FEATURES[name].grows is None for name, _ in self._further)
        self._former = BATCH_FORMERS[config.batch_former](config, self.kv, self._running)
        self._decode_tokens = self._former.decode_tokens
        self._cadence = self._former.cadence
        self._whole_prompt = config.scheduler_reserve_full_isl
        self.steps_alone = True
        """Whether a step that only preempts takes no time; that of a rank is a dummy beside the others."""
        self._preempted_in_dummy: Sequence[Request] = ()
        self._loads_spare = config.loads_spare_prompts
        self._watermark_blocks = int(config.watermark * (config.num_kv_blocks + 1))
        """vLLM counts a block more than requests can use."""
        self._padded_rows = 1 + config.num_speculative_tokens
        self._pads = config.pads_lone_tokens and self._padded_rows > 1
        self._pads_beside_others = config.padding_needs_company
        self._padding_must_fit = config.padding_must_fit
        self._rule: AdmissionRule | None = None
        if config.admission_rule != "blocks":
            self._rule = self._former.rule = ADMISSION_RULES[config.admission_rule](config, self)
        self._cache_order = self.waiting.cache_order(self.kv, self._prefilling, self.counters)
        """The order of the waiting queue, if it depends on the cache."""

    # -- one step ------------------------------------------------------------------------------

    def schedule(self, now_ns: int) -> Step | None:
        """See `StepScheduler.schedule`.

        Raises:
            RuntimeError: no request can make progress, which is a bug.
        """
        arrived = self.loads is not None and self.loads.receive(now_ns)
        if not (self._num_waiting or arrived or self._prefilling or self._stalled):
            decoding, tick = self._decoding, self.tick
            decodes = decoding.count
            if decodes == 0:
                self._rest()
                return None
            blocks = decoding.crossings[tick % self._block_size]
            if decodes <= self._decode_tokens and blocks * self._per_crossing <= self.kv.pool.num_free:
                if self._cadence is not None:
                    self._cadence.crowded = False
                if self._grouped:
                    self._take_planned()
                else:
                    self._owed_blocks = blocks
                kv_tokens = decoding.base_sum + decodes * tick
                longest = decoding.longest(tick) if self._track_longest else -1
                constrained, shared = decoding.constrained, self.kv.pool.shared_uses * self._block_size
                features = StepFeatures(
                    decode_seqs=decodes,
                    decode_kv_tokens=kv_tokens,
                    max_context=longest,
                    emitted_rows=decodes,
                    constrained_rows=constrained,
                    shared_kv_tokens=shared,
                )
                planned = Step(features)
                if self._further:
                    features.further = computed(self._further, planned, self)
                return planned
        prefills: Prefills = []
        step = Step(_NO_FEATURES, prefills)
        if self._cache_order is not None:
            self._cache_order.scanned_requests = 0
        self._running.resolved = self.kv.resolved = self.resolved
        self._steps_taken = 1
        self._former.fill(step, prefills, self, self.tick, now_ns)
        if not prefills and not self._decoding.count:
            if self.resolved < self.tick:
                return None  # steps in flight hold the blocks
            if step.preempted and self.steps_alone:
                return self._plan_anew(step, now_ns)
            if step.preempted:
                self._preempted_in_dummy = step.preempted
                return None
            if self.holding or (self.loads is not None and self.loads.under_way):
                return None
            if self.drop_load() is not None:
                return self.schedule(now_ns)  # arrived loads held the missing blocks
            raise RuntimeError(f"the scheduler is stuck: {self!r}")  # work-conserving by construction
        if step.admitted:
            note_scheduled(step.admitted, now_ns)
        if self._bursts is not None:
            step.emissions = self._bursts.emissions(prefills, self.tick)
        step.features = features = self._features(prefills)
        if self._further:
            features.further = computed(self._further, step, self)
        return step

    def _take_planned(self) -> None:
        """Take and free the blocks of the decodes of the planned step."""
        self.kv.resolved, self._steps_taken = self.resolved, 1
        self.kv.plan_step(self._decoding, self.tick, (), self.resolved < self.tick)

    def _plan_anew(self, empty: Step, now_ns: int) -> Step | None:
        """Plan again at once when a step preempted requests and computes nothing."""
        step = self.schedule(now_ns)
        if step is not None:
            step.preempted = [*empty.preempted, *step.preempted]
        return step

    def take_preempted_in_dummy(self) -> Sequence[Request]:
        """Requests preempted by the plan that came to nothing, of a scheduler whose steps are not alone."""
        preempted, self._preempted_in_dummy = self._preempted_in_dummy, ()
        return preempted

    def _rest(self) -> None:
        """Note that there is nothing to compute."""
        if self._rule is None:
            return
        self._rule.skipped()
        if not self.running:
            self._rule.forgets_departed()
            if self.resolved == self.tick:
                self._rule.rested()

    # -- steps ahead -----------------------------------------------------------------------------

    def identical_decode_steps(self, step: Step) -> int:
        if step.prefills or step.preempted or self._unsettled or self._withdrawn or not self._foresees:
            return 1
        if self.loads is not None:
            if step.features.scanned_requests:
                return 1  # the next step may find fewer: one of them may be loading now
            if self._num_waiting and self._room_to_admit():
                return 1  # the source's offer to the head of the queue may change with time
        if self._admission_may_change() or (self._grouped and self._num_waiting and self._room_to_admit()):
            return 1  # with groups, blocks that leave windows may let a request in
        decoding, tick = self._decoding, self.tick
        steps = decoding.next_finish_tick() - tick
        if tick < self._former.opens_tick < tick + steps and (self._num_waiting or self._former.held):
            steps = self._former.opens_tick - tick
        if steps == 1:
            return 1
        free = self.kv.pool.num_free - self._owed_blocks
        if self._order_may_change() and self._room_to_admit():
            # Eviction may put another request, one that fits, at the head of the queue.
            if self._former.admits_first and decoding.crossings[tick % self._block_size]:
                return 1  # it was checked before this step's decodes took blocks
            free = max(min(free, self.kv.pool.num_blank - self._owed_blocks), 0)
        return 1 + decoding.steps_within(tick + 1, free // self._per_crossing, steps - 1)

    def _admission_may_change(self) -> bool:
        """Whether the rule may admit a waiting request at the next step that it has just refused."""
        looks = self._rule is not None and self._num_waiting > 0 and self._former.opens_tick <= self.tick
        return looks and self._rule is not None and self._rule.may_change()

    @property
    def is_settled(self) -> bool:
        """Whether no launched step ends requests whose outcome is not known."""
        return not self._unsettled

    @property
    def decode_seqs(self) -> int:
        """Requests that decode."""
        return self._decoding.count

    def hold_prompts(self, opens_tick: int) -> bool:
        """Admit no waiting request before this step; whether that changes what comes next."""
        return self._former.hold(opens_tick) and self.has_candidates

    def _order_may_change(self) -> bool:
        """Whether the head of the queue depends on the cache."""
        order = self._cache_order
        return order is not None and self._num_waiting > 0 and order.looks_at_cache

    def _room_to_admit(self) -> bool:
        """Whether waiting requests lack only blocks: a decode step leaves places and token budget."""
        budget_left = self._former.admits_first or self._decoding.count < self._budget_tokens
        return budget_left and len(self.running) < self._max_num_seqs

    def blocks_in_use(self, steps: int = 1) -> int:
        if self._grouped:
            in_use = self.kv.pool.in_use
            return in_use + (self.kv.growth(self._decoding, self.tick + steps - 1) if steps > 1 else 0)
        more = self._decoding.blocks_for(self.tick + 1, steps - 1) if steps > 1 else 0
        return self.kv.pool.in_use + self._owed_blocks + more

    def decode_blocks(self, tick: int, steps: int) -> int:
        """Blocks that its present decodes take in some steps from `tick` on."""
        if self._grouped:
            return self.kv.growth(self._decoding, tick + steps - 1)
        return self._decoding.blocks_for(tick, steps)

    def take_blocks(self, steps: int) -> None:
        if self._evicts_ahead:
            self.kv.foresee_decodes(self._decoding, self.tick, steps)
        if self._grouped:
            self._take_by_groups(steps)
            return
        blocks = self._owed_blocks + self._decoding.blocks_for(self.tick + 1, steps - 1)
        if blocks:
            self.kv.pool.reserve(blocks)
            self._owed_blocks -= blocks

    def unplan(self) -> None:
        """Owe no blocks to a step that was planned alike and will not be launched."""
        self._owed_blocks = min(self._owed_blocks, 0)

    def plan_alike(self) -> None:
        if self._grouped:
            self._take_planned()
            return
        self._owed_blocks += self._decoding.crossings[self.tick % self._block_size]

    def __repr__(self) -> str:
        return (
            f"Scheduler(step {self.tick}: {len(self.running)} running, {len(self.waiting)} waiting, "
            f"{self.kv.pool.num_free} of {self.kv.pool.total} blocks free)"
        )

    # -- supplied by the kind of request ----------------------------------------------------------

    def _first_tokens(self, request: Request, cached: int, budget_tokens: int) -> int:
        uncomputed = request.prompt_tokens + request.generated - cached
        if self._rule is not None and not (
            self._is_loaded(request) or self._rule.admits(request, uncomputed)
        ):
            return 0
        tokens = self._former.cut(request, cached, self._former.first_tokens(uncomputed, budget_tokens))
        if tokens and uncomputed == 1 and self._pads and request.bursts is not None:
            return self._padded_tokens(request, cached, budget_tokens)
        return tokens

    def _padded_tokens(self, request: Request, cached: int, budget_tokens: int) -> int:
        """Positions of the first step of a request with one token to compute; 0 = not now."""
        former, rows = self._former, self._padded_rows
        if former.continues_prompts:
            return 1
        if not (former.serves_running or (cached and not self._pads_beside_others)):
            return 1
        if self._padding_must_fit:
            return rows if rows <= budget_tokens and cached + rows <= self._max_tokens else 0
        if cached + rows >= self._max_tokens:
            return 1
        return rows if rows <= budget_tokens else 0

    def _padding(self, request: Request, positions: int) -> int:
        return max(positions - request.num_tokens, 0) if self._pads else 0

    def _has_headroom(self, request: Request, shared: list[int], own: int, new_tokens: int) -> bool:
        watermark = self._watermark_blocks if self.running else 0
        if not (watermark or self._whole_prompt):
            return True
        if self._whole_prompt:
            return self.kv.fits_whole(request, shared, own, new_tokens, watermark)
        return self.kv.can_admit(request, shared, own, new_tokens, watermark)

    def _arrived_fits(self, request: Request, new_tokens: int) -> bool:
        watermark = self._watermark_blocks if self.running else 0
        if self._whole_prompt:
            new_tokens = max(new_tokens, request.num_tokens - request.computed)
        return max(self.kv.shortfall(request, new_tokens), 0) + watermark <= self.kv.pool.num_free

    def _load_fits(self, request: Request, shared: list[int], own: int, loaded_tokens: int) -> bool:
        if not self._loads_spare:
            return True
        besides = self._blocks_of_prompts() + (self._watermark_blocks if self.running else 0)
        return self.kv.can_admit(request, shared, own, loaded_tokens, besides)

    def _blocks_of_prompts(self) -> int:
        """Blocks that admitted prompts, computed and loaded ones, still need."""
        assert self.loads is not None
        prompts = [request for request in self._prefilling if not request.bursting]
        return sum(
            max(self.kv.shortfall(request, request.num_tokens - request.computed), 0)
            for request in (*prompts, *self.loads.requests)
        )

    def begin_wave(self, tick: int) -> None:
        """Count the steps of `prefill_schedule_interval` from this one on."""
        if self._cadence is not None:
            self._cadence.begin_wave(tick)

    def count_dummy(self) -> None:
        """Count a dummy among the steps of `prefill_schedule_interval`."""
        if self._cadence is not None:
            self._cadence.count_dummy()

    @property
    def holds_prompts(self) -> bool:
        """Whether the last step planned with candidates has no prompts (`prefill_schedule_interval`)."""
        return self._former.held

    def _is_loaded(self, request: Request) -> bool:
        """Whether the admission rule has let the request take its blocks before its KV came."""
        return self.loads is not None and request in self.loads

    def _may_load(self, request: Request, cached: int) -> bool:
        if self._rule is None:
            return True
        return self._rule.covers(request, request.prompt_tokens + request.generated - cached)

    def admit(self, budget_tokens: int, now_ns: int, only_arrived: bool = False) -> list[tuple[Request, int]]:
        if self._rule is not None and not only_arrived and not self._rule.begin(0):
            only_arrived = True
        return super().admit(budget_tokens, now_ns, only_arrived)

    def _has_room(self, budget_tokens: int) -> bool:
        if self._rule is None:
            return super()._has_room(budget_tokens)
        return self._rule.looks(budget_tokens)

    def _charge(self, request: Request, tokens: int) -> int:
        if self._rule is not None:
            self._rule.took(request, tokens)
        return self._former.budgeted_tokens(tokens)

    def _goes_on(self, budget_tokens: int) -> bool:
        return self._rule is None or self._rule.goes_on(budget_tokens)

    def _leave(self, request: Request, keep: bool = False) -> None:
        if self._rule is not None:
            self._rule.left(request)
        super()._leave(request, keep)

    def _features(self, prefills: Prefills) -> StepFeatures:
        """The features of the planned step."""
        decoding, tick = self._decoding, self.tick
        decodes = rows = decoding.count
        kv_tokens = decoding.base_sum + decodes * tick
        prompts = tokens = pairs = past_tokens = 0
        constrained = decoding.constrained
        prompt_pairs = 0.0
        for request, new in prefills:
            past, length = request.computed, request.prompt_tokens + request.generated
            if past + 1 == length and request.continues:
                decodes += new
                rows += new
                kv_tokens += past
                if request.constrained:
                    constrained += new
                continue
            prompts += 1
            tokens += new
            pairs += new * past + new * (new + 1) // 2
            past_tokens += past
            prompt_pairs += new * (length + new / 2)
            if past + new >= length:
                rows += 1
                if request.constrained:
                    constrained += 1
        longest = -1
        if self._track_longest:
            longest = max(decoding.longest(tick), *(request.computed for request, _ in prefills), 0)
        shared = self.kv.pool.shared_uses * self._block_size
        return StepFeatures(
            prefill_seqs=prompts,
            prefill_tokens=tokens,
            prefill_pairs=pairs,
            prefill_kv_tokens=past_tokens,
            prefill_prompt_pairs=prompt_pairs,
            decode_seqs=decodes,
            decode_kv_tokens=kv_tokens,
            max_context=longest,
            emitted_rows=rows,
            constrained_rows=constrained,
            shared_kv_tokens=shared,
            scanned_requests=0 if self._cache_order is None else self._cache_order.scanned_requests,
        )
