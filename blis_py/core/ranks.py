"""Several schedulers whose ranks step together: data-parallel attention beside shared experts.

Each rank has a queue, KV blocks and limits of its own, and every step of the group is one step of each; a
rank without work runs a dummy batch. A request stays on the rank that is chosen when it arrives.

    group step = [rank's step or dummy, ...]       until the slowest rank is done

A rank whose step repeats itself is planned once and booked in one go, when something reaches it or its
repetitions are over: an event costs what changes on its own rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from blis_py.core._fifo import FifoQueue
from blis_py.core._rank_views import RankedKV, RankedPool, RankQueues
from blis_py.core.compiled_classes import mypyc_attr
from blis_py.core.config import SchedulerConfig
from blis_py.core.counters import Counters
from blis_py.core.features import StepFeatures
from blis_py.core.kv_source import KVSource
from blis_py.core.rank_choice import RANK_CHOICES, RankLoad
from blis_py.core.rank_features import RankedFeatures
from blis_py.core.request import NEVER_NS, FinishReason, Request
from blis_py.core.scheduler import Scheduler
from blis_py.core.step import Prefills, Step
from blis_py.core.step_scheduler import StepScheduler

_FOREVER: Final = 1 << 60
"""Steps that a rank without work repeats."""


class Rank:
    """A rank's scheduler, and the step that it repeats.

    The rank's counters lag behind the group's by the repetitions that are launched and not booked.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.part = Step(StepFeatures())
        self.works = False
        """Whether the part is not a dummy."""
        self.until_tick = 0
        """Steps of the group after which the rank's next step is planned anew."""
        self.load = RankLoad()
        self.may_vary = scheduler.loads_kv or not isinstance(scheduler.waiting, FifoQueue)
        """Whether time alone may change what the rank does next."""
        self._changes_ns = NEVER_NS
        """Time from which its waiting queue has another order than in the part."""
        self._used = self._used_tick = 0
        """Blocks in use during the step before this one."""

    def plan(self, now_ns: int, tick: int, resolved: int) -> None:
        """Plan the rank's next step."""
        self.book(tick, resolved)
        scheduler = self.scheduler
        scheduler.unplan()
        part = scheduler.schedule(now_ns)
        self.works = part is not None
        if part is None:  # a step in flight may still free blocks, with which requests start
            repeats = not scheduler.has_candidates and scheduler.is_settled
            self.part, self.until_tick = Step(StepFeatures()), tick + (_FOREVER if repeats else 1)
            self.part.preempted = scheduler.take_preempted_in_dummy()
        else:
            self.part, self.until_tick = part, tick + scheduler.identical_decode_steps(part)
        self._used, self._used_tick = scheduler.blocks_in_use(), tick + 1
        change_ns = scheduler.waiting.next_change_ns(now_ns) if scheduler.waiting else None
        self._changes_ns = NEVER_NS if change_ns is None else change_ns

    def varies(self, now_ns: int) -> bool:
        """Whether the time alone has changed what the rank does next, or KV may have come."""
        return self.scheduler.loads_kv or now_ns >= self._changes_ns

    def used_before(self, tick: int) -> int:
        """Blocks in use during the step before this one of the group, which the part reaches."""
        if self.works and tick > self._used_tick:
            self._used += self.scheduler.decode_blocks(self._used_tick, tick - self._used_tick)
            self._used_tick = tick
        return self._used

    def book(self, tick: int, resolved: int) -> None:
        """Apply the repetitions launched so far; the next step is planned anew.

        Args:
            tick: steps that the group has launched.
            resolved: those whose outcome is known.
        """
        scheduler = self.scheduler
        if scheduler.tick < tick:
            scheduler.advance(self.part, tick - scheduler.tick)
        scheduler.resolved = resolved
        self.until_tick = tick

    def book_between(self, tick: int, resolved: int) -> None:
        """Apply the repetitions launched so far, and go on repeating."""
        launched, until_tick = tick - self.scheduler.tick, self.until_tick
        if not launched:
            return
        features = self.part.features.after(launched)
        self.book(tick, resolved)
        if until_tick > tick:
            self.part, self.until_tick = Step(features), until_tick
            self.scheduler.plan_alike()

    def see(self, tick: int) -> RankLoad:
        """The load that a policy sees before this step of the group."""
        load, scheduler = self.load, self.scheduler
        load.waiting = scheduler.queue_depth
        load.running = len(scheduler.running)
        if load.waiting:
            load.kv_use = self.used_before(tick) / scheduler.kv.pool.total
        return load


