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

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from blis_py.core.admission_rules import ADMISSION_RULES, AdmissionRule
from blis_py.core.batch_former import BATCH_FORMERS, Running
from blis_py.core.cache_aware import CacheAwareQueue
from blis_py.core.checks import check_scheduler_config
from blis_py.core.config import SchedulerConfig
from blis_py.core.counters import Counters
from blis_py.core.decoding import DecodeSet
from blis_py.core.emission import Bursts, Emission
from blis_py.core.features import FEATURES, StepFeatures, computed, further_features
from blis_py.core.kv_source import KVSource
from blis_py.core.lifecycle import Lifecycle, note_scheduled
from blis_py.core.request import DECODING, ENDING, FINISHED, PREFILLING, FinishReason, Request
from blis_py.core.step import Prefills, Step

_NO_FEATURES: Final = StepFeatures()


class Scheduler(Lifecycle):
    """Queues, token budget, KV blocks and preemption of one instance.

    Args:
        config: limits and policies.
        track_longest: report the longest context in the features (-1 otherwise).
        source: KV from outside the instance; None = there is none.
        emission: requests whose decode steps emit several tokens; None = every step emits one.

    Raises:
        InputError: an invalid setting.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        track_longest: bool = False,
        source: KVSource | None = None,
        emission: Emission | None = None,
    ) -> None:
        check_scheduler_config(config)
        # A sequence cannot be longer than the pool, or it could never finish.
        room = config.num_kv_blocks * config.block_size + 1
        super().__init__(config, Counters(), min(config.max_model_len, room), source=source)
        self.tick = 0
        """Steps launched; the index of the step being planned."""
        self.resolved = 0
        """Steps whose outcome is known."""
        self._budget = config.max_num_batched_tokens
        self._track_longest = track_longest
        self._further = further_features()
        self._foresees = not any(FEATURES[name].grows is None for name, _ in self._further)
        self._decoding = DecodeSet(config.block_size, track_longest)
        self._bursts = None if emission is None else Bursts(emission, self._max_tokens)
        self._rows_alone = 0
        """Positions computed by decode steps outside the aggregate, see `Request.continues`."""
        self._running = Running(self._decoding, self._bursts)
        self._prefilling, self._stalled = self._running.prefilling, self._running.stalled
        self._former = BATCH_FORMERS[config.batch_former](config, self.kv, self._running)
        self._rule: AdmissionRule | None = None
        if config.admission_rule != "blocks":
            self._rule = ADMISSION_RULES[config.admission_rule](config, self)
        self._unsettled = 0
        """Requests that end with a step whose outcome is not known yet."""
        self._owed_blocks = 0
        """Blocks the decodes of the planned step need and that are not reserved yet; negative if reserved
        ahead."""
        self._cache_aware: CacheAwareQueue | None = None
        """The waiting queue, if its order depends on the cache."""
        if isinstance(self.waiting, CacheAwareQueue):
            self._cache_aware = self.waiting
            self.waiting.attach(self.kv, self._prefilling, self.counters)

    def add(self, request: Request) -> str | None:
        if self._bursts is not None and self._bursts.emission.is_irregular(request):
            request.bursts = []
        return super().add(request)

    # -- one step ------------------------------------------------------------------------------

    def schedule(self, now_ns: int) -> Step | None:
        """Plan the next step; None if there is nothing to compute at present.

        Allocates the blocks the step needs and, if there are too few, preempts.

        Raises:
            RuntimeError: no request can make progress, which is a bug.
        """
        arrived = self.loads is not None and self.loads.receive(now_ns)
        if not (self.waiting or self._prefilling or self._stalled or arrived):
            decoding, tick = self._decoding, self.tick
            decodes = decoding.count
            if decodes == 0:
                return None
            blocks = decoding.crossings[tick % self._block_size]
            if decodes <= self._budget and blocks <= self.kv.pool.num_free:
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
        if self._cache_aware is not None:
            self._cache_aware.scanned_requests = 0
        self._former.fill(step, prefills, self, self.tick, now_ns)
        if not prefills and not self._decoding.count:
            if self.resolved < self.tick:
                return None  # steps in flight hold the blocks
            if self.holding or (self.loads is not None and self.loads.under_way):
                return None
            if self.drop_load() is not None:
                return self.schedule(now_ns)  # arrived loads held the missing blocks
            raise RuntimeError(f"the scheduler is stuck: {self!r}")  # work-conserving by construction
        note_scheduled(step.admitted, now_ns)
        if self._bursts is not None:
            step.emissions = self._bursts.emissions(prefills, self.tick)
        step.features = features = self._features(prefills)
        if self._further:
            features.further = computed(self._further, step, self)
        return step

    def finish(self, step: Step, steps: int = 1, stopped: Iterable[Request] = ()) -> list[Request]:
        """Apply the outcome of a step, or of `steps` identical ones; returns the requests that finished.

        A request whose computed tokens have reached its length emits one token. `steps` may not
        exceed `identical_decode_steps(step)`.

        Args:
            stopped: requests whose token was an end of sequence or completed a stop string, as determined by
                a real model.
        """
        self.advance(step, steps)
        return self.resolve(step, steps, stopped)

    def ends_with(self, request: Request, step: Step, steps: int) -> bool:
        """Whether a request has its last token when a planned step, or `steps` identical ones, are over."""
        if request.status is DECODING:
            return request.finish_tick <= self.tick + steps
        for one, tokens in step.prefills:
            if one is request:
                complete = request.computed + tokens >= request.prompt_tokens + request.generated
                return complete and request.generated + 1 >= request.target
        return False

    def advance(self, step: Step, steps: int = 1) -> None:
        """Book what is known when the step, or `steps` identical ones, are launched.

        Tokens count as computed, requests with a complete prompt decode next, and those that have reached
        their length get no more steps. Slots and blocks are kept until the outcome is known.
        """
        pool, decoding, tick = self.kv.pool, self._decoding, self.tick
        blocks = self._owed_blocks
        if steps > 1:
            blocks += decoding.blocks_for(tick + 1, steps - 1)
        if blocks > 0:
            pool.reserve(blocks)
            blocks = 0
        self._owed_blocks = blocks  # negative: already reserved for the step behind these
        self.tick = pool.tick = step.end_tick = tick = tick + steps
        if step.prefills:
            self._advance_prefills(step, tick)
        finishing = decoding.finishing
        if finishing and finishing[0][0] <= tick:
            self._advance_decodes(step, tick)
        self._unsettled += len(step.ending)

    def _advance_prefills(self, step: Step, tick: int) -> None:
        """Start decoding for requests whose whole prompt is in the cache, if they have more to emit."""
        kv = self.kv
        for request, tokens in step.prefills:
            if request.bursts is not None and request.bursting:
                self._advance_burst(step, request, tokens, tick)
                continue
            if request.carried and request.continues:
                self._rows_alone += tokens
            else:
                self.counters.prefill_tokens += tokens
            request.computed = computed = request.computed + tokens
            kv.publish(request)
            if computed < request.prompt_tokens + request.generated:
                continue
            request.generated += 1
            request.note_emission(tick - 1)
            if request.generated >= request.target:
                step.ending.append(request)
                if not request.ends_late:
                    del self._prefilling[request]
                    self._expects_no_more(request)
                    continue
            if request.bursts is None:
                del self._prefilling[request]
                self._decoding.start(request, tick)

    def _advance_burst(self, step: Step, request: Request, rows: int, tick: int) -> None:
        """Book a decode step that may emit several tokens; rejected drafts are recomputed."""
        emitted = 1 if step.emissions is None else step.emissions.get(request, 1)
        self._rows_alone += rows
        before = request.generated
        request.computed += emitted
        request.generated = before + emitted
        request.note_emission(tick - 1)
        if emitted > 1:
            assert request.bursts is not None
            request.bursts.append((tick - 1, emitted))
        if before < request.target <= request.generated:
            step.ending.append(request)
            if not request.ends_late:
                del self._prefilling[request]
                self._expects_no_more(request)

    def _advance_decodes(self, step: Step, tick: int) -> None:
        """End requests whose last token comes with this step, unless that is not known yet."""
        for request in self._decoding.due(tick):
            step.ending.append(request)
            if not request.ends_late:
                self._decoding.stop(request, tick)
                self._expects_no_more(request)

    def _expects_no_more(self, request: Request) -> None:
        request.status = ENDING
        if self._async:  # other steps are planned while it is here
            self.kv.settle(request, request.computed)
            self._running.ending[request] = None

    def resolve(self, step: Step, steps: int = 1, stopped: Iterable[Request] = ()) -> list[Request]:
        """Apply the outcome of a step, or of `steps` more of those launched with it; returns the finished
        requests.

        The requests may have changed state since: preempted, stalled, or running again.

        Args:
            stopped: as for `finish`.
        """
        self.resolved += steps
        if self.resolved < step.end_tick:
            return []  # no request ends before the last of identical steps
        finished = step.ending
        self._unsettled -= len(finished)
        if stopped or (self._async and finished):
            finished = self._ended(finished, stopped, step.end_tick - 1)
        if len(finished) > 1:
            finished.sort(key=_running_order)
        for request in finished:
            self._complete(request)
        return finished

    def _ended(self, expected: Iterable[Request], stopped: Iterable[Request], tick: int) -> list[Request]:
        """Requests whose last token came with step `tick`, if still present; later tokens are discarded."""
        ended = dict.fromkeys([r for r in (*expected, *stopped) if r.status is not FINISHED])
        for request in ended:
            if request.status is DECODING:
                self._decoding.stop(request, self.tick)
                request.status = ENDING
            planned = request.generated
            request.forget_since(tick + 1)
            self.counters.discarded_tokens += planned - request.generated
        for request in stopped:
            if request in ended:
                request.finish_reason = FinishReason.STOP
        return list(ended)

    def identical_decode_steps(self, step: Step) -> int:
        """Number of consecutive identical decode steps, this one included, absent arrivals and timeouts.

        For that many steps the same requests decode one token each, none finishes before the last of them,
        every block allocation succeeds, and waiting requests keep waiting: the number of free blocks only
        decreases, so a head of the queue that does not fit now will not fit then.
        """
        if step.prefills or step.preempted or self._unsettled or not self._foresees:
            return 1
        if self.loads is not None and (self.loads.begun or (self.waiting and self._room_to_admit())):
            return 1  # the source's offer to the head of the queue may change with time
        if self._rule is not None and self._rule.varies and self.waiting:
            return 1
        decoding, tick = self._decoding, self.tick
        steps = decoding.next_finish_tick() - tick
        if tick < self._former.opens_tick < tick + steps and self.waiting:
            steps = self._former.opens_tick - tick
        if steps == 1:
            return 1
        free = self.kv.pool.num_free - self._owed_blocks
        if self._cache_aware and self._cache_aware.looks_at_cache and self._room_to_admit():
            # Eviction may put another request, one that fits, at the head of the queue.
            if self._former.admits_first and decoding.crossings[tick % self._block_size]:
                return 1  # it was checked before this step's decodes took blocks
            free = max(min(free, self.kv.pool.num_blank - self._owed_blocks), 0)
        return 1 + decoding.steps_within(tick + 1, free, steps - 1)

    def _room_to_admit(self) -> bool:
        """Whether waiting requests lack only blocks: a decode step leaves places and token budget."""
        budget_left = self._former.admits_first or self._decoding.count < self._budget
        return budget_left and len(self.running) < self._max_num_seqs

    # -- state visible to the driver -------------------------------------------------------------

    @property
    def decoding(self) -> Iterator[Request]:
        """The requests that decode in the current step, in running order."""
        return (request for request in self.running if request.status is DECODING)

    @property
    def decode_tokens(self) -> int:
        """Tokens computed by decoding requests so far, refused drafts included."""
        return self._decoding.computed_tokens(self.tick) + self._rows_alone

    def blocks_in_use(self, steps: int = 1) -> int:
        """Blocks in use during the last of `steps` steps like the one just planned."""
        more = self._decoding.blocks_for(self.tick + 1, steps - 1) if steps > 1 else 0
        return self.kv.pool.in_use + self._owed_blocks + more

    def take_blocks(self, steps: int) -> None:
        """Reserve the blocks of the first `steps` of the planned identical steps, ahead of `advance`."""
        blocks = self._owed_blocks + self._decoding.blocks_for(self.tick + 1, steps - 1)
        if blocks:
            self.kv.pool.reserve(blocks)
            self._owed_blocks -= blocks

    def plan_alike(self) -> None:
        """Plan the next of identical steps, of which fewer than planned have been launched."""
        self._owed_blocks += self._decoding.crossings[self.tick % self._block_size]

    def settle(self, request: Request) -> None:
        """Bring `computed`, `generated` and the block table of a decoding request up to date.

        During a step they have their values from the beginning of the step.
        """
        if request.status is DECODING:
            request.computed = request.base + self.tick
            request.generated = request.computed + 1 - request.prompt_tokens
            request.last_tick = self.tick - 1
            self.kv.settle(request, request.computed)

    def settled_generated(self, request: Request) -> int:
        """Output tokens of a running request so far."""
        if request.status is DECODING:
            return request.base + self.tick + 1 - request.prompt_tokens
        return request.generated

    def block_table(self, request: Request) -> list[int]:
        """The block table of a request in the planned step, including the tokens computed there."""
        if self._owed_blocks:
            self.kv.pool.reserve(self._owed_blocks)
            self._owed_blocks = 0
        if request.status is DECODING:
            self.kv.settle(request, request.base + self.tick, in_step=1)
        return request.block_table

    def __repr__(self) -> str:
        return (
            f"Scheduler(step {self.tick}: {len(self.running)} running, {len(self.waiting)} waiting, "
            f"{self.kv.pool.num_free} of {self.kv.pool.total} blocks free)"
        )

    def check(self) -> None:
        """Check that every block is either free or held by a running request.

        To be called between steps; settles all requests, so it costs a walk.

        Raises:
            AssertionError: one is not.
        """
        for request in self.running:
            self.settle(request)
        held = [block for request in self.running for block in request.block_table]
        assert not self.kv.pool.num_reserved, "blocks were taken for nobody"
        for request in self.running:
            expected, holds = self.kv.blocks_of(request.computed), len(request.block_table)
            drafted = holds > expected and request.bursts is not None
            assert holds == expected or drafted, f"{request!r} holds a wrong number of blocks"
        if self.loads is not None:
            held += self.loads.check_blocks()
        held += [block for request in self.holding for block in request.block_table]
        self.kv.pool.check(held)

    # -- supplied by the kind of request ----------------------------------------------------------

    def _refusal(self, tokens: int) -> str:
        if tokens > self.config.max_model_len:
            return f"needs {tokens} tokens, max_model_len is {self.config.max_model_len}"
        blocks = -(-(tokens - 1) // self._block_size)
        return f"needs {blocks} KV blocks, the pool has {self.config.num_kv_blocks}"

    def _first_tokens(self, request: Request, cached: int, budget: int) -> int:
        wanted = request.prompt_tokens + request.generated - cached
        if self._rule is not None and not self._rule.admits(request, wanted):
            return 0
        return self._former.first_tokens(wanted, budget)

    def _admitted(self, request: Request) -> None:
        request.status = PREFILLING
        self._prefilling[request] = None

    def _leave(self, request: Request, keep: bool = False) -> None:
        if request.status is DECODING:
            self._decoding.stop(request, self.tick)
        elif request.status is PREFILLING:
            del self._prefilling[request]
        elif request.status is ENDING:
            if self._async:
                self._running.ending.pop(request, None)
        else:
            del self._stalled[request]
        del self.running[request]
        if request.keeps_blocks and not keep:
            self.holding[request] = None
        else:
            self.kv.release(request, keep)

    def _forget(self, request: Request) -> None:
        request.forget_since(self.resolved)

    def _features(self, prefills: Sequence[tuple[Request, int]]) -> StepFeatures:
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
            if past + new == length:
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
            scanned_requests=0 if self._cache_aware is None else self._cache_aware.scanned_requests,
        )


def _running_order(request: Request) -> int:
    return request.seq
