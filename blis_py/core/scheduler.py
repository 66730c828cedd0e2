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

from collections.abc import Iterable, Iterator, Sequence

from blis_py.core.batch_former import BATCH_FORMERS, Running
from blis_py.core.cache_aware import CacheAwareQueue
from blis_py.core.checks import check_scheduler_config
from blis_py.core.config import SchedulerConfig
from blis_py.core.counters import Counters
from blis_py.core.decoding import DecodeSet
from blis_py.core.features import StepFeatures
from blis_py.core.lifecycle import Lifecycle, note_scheduled
from blis_py.core.radix_kv import RadixKV
from blis_py.core.request import FinishReason, Request, Status
from blis_py.core.step import Prefills, Step

_PREFILLING, _DECODING = Status.PREFILLING, Status.DECODING
_NO_FEATURES = StepFeatures()


class Scheduler(Lifecycle):
    """Queues, token budget, KV blocks and preemption of one instance.

    Args:
        config: limits and policies.
        track_longest: report the longest context in the features (-1 otherwise).

    Raises:
        InputError: a setting that cannot work.
    """

    def __init__(self, config: SchedulerConfig, track_longest: bool = False) -> None:
        check_scheduler_config(config)
        # A sequence can be no longer than the pool, or it could never finish.
        room = config.num_kv_blocks * config.block_size + 1
        super().__init__(config, Counters(), min(config.max_model_len, room))
        self.tick = 0
        """Steps finished; the index of the step being planned or executed."""
        self._budget = config.max_num_batched_tokens
        self._publish = self.kv.publish if isinstance(self.kv, RadixKV) else None
        self._track_longest = track_longest
        self._decoding = DecodeSet(config.block_size, track_longest)
        self._running = Running(self._decoding)
        self._prefilling, self._stalled = self._running.prefilling, self._running.stalled
        self._former = BATCH_FORMERS[config.batch_former](config, self.kv, self._running)
        self._owed_blocks = 0
        """Blocks the decodes of the planned step need, not yet taken from the pool."""
        self._cache_aware: CacheAwareQueue | None = None
        """The waiting queue, if its order depends on the cache."""
        if isinstance(self.waiting, CacheAwareQueue):
            self._cache_aware = self.waiting
            self.waiting.attach(self.kv, self._prefilling, self.counters)

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
        self._former.fill(step, prefills, self, self.tick, now_ns)
        if not prefills and not self._decoding.count:
            raise RuntimeError(f"the scheduler is stuck: {self!r}")  # work-conserving by construction
        note_scheduled(step.admitted, now_ns)
        step.features = self._features(prefills)
        return step

    def finish(self, step: Step, steps: int = 1, stopped: Iterable[Request] = ()) -> list[Request]:
        """Applies the outcome of a step, or of `steps` alike ones; returns the requests that finished.

        A request whose computed tokens have reached its length emits one token. `steps` may not
        exceed `repeats(step)`.

        Args:
            stopped: requests whose token was an end of sequence or completed a stop string, where a real
                model says so.
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
        if stopped:
            finished += self._stopped_early(stopped)
        if len(finished) > 1:
            finished.sort(key=_running_order)
        for request in finished:
            self._complete(request)
        return finished

    def _finish_prefills(self, prefills: Sequence[tuple[Request, int]], tick: int) -> list[Request]:
        """Who has its whole prompt in the cache begins to decode; returns those who need not."""
        finished: list[Request] = []
        publish = self._publish
        for request, tokens in prefills:
            self.counters.prefill_tokens += tokens
            request.computed = computed = request.computed + tokens
            if publish is not None:
                publish(request)
            if computed < request.prompt_tokens + request.generated:
                continue
            del self._prefilling[request]
            request.generated += 1
            request.note_emission(tick - 1)
            if request.generated < request.target:
                self._decoding.start(request, tick)
            else:
                finished.append(request)
        return finished

    def _stopped_early(self, stopped: Iterable[Request]) -> list[Request]:
        """Those that the model itself ends before their target."""
        early: list[Request] = []
        for request in stopped:
            request.finish_reason = FinishReason.STOP
            self.settle(request)
            if request.generated < request.target:
                early.append(request)
        return early

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
            if self._former.admits_first and decoding.crossings[tick % self._block_size]:
                return 1  # it was asked before this step's decodes took blocks
            free = max(min(free, self.kv.pool.num_blank - self._owed_blocks), 0)
        return 1 + decoding.steps_within(tick + 1, free, steps - 1)

    def _room_to_admit(self) -> bool:
        """Whether whoever waits, waits for blocks: places and token budget are left in a decode step."""
        budget_left = self._former.admits_first or self._decoding.count < self._budget
        return budget_left and len(self.running) < self._max_num_seqs

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

    # -- what a kind of request supplies ----------------------------------------------------------

    def _refusal(self, tokens: int) -> str:
        if tokens > self.config.max_model_len:
            return f"needs {tokens} tokens, max_model_len is {self.config.max_model_len}"
        blocks = -(-(tokens - 1) // self._block_size)
        return f"needs {blocks} KV blocks, the pool has {self.config.num_kv_blocks}"

    def _first_tokens(self, request: Request, cached: int, budget: int) -> int:
        return self._former.first_tokens(request.prompt_tokens + request.generated - cached, budget)

    def _admitted(self, request: Request) -> None:
        request.status = _PREFILLING
        self._prefilling[request] = None

    def _leave(self, request: Request, keep: bool = False) -> None:
        if request.status is _DECODING:
            self._decoding.stop(request, self.tick)
        elif request.status is _PREFILLING:
            self._prefilling.pop(request, None)
        else:
            del self._stalled[request]
        del self.running[request]
        self.kv.release(request, keep)

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


def _running_order(request: Request) -> int:
    return request.seq
