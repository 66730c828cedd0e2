"""A group of ranks does, step by step, what schedulers of their own do with the requests of each rank."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

import pytest

from blis_py.core.config import SchedulerConfig
from blis_py.core.kv import KeySpace
from blis_py.core.rank_schedulers import of_one_rank, scheduler_of
from blis_py.core.ranks import RankedScheduler
from blis_py.core.request import Request
from blis_py.core.scheduler import Scheduler
from blis_py.core.step import Step

STEP_NS = 10


def config_of(rng: Random, ranks: int) -> SchedulerConfig:
    """Also with orders that time changes, and with some that look up every waiting request."""
    scheduler = rng.choice(("fcfs", "priority-fcfs", "sjf", "sjf", "lpm", "dfs-weight"))
    soon_ms = rng.choice((None, 3 * STEP_NS / 1e6))
    return SchedulerConfig(
        prefix_cache="radix" if scheduler in ("lpm", "dfs-weight") else "hash",
        sjf_aging_ms=soon_ms if scheduler == "sjf" else None,
        fairness_ms=soon_ms if scheduler in ("lpm", "dfs-weight") else None,
        num_kv_blocks=ranks * rng.choice((8, 20, 40)),
        max_model_len=60,
        block_size=rng.choice((2, 4)),
        max_num_seqs=ranks * rng.choice((1, 2, 5)),
        max_num_batched_tokens=ranks * rng.choice((5, 16, 64)),
        scheduler=scheduler,
        preemption_policy=rng.choice(("fcfs", "priority")),
        ranks=ranks,
        rank_choice="round-robin",
    )


class Both:
    """The group and the schedulers apart, with a request each."""

    def __init__(self, rng: Random) -> None:
        self.rng, self.now_ns = rng, 0
        self.count = rng.choice((2, 3))
        config = config_of(rng, self.count)
        group = scheduler_of(config)
        assert isinstance(group, RankedScheduler)
        self.group = group
        self.apart = [Scheduler(of_one_rank(config)) for _ in range(self.count)]
        for alone in self.apart:
            alone.steps_alone = False
        self.keys = KeySpace(config.block_size)
        self.requests: dict[str, tuple[Request, Request, Scheduler]] = {}
        self.sent = 0

    def add(self) -> None:
        rng, name = self.rng, f"r{len(self.requests)}-{self.sent}-{self.now_ns}"
        prompt, output = rng.randint(1, 24), rng.randint(1, 12)
        runs = [(rng.choice("ab"), rng.randint(1, prompt))]
        priority, patience_ns, keeps = rng.randrange(3), rng.choice((-1, -1, 45)), rng.random() < 0.3
        deadline_ns = -1 if patience_ns < 0 else self.now_ns + patience_ns
        pair: list[Request] = []
        for _ in range(2):
            request = Request(
                name,
                self.now_ns,
                prompt,
                output,
                output,
                priority,
                deadline_ns=deadline_ns,
                block_keys=self.keys.keys(runs),
            )
            request.keeps_blocks = keeps
            pair.append(request)
        alone = self.apart[self.sent % self.count]
        refusal = self.group.add(pair[0])
        assert refusal == alone.add(pair[1])
        if refusal is None:
            self.sent += 1
            self.requests[name] = pair[0], pair[1], alone

    def disturb(self) -> None:
        """Something happens to one of the requests."""
        if not self.requests:
            return
        name = self.rng.choice(sorted(self.requests))
        mine, other, alone = self.requests[name]
        if mine.finish_reason is not None:
            self.group.let_go(mine, self.now_ns)
            alone.let_go(other, self.now_ns)
            return
        how = self.rng.randrange(3)
        if how == 0 and mine.deadline_ns < 0:
            self.group.cancel(mine, self.now_ns)
            alone.cancel(other, self.now_ns)
        elif how == 1:
            self.group.abort(mine)
            alone.abort(other)
        elif how == 2:
            deadline_ns = self.rng.choice((-1, self.now_ns, self.now_ns + 30))
            self.group.set_deadline(mine, deadline_ns)
            alone.set_deadline(other, deadline_ns)

    def step(self) -> None:
        """A step, or a jump over some that repeat themselves."""
        expired = [request for one in self.apart for request in one.expire(self.now_ns)]
        assert names(self.group.expire(self.now_ns)) == names(expired)
        self.compare()
        step, preempted = self.group.schedule(self.now_ns), list[str]()
        while True:
            parts = [one.schedule(self.now_ns) for one in self.apart]
            idle = [one.take_preempted_in_dummy() for one in self.apart]
            for part, behind in zip(parts, idle, strict=True):
                preempted += names(behind if part is None else part.preempted)
            if any(parts) or not any(idle):
                break  # otherwise all ranks run dummies
        there = [part for part in parts if part is not None]
        assert (step is None) == (not there)
        if step is None:
            self.now_ns += STEP_NS
            return
        assert names(step.admitted) == [name for part in there for name in names(part.admitted)]
        assert names(step.preempted) == preempted
        assert tokens(step) == [pair for part in there for pair in tokens(part)]
        features: Any = step.features
        assert [rank.decode_seqs for rank in features.ranks] == [
            0 if part is None else part.features.decode_seqs for part in parts
        ]
        for name in ("decode_kv_tokens", "scanned_requests", "prefill_pairs", "emitted_rows"):
            assert getattr(features, name) == sum(getattr(part.features, name) for part in there)
        steps_ahead = max(1, -(-(self.group.next_change_ns(self.now_ns) - self.now_ns) // STEP_NS))
        steps = self.rng.randint(1, min(self.group.identical_decode_steps(step), 4, steps_ahead))
        used = [one.blocks_in_use(steps) for one in self.apart]
        assert self.group.blocks_in_use(steps) == sum(used)
        ending = {
            name for name, (mine, _, _) in self.requests.items() if self.group.ends_with(mine, step, steps)
        }
        finished = self.group.finish(step, steps)
        assert ending == set(names(finished)) - set(names(self.group.queued))
        other: list[Request] = []
        for one, part in zip(self.apart, parts, strict=True):
            other += [] if part is None else one.finish(part, steps)
        assert names(finished) == names(other)
        assert self.group.tick == self.group.resolved == step.end_tick
        self.now_ns += steps * STEP_NS

    def compare(self) -> None:
        """All that can be seen between two steps."""
        group, apart = self.group, self.apart
        assert group.queue_depth == len(group.waiting) == sum(one.queue_depth for one in apart)
        assert names(group.waiting) == [name for one in apart for name in names(one.waiting)]
        assert names(group.queued) == [name for one in apart for name in names(one.queued)]
        assert sorted(names(group.running)) == sorted(name for one in apart for name in names(one.running))
        assert names(group.decoding) == [name for one in apart for name in names(one.decoding)]
        assert group.committed == sum(one.committed for one in apart)
        assert group.holds == any(one.holds for one in apart)
        assert group.has_candidates == any(one.has_candidates for one in apart)
        assert not group.kv_under_way
        assert group.first_deadline_ns == min(one.first_deadline_ns for one in apart)
        assert group.next_change_ns(self.now_ns) == min(one.next_change_ns(self.now_ns) for one in apart)
        assert group.decode_tokens == sum(one.decode_tokens for one in apart)
        pools = [one.kv.pool for one in apart]
        assert group.kv.pool.in_use == sum(pool.in_use for pool in pools)
        assert group.kv.pool.total == sum(pool.total for pool in pools)


def names(requests: Iterable[Request]) -> list[str]:
    return [request.id for request in requests]


def tokens(step: Step) -> list[tuple[str, int]]:
    return [(request.id, number) for request, number in step.prefills]


@pytest.mark.parametrize("seed", range(25))
def test_a_group_of_ranks_does_what_its_schedulers_do_apart(seed: int) -> None:
    rng = Random(seed)
    both = Both(rng)
    for _ in range(60):
        for _ in range(rng.choice((0, 0, 1, 3))):
            both.add()
        if rng.random() < 0.3:
            both.disturb()
        both.step()
    assert both.sent > 5


class Guesses:
    """Every request with an even prompt computes three positions a step, of which two hold."""

    def is_irregular(self, request: Request) -> bool:
        return request.prompt_tokens % 2 == 0

    def rows(self, request: Request) -> int:
        return 3

    def tokens(self, request: Request, step: int, rows: int) -> int:
        return min(rows, 2)


def test_a_step_of_ranks_emits_what_their_steps_emit() -> None:
    config = SchedulerConfig(
        num_kv_blocks=90, max_model_len=60, max_num_seqs=6, ranks=3, rank_choice="round-robin"
    )
    group = scheduler_of(config, emission=Guesses())
    requests = [Request(f"r{n}", 0, prompt, 9, 9) for n, prompt in enumerate((4, 6, 5, 8))]
    for request in requests:
        group.add(request)
    emitted = dict.fromkeys(names(requests), 0)
    for now_ns in range(12):
        step = group.schedule(now_ns)
        if step is None:
            break
        running = names(group.decoding)
        shown = {request.id: number for request, number in (step.emissions or {}).items()}
        assert all(number == 2 for number in shown.values())
        for name in {*running, *shown, *names(request for request, _ in step.prefills)}:
            emitted[name] += shown.get(name, 1)
        group.finish(step)
    assert set(emitted.values()) == {9}


def group_of_two() -> RankedScheduler:
    group = scheduler_of(SchedulerConfig(num_kv_blocks=20, max_model_len=60, block_size=4, ranks=2))
    assert isinstance(group, RankedScheduler)
    return group


def test_contents_of_a_group_begin_with_the_first_rank_that_holds_them_and_are_gone_with_the_last() -> None:
    group = group_of_two()
    pools = [rank.scheduler.kv.pool for rank in group.ranks]
    log = group.kv.follow()
    held = [pool.take(2) for pool in pools]
    for pool, blocks in zip(pools, held, strict=True):
        pool.remember(["a", "b"], blocks)
    assert log == [(True, ["a", "b"])]
    pools[0].forget(held[0])
    assert log == [(True, ["a", "b"])]
    pools[1].forget(held[1][:1])
    assert log[1:] == [(False, ["a"])]


def test_the_first_deadline_of_a_group_goes_with_its_request() -> None:
    group = group_of_two()
    group.add(Request("a", 0, 4, 1, 1, deadline_ns=100))
    group.add(Request("b", 0, 4, 9, 9, deadline_ns=200))
    assert group.first_deadline_ns == 100
    step = group.schedule(0)
    assert step is not None
    group.advance(step)
    assert [request.id for request in group.resolve(step)] == ["a"]
    assert group.first_deadline_ns == 200


def test_ranks_take_the_blocks_of_the_steps_they_repeat() -> None:
    group = group_of_two()
    group.add(Request("a", 0, 4, 30, 30))
    group.add(Request("b", 0, 7, 30, 30))
    for steps in range(1, 20):
        step = group.schedule(0)
        assert step is not None
        group.take_blocks(1)
        blocks = sum(rank.scheduler.kv.pool.in_use for rank in group.ranks)
        assert blocks == -(-(3 + steps) // 4) - (-(6 + steps) // 4) == group.blocks_in_use(1)
        group.advance(step)
        group.resolve(step)
