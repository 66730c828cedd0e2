"""Rules in which releases of vLLM differ, on the smallest scenarios that they decide.

Every list of steps is what vLLM's own scheduler, of the release named, plans for the same requests, run from
its wheel: tokens of each request, `-B` a preempted one, `B@4` tokens found in the cache.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from blis_py.core.config import SchedulerConfig
from blis_py.core.rank_schedulers import scheduler_of
from blis_py.core.request import DECODING, Request
from blis_py.core.scheduler import Scheduler
from blis_py.core.step import Step
from blis_py.errors import InputError


@dataclass
class Arrival:
    """A request that arrives before step `step`; its first `shared` tokens are those of all others."""

    step: int
    prompt: int
    output: int
    priority: int = 0
    shared: int = 0


@dataclass
class Run:
    """A scheduler, driven as vLLM drives its own: step n + 1 is planned before the outcome of step n."""

    core: Scheduler
    arrivals: dict[str, Arrival]
    steps: list[str] = field(default_factory=list)
    live: dict[str, Request] = field(default_factory=dict)
    flight: Step | None = None

    def all(self) -> list[str]:
        coming = dict(self.arrivals)
        while coming or self.live or self.flight:
            for name, arrival in self.arrivals.items():
                if name in coming and arrival.step <= len(self.steps):
                    self.add(name, coming.pop(name))
            self.one()
            self.core.check()
        return self.steps

    def add(self, name: str, a: Arrival) -> None:
        size = self.core.config.block_size
        ends = range(size, a.prompt + a.output + 1, size)
        keys = [end if end <= a.shared else (name, end) for end in ends]
        self.live[name] = request = Request(
            name, 0, a.prompt, a.output, a.output, a.priority, block_keys=keys
        )
        assert self.core.add(request) is None

    def one(self) -> None:
        core = self.core
        before = {name: request.preemptions for name, request in self.live.items()}
        step = core.schedule(0)
        tokens = {} if step is None else {r.id: n for r, n in step.prefills}
        if step is not None:
            tokens |= {r.id: 1 for r in core.running if r.status is DECODING and r.id not in tokens}
        words = [f"{name}{tokens[name]}" for name in sorted(tokens)]
        words += [f"-{name}" for name in sorted(before) if self.live[name].preemptions > before[name]]
        words += [f"{r.id}@{r.computed}" for r in step.admitted if r.computed] if step is not None else []
        self.steps.append(" ".join(words))
        ended: Step | None = step
        if core.config.async_scheduling:
            if step is not None:
                core.advance(step)
            ended, self.flight = self.flight, step
            finished = [] if ended is None else core.resolve(ended)
        else:
            finished = [] if step is None else core.finish(step)
        for request in finished:
            del self.live[request.id]


def steps(arrivals: dict[str, Arrival], blocks: int, size: int, budget: int, **settings: Any) -> list[str]:
    settings = {"num_kv_blocks": blocks, "block_size": size, "max_num_batched_tokens": budget, **settings}
    config = SchedulerConfig(max_model_len=blocks * size, max_num_seqs=4, **settings)
    return [step for step in Run(Scheduler(config), arrivals).all() if step]


def test_a_request_starts_when_its_whole_prompt_fits() -> None:
    """vLLM 0.24, with `scheduler_reserve_full_isl`."""
    two = {"A": Arrival(0, 5, 2), "B": Arrival(0, 9, 1)}
    assert steps(two, 4, 3, 8, prefix_cache="none") == ["A5 B3", "A1 -B", "B8", "B1"]
    assert steps(two, 4, 3, 8, scheduler_reserve_full_isl=True) == ["A5", "A1", "B8", "B1"]
    both = {"A": Arrival(0, 3, 1), "B": Arrival(0, 3, 2)}
    assert steps(both, 4, 2, 12, scheduler_reserve_full_isl=True) == ["A3 B3", "B1"]


@pytest.mark.parametrize(
    ("watermark", "prompt", "expected"),
    [
        (0.3, 9, ["A3", "A1", "B9"]),
        (0.3, 7, ["A3 B7", "A1"]),
        (0.29, 9, ["A3 B9", "A1"]),
        (0, 9, ["A3 B9", "A1"]),
    ],
)
def test_a_share_of_the_blocks_stays_free_at_admission_beside_others(
    watermark: float, prompt: int, expected: list[str]
) -> None:
    """vLLM 0.24: 0.3 of 9 blocks and the one that no request can use are 3."""
    two = {"A": Arrival(0, 3, 2), "B": Arrival(0, prompt, 1)}
    assert steps(two, 9, 2, 12, scheduler_reserve_full_isl=True, watermark=watermark) == expected


def test_blocks_that_cannot_be_found_are_reused_first() -> None:
    """vLLM 0.24: D, preempted, finds the block of its first chunk again."""
    arrivals = {"A": Arrival(0, 8, 2, shared=6), "C": Arrival(0, 1, 3), "D": Arrival(0, 7, 2, shared=5)}
    rule = {"scheduler_reserve_full_isl": True}
    begin = ["A8 C1 D3 D@4", "A1 C1 -D"]
    assert steps(arrivals, 7, 2, 12, **rule) == [*begin, "C1 D4 D@4"]
    assert steps(arrivals, 7, 2, 12, **rule, reuse_unhashed_first=True) == [*begin, "C1 D2 D@6"]


def test_a_request_alone_has_no_threshold() -> None:
    """vLLM 0.33."""
    threshold = {"long_prefill_token_threshold": 3, "lone_prefill_has_no_threshold": True}
    assert steps({"A": Arrival(0, 4, 1)}, 6, 4, 12, long_prefill_token_threshold=3) == ["A3", "A1"]
    assert steps({"A": Arrival(0, 4, 1)}, 6, 4, 12, **threshold) == ["A4"]
    assert steps({"A": Arrival(0, 14, 1)}, 6, 4, 12, **threshold) == ["A12", "A2"]
    two = {"A": Arrival(0, 4, 1), "B": Arrival(0, 1, 1)}
    assert steps(two, 6, 4, 12, **threshold) == ["A3 B1", "A1"]


def test_the_adaptive_threshold_is_at_least_an_equal_share_of_the_budget() -> None:
    """vLLM 0.33: 12 tokens for two requests are 6."""
    two = {"A": Arrival(0, 6, 1), "B": Arrival(0, 4, 1)}
    threshold = {"long_prefill_token_threshold": 2}
    assert steps(two, 12, 2, 12, **threshold) == ["A2 B2", "A2 B2", "A2"]
    assert steps(two, 12, 2, 12, **threshold, long_prefill_token_threshold_adaptive=True) == ["A6 B4"]


SELF = {"A": Arrival(0, 3, 4, 2), "B": Arrival(0, 7, 5, 2), "C": Arrival(2, 3, 4, 1)}


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        (True, ["A3 B3", "A1 B4", "A1 B1 C3", "A1 -B", "B5 C1", "B4 C1", "B1 C1", "B1"]),
        (False, ["A3 B3", "A1 B4", "A1 B1 C3", "A1 C1 -B", "B5 C1", "B4 C1", "B1", "B1"]),
    ],
    ids=["vLLM 0.29", "vLLM 0.33"],
)
def test_a_request_that_preempts_itself_ends_the_step_or_not(ends: bool, expected: list[str]) -> None:
    arrivals = {name: Arrival(a.step, a.prompt, a.output, a.priority) for name, a in SELF.items()}
    found = steps(
        arrivals, 5, 4, 6, preemption_policy="priority", scheduler="priority-fcfs",
        prefix_cache="none", scheduler_reserve_full_isl=True, self_preemption_ends_step=ends,
    )  # fmt: skip
    assert found == expected


def test_a_step_that_would_only_preempt_is_planned_again_at_once() -> None:
    """vLLM 0.29, whose step without requests takes no time: A preempts itself, then C starts."""
    arrivals = {"A": Arrival(0, 10, 5, 2), "B": Arrival(2, 7, 6, 0), "C": Arrival(3, 9, 3, 1)}
    found = steps(
        arrivals, 7, 3, 4, preemption_policy="priority", scheduler="priority-fcfs",
        prefix_cache="none", scheduler_reserve_full_isl=True,
    )  # fmt: skip
    assert found[4:7] == ["A1 B2", "B1 C3 -A", "B1 C3"]


def test_prompts_are_computed_in_every_third_step_beside_decodes() -> None:
    """vLLM 0.33, without data parallelism: counted from the last step with a prompt."""
    two = {"A": Arrival(0, 6, 5), "B": Arrival(1, 2, 1)}
    assert steps(two, 9, 2, 8)[:3] == ["A6", "A1 B2", "A1"]
    assert steps(two, 9, 2, 8, prefill_schedule_interval=3) == ["A6", "A1", "A1", "A1 B2", "A1"]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [(9, ["A8", "A1", "A1", "A1", "A1 B2", "A1"]), (8, ["A8", "A1", "A1", "A1 B2", "A1"])],
)
def test_the_last_token_of_a_prompt_begins_the_interval_anew(prompt: int, expected: list[str]) -> None:
    """vLLM 0.33."""
    two = {"A": Arrival(0, prompt, 5), "B": Arrival(2, 2, 1)}
    assert steps(two, 9, 2, 8, prefill_schedule_interval=3) == expected


def test_ranks_count_the_steps_of_the_interval_together() -> None:
    """vLLM 0.29 and 0.33 with data parallelism: B waits for the third step of the wave, not for the third
    after A's prompt."""
    config = SchedulerConfig(
        num_kv_blocks=18, block_size=2, max_model_len=18, max_num_seqs=8, max_num_batched_tokens=16,
        ranks=2, rank_choice="round-robin", prefill_schedule_interval=3, prefill_interval_needs_ranks=True,
    )  # fmt: skip
    ranks = scheduler_of(config)
    for name, prompt, output in (("A", 9, 6), ("other rank", 2, 9)):
        assert ranks.add(Request(name, 0, prompt, output, output)) is None
    prompts = []
    for number in range(5):
        if number == 2:
            assert ranks.add(Request("B", 0, 2, 1, 1)) is None
        step = ranks.schedule(0)
        assert step is not None
        prompts.append([(request.id, tokens) for request, tokens in step.prefills])
        ranks.finish(step)
    assert prompts == [[("A", 8), ("other rank", 2)], [("A", 1)], [], [("B", 2)], []]


