"""Autoregressive requests as steps change them: a step is launched, then its outcome is applied.

Between the two, tokens count as computed, and slots and blocks are kept. Decoding requests are aggregates
(`DecodeSet`): a step costs what changes with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from blis_py.core._caches import room_tokens
from blis_py.core.batch_former import Running
from blis_py.core.checks import check_scheduler_config
from blis_py.core.config import SchedulerConfig
from blis_py.core.counters import Counters
from blis_py.core.decoding import DecodeSet
from blis_py.core.emission import Bursts, Emission
from blis_py.core.kv_source import KVSource
from blis_py.core.request import (
    DECODING,
    ENDING,
    FINISHED,
    PREFILLING,
    STALLED,
    WAITING,
    FinishReason,
    Request,
)
from blis_py.core.step import Step
from blis_py.core.step_scheduler import StepScheduler

_RUNNING: Final = (DECODING, STALLED, ENDING)
"""States of running requests whose prompts are complete."""


class StepProgress(StepScheduler):
    """The running requests of one instance, their tokens and blocks, from step to step.

    Args:
        config: limits and policies.
        track_longest: keep the longest context of the decoding requests.
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
        track_longest: bool,
        source: KVSource | None,
        emission: Emission | None,
        counters: Counters | None,
        check: bool,
    ) -> None:
        if check:
            check_scheduler_config(config)
        # A sequence cannot be longer than the pool, or it could never finish.
        room = room_tokens(config) + 1
        super().__init__(config, counters or Counters(), min(config.max_model_len, room), source)
        self._decoding = DecodeSet(config.block_size, track_longest)
        self._bursts = None if emission is None else Bursts(emission, config, self._max_tokens)
        self._rows_alone = 0
        """Positions computed by decode steps outside the aggregate, see `Request.continues`."""
        self._running = Running(self._decoding, self._bursts)
        self._prefilling, self._stalled = self._running.prefilling, self._running.stalled
        self._awaits = config.async_scheduling and config.blocks_await_outcome
        self._finds_at_outcome = self._awaits or config.drafts_found_at_outcome
        self._overlaps = False
        """With it: whether a step was in flight when the last one was planned."""
        self.publishes_late = config.batch_former == "prefill-only"
        """Whether others find a chunk of a prompt when the next step is planned, and the whole prompt once
        the outcome of its last step is known, as in SGLang; otherwise at the launch of the step."""
        self._evicts_ahead = self.kv.evicts_ahead
        self._unsettled = 0
        """Requests that end with a step whose outcome is not known yet."""
        self._grouped, self._per_crossing = self.kv.grouped, self.kv.per_crossing
        if self._grouped:
            self._decoding.know_members()
        self._steps_taken = 0
        """With groups of layers: identical steps whose blocks have been taken, the planned one included."""
        self._chunks_leave = config.aborts_at == "output-or-chunk"
        self._unpublished = False
        """Whether a request that leaves now adds nothing to the prefix cache."""
        self._owed_blocks = 0
        """Blocks the decodes of the planned step need and that are not reserved yet; negative if reserved
        ahead."""

    def add(self, request: Request) -> str | None:
        if self._bursts is not None and self._bursts.emission.is_irregular(request):
            request.bursts = []
        return super().add(request)

    def withdraw(self, request: Request, reason: FinishReason = FinishReason.ABORT) -> bool:
        alone = request.keeps_blocks or request.bursts is not None
        late = self.withdraws_late and request in self.running and not alone
        if not late or (request.status is PREFILLING and self._chunks_leave):
            self._unpublished = late
            self.abort(request, reason)
            self._unpublished = False
            return True
        request.finish_reason = reason
        self._withdrawn[request] = None
        self._expect_no_timeout(request)
        return False

    # -- a step's outcome ---------------------------------------------------------------------------

    def ends_with(self, request: Request, step: Step, steps: int) -> bool:
        if request.status is DECODING:
            return request.finish_tick <= self.tick + steps
        for one, tokens in step.prefills:
            if one is request:
                complete = request.computed + tokens >= request.prompt_tokens + request.generated
                emitted = 1 if step.emissions is None else step.emissions.get(request, 1)
                return complete and request.generated + emitted >= request.target
        return False

    def advance(self, step: Step, steps: int = 1) -> None:
        pool, decoding, tick = self.kv.pool, self._decoding, self.tick
        if self._awaits:
            self._overlaps = steps > 1 or self.resolved < tick
        if self._evicts_ahead:
            self.kv.foresee_decodes(decoding, tick, steps)
        blocks = self._owed_blocks
        if self._grouped:
            self._take_by_groups(steps)
            self._steps_taken = 0
        elif steps > 1:
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

    def _take_by_groups(self, steps: int) -> None:
        """Take and free the blocks of so many steps, the planned one included, as far as that is not done."""
        pool, now = self.kv.pool, self.kv.pool.tick
        for ahead in range(max(self._steps_taken, 1), steps):
            pool.tick = self.tick + ahead
            self.kv.plan_step(self._decoding, self.tick + ahead, (), self._async)
        pool.tick = now
        self._steps_taken = max(self._steps_taken, steps)

    def _advance_prefills(self, step: Step, tick: int) -> None:
        """Start decoding for requests whose whole prompt is in the cache, if they have more to emit."""
        kv = self.kv
        for request, tokens in step.prefills:
            if request.bursts is not None and request.bursting:
                self._advance_burst(step, request, tokens, tick)
                continue
            before = request.generated
            length = request.prompt_tokens + before
            if request.continues:
                self._rows_alone += tokens
            else:
                self.counters.prefill_tokens += tokens
            positions = request.computed + tokens
            request.computed = min(positions, length)
            if request.bursts is not None:
                request.known = request.computed
            if positions < length:
                if not self.publishes_late:
                    kv.publish(request)
                continue
            if self.publishes_late:
                request.filled = (tick - 1, request.computed)
            else:
                kv.publish(request)
            request.generated = before + 1
            request.last_rows = tokens if positions > length else 0
            request.note_emission(tick - 1)
            if request.generated >= request.target:
                step.ending.append(request)
                if not self._ends_late(request, before):
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
        request.known = max(request.known, request.num_tokens - request.in_flight(self.resolved))
        request.computed += emitted
        request.generated = before + emitted
        request.last_rows = rows
        request.note_emission(tick - 1)
        if emitted > 1:
            assert request.bursts is not None
            request.bursts.append((tick - 1, emitted))
        if before < request.target <= request.generated:
            step.ending.append(request)
            if not self._ends_late(request, before):
                del self._prefilling[request]
                self._expects_no_more(request)

    def _ends_late(self, request: Request, before: int) -> bool:
        """Whether further steps are planned for a request that ends with the launched one.

        Args:
            before: tokens emitted before that step.
        """
        if request.bursts is None or self._bursts is None:
            return request.ends_late
        return not self._bursts.ends_for_sure(request, before)

    def _advance_decodes(self, step: Step, tick: int) -> None:
        """End requests whose last token comes with this step, unless that is not known yet."""
        for request in self._decoding.due(tick):
            step.ending.append(request)
            if not request.ends_late:
                unknown = self._unknown(request)
                self._decoding.stop(request, tick)
                self._expects_no_more(request, unknown)

    def _expects_no_more(self, request: Request, unknown: int = 0) -> None:
        request.status = ENDING
        if self._async:  # other steps are planned while it is here
            self.kv.settle(request, request.computed)
            self._running.ending[request] = self.tick if unknown else 0

    def _unknown(self, request: Request) -> int:
        """Tokens among those that a decoding request has computed that the engine did not know when it last
        registered blocks: with two steps in flight one after the other, that of the second."""
        last_tick = self.tick - 1
        if not self._overlaps or self.resolved > last_tick:
            return 0
        begins = request.last_tick == last_tick or (request.gaps and request.gaps[-1][1] == last_tick)
        return 0 if begins else 1

    def resolve(self, step: Step, steps: int = 1, stopped: Iterable[Request] = ()) -> list[Request]:
        self.resolved += steps
        if self.resolved < step.end_tick:
            return []  # no request ends before the last of identical steps
        if self._bursts is not None and self._finds_at_outcome:
            self._find_accepted(step.prefills)
        finished = step.ending
        self._unsettled -= len(finished)
        if self._withdrawn:
            stopped = [*stopped, *self._ending_early(step.end_tick - 1)]
        if stopped or (self._async and not _are_ending(finished)):
            finished = self._ended(finished, stopped, step.end_tick - 1)
        if len(finished) > 1:
            finished.sort(key=_running_order)
        if self.publishes_late and step.prefills:
            self._publish(step, finished)
        for request in finished:
            if request.status is not FINISHED:
                self._complete(request)
        return finished

    def _publish(self, step: Step, finished: list[Request]) -> None:
        """Let others find the prompts that a step completed; those that end with it leave, each in its
        turn."""
        tick = step.end_tick - 1
        for request, _ in step.prefills:
            if request in finished:
                self._complete(request)
            elif request.filled[0] == tick and request.status in _RUNNING:
                self.kv.publish_prompt(request)

    def _find_accepted(self, prefills: Iterable[tuple[Request, int]]) -> None:
        """Let others find the blocks that accepted drafts of a step have filled."""
        for request, _ in prefills:
            if request.bursting and (request.status is PREFILLING or request.status is ENDING):
                computed = request.num_tokens - 1 - request.in_flight(self.resolved)
                request.known = max(request.known, computed)

    def _ended(self, expected: list[Request], stopped: Iterable[Request], tick: int) -> list[Request]:
        """Requests whose last token came with step `tick`, if still present; later tokens are discarded."""
        ended = [r for r in expected if r.status is not FINISHED and not _was_retracted(r)]
        if stopped or len(ended) > 1:
            ended = list(dict.fromkeys([*ended, *[r for r in stopped if r.status is not FINISHED]]))
        for request in ended:
            if request.status is ENDING and not stopped:
                continue  # nothing was planned behind its last token
            if request.status is DECODING:
                if self._unknown(request):
                    self._running.ending[request] = self.tick
                self._decoding.stop(request, self.tick)
                request.status = ENDING
            planned = request.generated
            request.forget_since(tick + 1)
            self.counters.discarded_tokens += planned - request.generated
            if request.bursting and request.computed:
                request.computed = request.num_tokens - 1
        if stopped:
            for request in stopped:
                if request in ended and request.finish_reason is None:
                    request.finish_reason = FinishReason.STOP
        return ended

    def _ending_early(self, tick: int) -> list[Request]:
        """Requests without a client that emitted in this step, which is not the last planned for them."""
        early = [
            request
            for request in self._withdrawn
            if request.status in _RUNNING
            and not (request.status is ENDING and request.last_tick == tick)
            and self._emitted_in(request, tick)
        ]
        for request in early:
            request.ends_late = True  # nothing foresaw it
        return early

    def _emitted_in(self, request: Request, tick: int) -> bool:
        last_tick = self.tick - 1 if request.status is DECODING else request.last_tick
        if not 0 <= request.first_tick <= tick <= last_tick:
            return False
        return not any(before < tick < after for before, after in request.gaps or ())

    # -- state visible to the driver -------------------------------------------------------------

    @property
    def decoding(self) -> Iterator[Request]:
        return (request for request in self.running if request.status is DECODING)

    @property
    def decode_tokens(self) -> int:
        return self._decoding.computed_tokens(self.tick) + self._rows_alone

    def settle(self, request: Request) -> None:
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

    def known_outputs(self, request: Request) -> int:
        generated = self.settled_generated(request)
        last_tick = self.tick - 1 if request.status is DECODING else request.last_tick
        return generated - 1 if generated and last_tick >= self.resolved else generated

    def block_table(self, request: Request) -> list[int]:
        """The block table of a request in the planned step, including the tokens computed there."""
        if self._owed_blocks:
            self.kv.pool.reserve(self._owed_blocks)
            self._owed_blocks = 0
        if request.status is DECODING:
            self.kv.settle(request, request.base + self.tick, in_step=1)
        return request.block_table

    def check(self) -> None:
        """Check that every block is either free or held by a running request.

        To be called between steps; settles all requests, so it costs a walk.

        Raises:
            AssertionError: one is not.
        """
        for request in self.running:
            self.settle(request)
        held = [block for request in self.running for block in self.kv.held_blocks(request)]
        assert not self.kv.pool.num_reserved, "blocks were taken for no request"
        for request in self.running:
            assert self.kv.holds_enough(request), f"{request!r} holds a wrong number of blocks"
        if self.loads is not None:
            held += self.loads.check_blocks()
        held += [block for request in self.holding for block in self.kv.held_blocks(request)]
        self.kv.pool.check(held)

    # -- supplied by the kind of request ----------------------------------------------------------

    def _refusal(self, tokens: int) -> str:
        if tokens > self.config.max_model_len:
            return f"needs {tokens} tokens, max_model_len is {self.config.max_model_len}"
        blocks = self.kv.blocks_of(tokens - 1)
        return f"needs {blocks} KV blocks, the pool has {self.config.num_kv_blocks}"

    def _admitted(self, request: Request) -> None:
        request.status = PREFILLING
        request.known = request.computed if request.bursts is not None else -1
        request.last_rows = -1
        self._prefilling[request] = None

    def _leave(self, request: Request, keep: bool = False) -> None:
        unknown = 0
        if request.status is DECODING:
            unknown = self._unknown(request)
            self._decoding.stop(request, self.tick)
        elif request.status is PREFILLING:
            del self._prefilling[request]
        elif request.status is ENDING:
            if self._async and self._running.ending.pop(request, 0) > self.resolved:
                unknown = 1
        else:
            del self._stalled[request]
        del self.running[request]
        if request.known >= 0:
            unknown = request.computed - request.known
        if request.keeps_blocks and not keep:
            self.holding[request] = None
        else:
            self.kv.release(request, keep or self._unpublished, unknown)

    def retract(self, request: Request) -> None:
        if request.status is DECODING:
            self._decoding.stop(request, self.tick)
        else:
            del self._stalled[request]
        del self.running[request]
        self.kv.discard(request)
        planned = request.generated
        request.forget_since(self.resolved)
        self.counters.discarded_tokens += planned - request.generated
        self._back_to_queue(request, at_end=True)

    def _forget(self, request: Request) -> None:
        request.forget_since(self.resolved)


def _running_order(request: Request) -> int:
    return request.seq


def _was_retracted(request: Request) -> bool:
    """Whether it waits to compute again the token that was its last."""
    return request.status is WAITING and request.generated < request.target


def _are_ending(requests: list[Request]) -> bool:
    """Whether all of them are here, with nothing planned behind their last tokens."""
    return all(request.status is ENDING for request in requests)