@mypyc_attr(acyclic=True)
class GroupStep(Step):
    """A step of all ranks."""

    __slots__ = ("ends",)

    def __init__(
        self,
        features: StepFeatures,
        prefills: Prefills,
        admitted: list[Request],
        preempted: list[Request],
        emissions: dict[Request, int],
    ) -> None:
        super().__init__(features, prefills, admitted, preempted)
        self.emissions = emissions or None
        self.ends: list[tuple[Rank, Step]] = []
        """Ranks with requests that end with it, and their parts."""


class RankedScheduler(StepScheduler):
    """Queues, token budgets, KV blocks and preemption of ranks that step together.

    Args:
        config: limits of all ranks together, in equal parts.
        ranks: schedulers of the ranks, made with the same counters.
        source: KV from outside the instance; None = there is none.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        ranks: list[Scheduler],
        counters: Counters,
        source: KVSource | None = None,
    ) -> None:
        super().__init__(config, counters, ranks[0].most_tokens, source)
        self.ranks = [Rank(scheduler) for scheduler in ranks]
        for scheduler in ranks:
            scheduler.publishes_late = False  # of outcomes, a rank learns of ends alone
            scheduler.steps_alone = scheduler.withdraws_late = False
        self.loads = None
        self.waiting = RankQueues(ranks)
        self._pool = RankedPool(ranks, self.book)
        self.kv = RankedKV(ranks, self._pool)
        self._rank_of: dict[Request, Rank] = {}
        self._choose = RANK_CHOICES[config.rank_choice]
        self._features = [rank.part.features for rank in self.ranks]
        """Features of each rank's part when it was planned, `_since` so many steps of the group."""
        self._since = [0] * len(ranks)
        self._sent = 0
        self._balance_steps = config.rank_balance_steps
        self._held_since = -1
        self._has_waves = config.prefill_schedule_interval > 1
        self._idles = True
        """Whether no rank had work when the next step was last planned."""
        self._dummy_tick = -1
        """Step instead of which all ranks last ran dummies, with one in flight."""

    # -- arrivals and departures ------------------------------------------------------------------

    def add(self, request: Request) -> str | None:
        loads = [rank.see(self.tick) for rank in self.ranks]
        rank = self.ranks[self._choose(loads, request, self._sent)]
        refusal = rank.scheduler.add(request)
        if refusal is None:
            self._sent += 1
            self._rank_of[request] = rank
            rank.load.prompt_tokens += request.prompt_tokens
            rank.book(self.tick, self.resolved)
            self._note_deadlines()
        return refusal

    def expire(self, now_ns: int) -> list[Request]:
        expired: list[Request] = []
        for rank in self.ranks:
            if rank.scheduler.first_deadline_ns <= now_ns:
                rank.book(self.tick, self.resolved)
                expired += rank.scheduler.expire(now_ns)
        self._forget_all(expired)
        self._note_deadlines()
        return expired

    def free_let_go(self) -> None:
        for rank in self.ranks:
            if rank.scheduler.lets_go:
                rank.book(self.tick, self.resolved)
                rank.scheduler.free_let_go()
        self._note_deadlines()

    def cancel(self, request: Request, now_ns: int) -> None:
        self._rank_of[request].scheduler.cancel(request, now_ns)
        self._note_deadlines()

    def abort(self, request: Request, reason: FinishReason = FinishReason.ABORT) -> None:
        rank = self._rank_of[request]
        rank.book(self.tick, self.resolved)
        rank.scheduler.abort(request, reason)
        self._forget_all([request])
        self._note_deadlines()

    def let_go(self, request: Request, now_ns: int) -> None:
        for rank in self.ranks:
            rank.scheduler.let_go(request, now_ns)
        self._note_deadlines()

    def set_deadline(self, request: Request, deadline_ns: int) -> None:
        self._rank_of[request].scheduler.set_deadline(request, deadline_ns)
        self._note_deadlines()

    def kv_ready_at(self, request: Request, ready_ns: int) -> None:
        self._rank_of[request].scheduler.kv_ready_at(request, ready_ns)

    def place(self, request: Request, computed: int) -> None:
        raise NotImplementedError("requests are placed on a rank")

    def _forget_all(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self._rank_of.pop(request).load.prompt_tokens -= request.prompt_tokens
            self.running.pop(request, None)

    def _note_deadlines(self) -> None:
        first_ns = NEVER_NS
        for rank in self.ranks:
            if rank.scheduler.first_deadline_ns < first_ns:
                first_ns = rank.scheduler.first_deadline_ns
        self.first_deadline_ns = first_ns

    # -- what is visible ----------------------------------------------------------------------------

    @property
    def queue_depth(self) -> int:
        return sum(rank.scheduler.queue_depth for rank in self.ranks)

    @property
    def queued(self) -> list[Request]:
        return [request for rank in self.ranks for request in rank.scheduler.queued]

    @property
    def committed(self) -> int:
        return sum(rank.scheduler.committed for rank in self.ranks)

    def committed_beside(self, request: Request) -> int:
        return self._rank_of[request].scheduler.committed

    def free_places(self, request: Request) -> int:
        return self._rank_of[request].scheduler.free_places(request)

    def receiving_beside(self, request: Request) -> list[Request]:
        return self._rank_of[request].scheduler.receiving_beside(request)

    @property
    def kv_under_way(self) -> bool:
        return any(rank.scheduler.kv_under_way for rank in self.ranks)

    @property
    def holds(self) -> bool:
        return any(rank.scheduler.holds for rank in self.ranks)

    @property
    def has_candidates(self) -> bool:
        return any(rank.scheduler.has_candidates for rank in self.ranks)

    def next_change_ns(self, now_ns: int) -> int:
        change_ns = self.first_deadline_ns
        for rank in self.ranks:
            if rank.may_vary:
                change_ns = min(change_ns, rank.scheduler.next_change_ns(now_ns))
        return change_ns

    @property
    def decoding(self) -> Iterator[Request]:
        return (request for rank in self.ranks for request in rank.scheduler.decoding)

    @property
    def decode_tokens(self) -> int:
        self.book()
        return sum(rank.scheduler.decode_tokens for rank in self.ranks)

    def settle(self, request: Request) -> None:
        rank = self._rank_of.get(request)
        if rank is not None:
            rank.book_between(self.tick, self.resolved)
            rank.scheduler.settle(request)

    def book(self) -> None:
        """Apply all launched steps to every rank."""
        for rank in self.ranks:
            rank.book_between(self.tick, self.resolved)

    # -- one step ------------------------------------------------------------------------------

    def schedule(self, now_ns: int) -> Step | None:
        if self._balance_steps:
            self._balance()
        if self._has_waves and self._idles:
            for rank in self.ranks:
                rank.scheduler.begin_wave(self.tick)
        prefills: Prefills = []
        admitted: list[Request] = []
        preempted: list[Request] = []
        emissions: dict[Request, int] = {}
        works = False
        for number, rank in enumerate(self.ranks):
            if rank.until_tick <= self.tick or (rank.may_vary and rank.varies(now_ns)):
                rank.plan(now_ns, self.tick, self.resolved)
                self._follow(rank, number)
                prefills += rank.part.prefills
                admitted += rank.part.admitted
                preempted += rank.part.preempted
                if rank.part.emissions:
                    emissions |= rank.part.emissions
            works = works or rank.works
        self._idles = not works and not preempted and self.resolved == self.tick
        if not works:
            self._run_dummies()
            self._plan_anew()
            return self._plan_behind_dummies(preempted, now_ns) if preempted else None
        features = RankedFeatures(self._features, self._since, self.tick)
        return GroupStep(features, prefills, admitted, preempted, emissions)

    def _plan_behind_dummies(self, preempted: list[Request], now_ns: int) -> Step | None:
        """Plan the next step at once when all ranks only preempt, if anything."""
        self._count_dummies()
        step = self.schedule(now_ns)
        if step is not None:
            step.preempted = [*preempted, *step.preempted]
        return step

    def _run_dummies(self) -> None:
        """Count the dummies of all ranks beside a step in flight, which belong to its wave."""
        if self._has_waves and self.resolved < self.tick != self._dummy_tick:
            self._dummy_tick = self.tick
            self._count_dummies()

    def _count_dummies(self) -> None:
        for rank in self.ranks:
            rank.scheduler.count_dummy()

    def _plan_anew(self) -> None:
        """Let ranks with candidates plan again: no step of the group takes place now."""
        for rank in self.ranks:
            if rank.scheduler.has_candidates:
                rank.until_tick = self.tick

    def _follow(self, rank: Rank, number: int) -> None:
        """Note a rank's new part."""
        part, running = rank.part, self.running
        self._features, self._since = self._features.copy(), self._since.copy()
        self._features[number], self._since[number] = part.features, self.tick
        if not rank.works and rank.scheduler.has_candidates:
            for request in rank.scheduler.waiting:  # perhaps preempted for a step that came to nothing
                running.pop(request, None)
        for request in part.preempted:
            running.pop(request, None)
        for request in part.admitted:
            running[request] = None

    def _balance(self) -> None:
        """Hold prompts back until every rank has one, for some steps and while every rank has decodes
        (TensorRT-LLM's `enable_balance`)."""
        some = lack = False
        for rank in self.ranks:
            lack = lack or not rank.scheduler.has_candidates
            some = some or rank.scheduler.has_candidates
        held = False
        if some and lack and all(rank.scheduler.decode_seqs for rank in self.ranks):
            if self._held_since < 0:
                self._held_since = self.tick
            held = self.tick - self._held_since < self._balance_steps
        if not held:
            self._held_since = -1
        opens_tick = self._held_since + self._balance_steps if held else 0
        for rank in self.ranks:
            if rank.scheduler.hold_prompts(opens_tick):
                rank.book(self.tick, self.resolved)

    def identical_decode_steps(self, step: Step) -> int:
        if step.prefills or step.preempted:
            return 1
        until_tick = self.ranks[0].until_tick
        for rank in self.ranks:
            if rank.until_tick < until_tick:
                until_tick = rank.until_tick
        return until_tick - self.tick

    def advance(self, step: Step, steps: int = 1) -> None:
        assert isinstance(step, GroupStep)
        self.tick = step.end_tick = tick = self.tick + steps
        used = 0
        for rank in self.ranks:
            used += rank.used_before(tick)
            if rank.until_tick <= tick:
                rank.book(tick, self.resolved)
                if rank.part.ending:
                    step.ending += rank.part.ending
                    step.ends.append((rank, rank.part))
        if used > self._pool.most_used:
            self._pool.most_used = used

    def resolve(self, step: Step, steps: int = 1, stopped: Iterable[Request] = ()) -> list[Request]:
        assert isinstance(step, GroupStep)
        if stopped:
            raise NotImplementedError("the end of a sequence is for the scheduler of its rank")
        before, self.resolved = self.resolved, self.resolved + steps
        finished: list[Request] = []
        if self.resolved < step.end_tick or not step.ends:
            return finished
        for rank, part in step.ends:
            rank.scheduler.resolved = before
            ended = rank.scheduler.resolve(part, steps)
            if ended:
                rank.book(self.tick, self.resolved)
                finished += ended
        if finished:
            self._forget_all(finished)
            self._note_deadlines()
        return finished

    def ends_with(self, request: Request, step: Step, steps: int) -> bool:
        rank = self._rank_of.get(request)
        if rank is None:
            return False
        return rank.scheduler.ends_with(request, rank.part, self.tick - rank.scheduler.tick + steps)

    def blocks_in_use(self, steps: int = 1) -> int:
        used = 0
        for rank in self.ranks:
            launched = self.tick - rank.scheduler.tick
            used += rank.scheduler.blocks_in_use(launched + steps if rank.until_tick > self.tick else 1)
        return used

    def take_blocks(self, steps: int) -> None:
        for rank in self.ranks:
            if rank.until_tick > self.tick:
                rank.scheduler.take_blocks(self.tick - rank.scheduler.tick + steps)

    def plan_alike(self) -> None:
        for rank in self.ranks:
            if rank.until_tick <= self.tick:
                rank.scheduler.plan_alike()

    def leave_out_last(self) -> None:
        self.book()
        for rank in self.ranks:
            rank.scheduler.leave_out_last()