def test_the_last_running_request_is_preempted_though_its_last_step_is_in_flight() -> None:
    """vLLM 0.15, asynchronous: B has no further step, keeps its blocks, and is the victim."""
    two = {"A": Arrival(0, 1, 3), "B": Arrival(0, 6, 1)}
    settings = {"async_scheduling": True, "prefix_cache": "none"}
    assert steps(two, 4, 2, 4, **settings) == ["A1 B3", "A1 B3", "A1"]
    assert steps(two, 4, 2, 4, **settings, blocks_await_outcome=True) == ["A1 B3", "A1 B3", "A1 -B"]


@pytest.mark.parametrize(
    ("skips", "step"), [(True, "B1 -A"), (False, "B1 C1 -A")], ids=["vLLM 0.24", "vLLM 0.28"]
)
def test_a_victim_that_computes_nothing_may_hide_the_next_in_line(skips: bool, step: str) -> None:
    """Asynchronous: A, whose last step is in flight, is preempted for B; C is behind B."""
    arrivals = {"A": Arrival(0, 1, 4, 2), "B": Arrival(2, 3, 4, 0), "C": Arrival(3, 5, 2, 0)}
    found = steps(
        arrivals, 4, 4, 12, preemption_policy="priority", scheduler="priority-fcfs",
        prefix_cache="none", scheduler_reserve_full_isl=True, async_scheduling=True,
        blocks_await_outcome=True, preemption_skips_next=skips,
    )  # fmt: skip
    assert found == ["A1", "A1", "A1 B3", "A1 B1 C5", step, *(["B1 C1"] if skips else ["B1"])]


def test_a_request_that_preempts_itself_meanwhile_waits_for_the_outcome_in_flight() -> None:
    """vLLM 0.15, asynchronous."""
    two = {"A": Arrival(0, 3, 2), "C": Arrival(0, 9, 2)}
    settings = {"async_scheduling": True, "blocks_await_outcome": True}
    assert steps(two, 5, 3, 8, **settings) == ["A3 C5", "A1 C4", "-C", "C1 C@9"]


def test_intervals_are_of_running_first_batches() -> None:
    config = SchedulerConfig(
        num_kv_blocks=9, max_model_len=9, batch_former="prefill-only", prefill_schedule_interval=2
    )
    with pytest.raises(InputError, match="prefill_schedule_interval: is vLLM's, of running-first batches"):
        Scheduler(config)
