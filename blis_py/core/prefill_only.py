"""Batches of SGLang: steps of prompts alone, or of decodes alone.

`get_next_batch_to_run`, `update_running_batch` (`scheduler.py`) and `retract_decode` (`schedule_batch.py`).
"""

from __future__ import annotations

from blis_py.core.batch_former import PrefillFirst, Running
from blis_py.core.blocks import block_count
from blis_py.core.config import SchedulerConfig
from blis_py.core.kv import KVCache
from blis_py.core.lifecycle import Lifecycle
from blis_py.core.new_token_ratio import AHEAD_TOKENS
from blis_py.core.request import DECODING, ENDING, STALLED, Request
from blis_py.core.step import Prefills, Step


class PrefillOnly(PrefillFirst):
    """SGLang's order: a step computes prompts as long as there are any to compute, in chunks, or else
    decodes.

    Prompts are chunked by the budget alone, the last one of a step too; a prompt takes whole blocks of the
    budget, and chunks end at whole blocks. Between decodes, new requests are looked for in intervals of
    steps; after a step of prompts, always. Requests whose KV has come from elsewhere join the decodes at any
    step. The budget is of prompts: a step decodes all that run.

    When blocks run out, requests are retracted until those of the others suffice: their tokens in flight and
    their blocks are dropped, and they wait at the end of the queue.
    """

    def __init__(self, config: SchedulerConfig, kv: KVCache, running: Running) -> None:
        super().__init__(config, kv, running)
        self.decode_tokens = max(config.max_num_batched_tokens, config.max_num_seqs)
        self._interval = config.receive_interval
        self._looked_tick = 0
        self._ends_known = config.async_scheduling and not config.late_length_stops
        self._by_tokens = config.preemption_policy == "fewest-tokens"

    def fill(self, step: Step, prefills: Prefills, life: Lifecycle, tick: int, now_ns: int) -> None:
        prompts = self._prompts()
        for request in prompts:
            self._kv.publish(request)
        budget_tokens = self._continue_prefills(prompts, prefills, self._budget_tokens)
        if life.has_candidates and len(prefills) == len(prompts):
            only_arrived = not self._looks(tick)
            self._admit(step, prefills, life, budget_tokens, now_ns, only_arrived)
            if not prefills and not life.running and self.rule is not None and self.rule.forgets_departed():
                self._admit(step, prefills, life, budget_tokens, now_ns, only_arrived)
        self._kv.allocate(prefills)
        if self._computes_prompts(prefills):
            self._looked_tick = tick + 1
            self._stall_all_but(dict(prefills), list(life.running), tick)
            if self.rule is not None:
                self.rule.passed(any(request.computed + n < request.num_tokens for request, n in prefills))
        else:
            if not self._running.stalled:
                self._kv.foresee_decodes(self._running.decoding, tick, 1)
            self._serve_running(step, prefills, life, self.decode_tokens, tick)
            if self.rule is not None and not self._running.decoding.count and not prefills:
                self.rule.skipped()
            if self._running.bursts is not None:
                self._kv.allocate(prefills)

    def _continue_prefills(self, prompts: list[Request], prefills: Prefills, budget_tokens: int) -> int:
        rule = self.rule
        if rule is not None and prompts:
            rule.begin(len(prompts))
        for request in prompts:
            most = budget_tokens if rule is None else rule.chunk_tokens(budget_tokens)
            tokens = self._chunk_of(request, most)
            if tokens and self._kv.extend(request, tokens):
                prefills.append((request, tokens))
                budget_tokens -= self.budgeted_tokens(tokens)
                if rule is not None:
                    rule.took(request, tokens)
        return max(budget_tokens, 0)

    def _computes_prompts(self, prefills: Prefills) -> bool:
        """Whether a step has work other than decode steps of requests whose KV has come from elsewhere."""
        return any(not request.continues for request, _ in prefills)

    def first_tokens(self, uncomputed: int, budget_tokens: int) -> int:
        most, size = min(self._chunk, budget_tokens), self._block_size
        if self.budgeted_tokens(uncomputed) <= most:
            return uncomputed
        chunk = most // size * size
        return chunk or (most if most == min(self._chunk, self._budget_tokens) else 0)

    def budgeted_tokens(self, tokens: int) -> int:
        return block_count(tokens, self._block_size) * self._block_size

    def _looks(self, tick: int) -> bool:
        """Whether new requests are received before this step."""
        since = (tick - self._looked_tick) % self._interval
        idle = not self._running.decoding.count and not self._running.stalled
        if since and not idle:
            self.opens_tick = tick + self._interval - since
            return False
        self.opens_tick = 0
        return True

    # -- decodes ---------------------------------------------------------------------------------------

    def _walk_running(
        self, step: Step, prefills: Prefills, life: Lifecycle, budget_tokens: int, tick: int
    ) -> int:
        if prefills or self._running.prefilling:
            return super()._walk_running(step, prefills, life, budget_tokens, tick)
        requests = [request for request in life.running if request.status in (DECODING, STALLED)]
        needed = sum(self._crosses(request, tick) for request in requests)
        pool = self._kv.pool
        self._kv.check_decodes(needed)
        if needed > pool.num_free:
            if self._ends_known and any(request.status is ENDING for request in life.running):
                requests, needed = [], 0  # those in flight free their blocks at the end of their step
            else:
                needed = self._retract(step, requests, needed, life, tick)
        self._kv.launch_decodes(len(requests), tick)
        if needed:
            pool.reserve(needed)
        self._stall_all_but(dict.fromkeys(requests, 1), list(life.running), tick)
        return budget_tokens - len(requests)

    def _crosses(self, request: Request, tick: int) -> bool:
        """Whether its next token needs a new block."""
        context = request.computed if request.status is STALLED else request.base + tick
        return context % self._block_size == 0

    def _retract(self, step: Step, requests: list[Request], needed: int, life: Lifecycle, tick: int) -> int:
        """Retract from `requests` until the blocks suffice; returns those that the rest needs."""
        retracted: list[Request] = []
        while needed > self._kv.pool.num_free and len(requests) > 1:
            victim = requests.pop(self._victim(requests, life))
            needed -= self._crosses(victim, tick)
            life.retract(victim)
            retracted.append(victim)
            self._kv.check_decodes(self._kv.blocks_of(AHEAD_TOKENS * len(requests)))
            self._kv.check_decodes(needed)
        step.preempted = retracted
        if needed > self._kv.pool.num_free:
            requests.clear()
            return 0
        if self.rule is not None:
            self.rule.retracted(requests)
        return needed

    def _victim(self, requests: list[Request], life: Lifecycle) -> int:
        """Index of the next to retract; by tokens that with the fewest of output, among equals with the
        longest prompt, then the latest."""
        if not self._by_tokens:
            return self._pick_victim(requests)
        worth = [(-life.known_outputs(r), r.prompt_tokens, i) for i, r in enumerate(requests)]
        return max(worth)[2]
