"""Small scenarios, computed by hand, step by step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from blis_py.core.config import SchedulerConfig
from blis_py.core.request import FinishReason, Request, Status
from blis_py.core.scheduler import Scheduler
from blis_py.core.step import Step

ROOMY = SchedulerConfig(num_kv_blocks=1000, max_model_len=1000, block_size=4, enable_prefix_caching=False)


def request(name: str, prompt: int, output: int, arrival_ns: int = 0, priority: int = 1) -> Request:
    return Request(name, arrival_ns, prompt, output, output, priority)


def planned(scheduler: Scheduler, now_ns: int = 0) -> Step:
    step = scheduler.schedule(now_ns)
    assert step is not None
    return step


def drain(scheduler: Scheduler) -> list[Step]:
    """All steps until nothing is left."""
    steps = []
    while (step := scheduler.schedule(0)) is not None:
        steps.append(step)
        scheduler.finish(step)
        scheduler.check()
    return steps


def names(requests: object) -> list[str]:
    return [r.id for r in requests]  # type: ignore[attr-defined]


@pytest.mark.parametrize("former", ["running-first", "prefill-first"])
def test_a_and_b_together_then_c_beside_their_decodes_makes_60_7_and_3_tokens(former: str) -> None:
    scheduler = Scheduler(replace(ROOMY, batch_former=former))
    scheduler.add(request("A", 10, 5))
    scheduler.add(request("B", 50, 5))
    tokens = []
    for step_index in range(3):
        step = planned(scheduler)
        tokens.append(step.features.tokens)
        scheduler.finish(step)
        if step_index == 0:
            scheduler.add(request("C", 5, 5))
    assert tokens == [60, 7, 3]


def test_a_request_of_n_tokens_emits_the_first_with_its_prefill_and_the_rest_in_n_minus_1_decodes() -> None:
    scheduler = Scheduler(ROOMY)
    scheduler.add(one := request("A", 10, 4))
    steps = drain(scheduler)
    assert [(s.features.prefill_tokens, s.features.decode_seqs) for s in steps] == [(10, 0)] + [(0, 1)] * 3
    assert [s.features.decode_kv_tokens for s in steps] == [0, 10, 11, 12]
    assert (one.first_tick, one.last_tick, one.generated, one.gaps) == (0, 3, 4, None)


@pytest.mark.parametrize("tracked", [True, False])
def test_the_longest_context_is_reported_where_it_is_tracked_and_minus_1_elsewhere(tracked: bool) -> None:
    scheduler = Scheduler(ROOMY, track_longest=tracked)
    lines = []
    for name, prompt, output in (("A", 7, 9), ("B", 3, 9)):
        scheduler.add(request(name, prompt, output))
        for _ in range(2):
            step = planned(scheduler)
            lines.append(step.features.max_context)
            scheduler.finish(step)
    assert lines == ([0, 7, 8, 9] if tracked else [-1] * 4)


# Two requests of 4 + 8 tokens in 4 blocks of 4: after 5 steps each holds 2 full blocks, none is free.
TIGHT = replace(ROOMY, num_kv_blocks=4)


def tight_pair(
    config: SchedulerConfig, a_priority: int = 1, b_priority: int = 1
) -> tuple[Scheduler, Request, Request]:
    scheduler = Scheduler(config)
    a, b = request("A", 4, 8, 0, a_priority), request("B", 4, 8, 1, b_priority)
    scheduler.add(a)
    scheduler.add(b)
    for _ in range(5):
        scheduler.finish(planned(scheduler))
    scheduler.check()
    assert scheduler.kv.pool.num_free == 0
    return scheduler, a, b


def test_the_last_of_the_running_list_gives_way_and_recomputes_prompt_and_output_later() -> None:
    scheduler, a, b = tight_pair(TIGHT)
    step = planned(scheduler)
    assert names(step.preempted) == ["B"]
    assert names(scheduler.decoding) == ["A"]
    assert (b.status, b.computed, b.generated) == (Status.WAITING, 0, 5)
    assert scheduler.kv.pool.num_free == 1
    scheduler.finish(step)
    later = drain(scheduler)
    # A has 6 tokens; it ends with its 8th, then B computes 4 + 5 tokens again and emits its 6th.
    recomputation = later[2]
    assert [(r.id, n) for r, n in recomputation.prefills] == [("B", 9)]
    assert recomputation.features.prefill_pairs == 9 * 10 // 2
    assert len(later) == 5
    assert (a.last_tick, b.last_tick, b.generated, b.preemptions) == (7, 10, 8, 1)
    # What it had emitted stays emitted: the first token is that of step 0, and one gap is long.
    assert b.first_tick == 0
    assert b.gaps == [(4, 8)]


def test_a_preempted_request_finds_those_of_its_blocks_that_were_not_reallocated() -> None:
    scheduler, _, _ = tight_pair(replace(TIGHT, enable_prefix_caching=True))
    scheduler.finish(planned(scheduler))  # A takes the second of B's blocks
    later = drain(scheduler)
    assert [(r.id, n) for r, n in later[2].prefills] == [("B", 5)]
    assert later[2].features.prefill_kv_tokens == 4


def test_with_priority_the_least_urgent_gives_way_even_if_it_comes_first() -> None:
    scheduler, _, _ = tight_pair(replace(TIGHT, preemption_policy="priority"), a_priority=5, b_priority=0)
    step = planned(scheduler)
    # A needs a block first, and is itself the victim; nothing was granted yet, so B goes on.
    assert names(step.preempted) == ["A"]
    assert names(scheduler.decoding) == ["B"]


def test_with_priority_the_later_arrival_gives_way_among_equals() -> None:
    scheduler, _, _ = tight_pair(replace(TIGHT, preemption_policy="priority"))
    assert names(planned(scheduler).preempted) == ["B"]


def test_a_preempted_request_goes_before_those_that_never_ran() -> None:
    scheduler, _, _ = tight_pair(TIGHT)
    scheduler.add(request("C", 1, 1, 2))
    step = planned(scheduler)
    assert names(step.preempted) == ["B"]
    assert step.admitted == []  # none is admitted in a step that preempts
    scheduler.finish(step)
    assert scheduler.waiting.head(0).id == "B"


def test_a_victims_budget_goes_to_those_behind_it_and_no_request_is_skipped() -> None:
    config = replace(ROOMY, num_kv_blocks=5, max_num_batched_tokens=7, preemption_policy="priority")
    scheduler = Scheduler(config)
    for one in (request("A", 4, 9, 0, 5), request("B", 3, 9, 1, 0), request("C", 13, 1, 2, 0)):
        scheduler.add(one)
    first = planned(scheduler)
    assert [(r.id, n) for r, n in first.prefills] == [("A", 4), ("B", 3)]
    scheduler.finish(first)
    second = planned(scheduler)
    assert [(r.id, n) for r, n in second.prefills] == [("C", 5)]
    scheduler.finish(second)
    assert scheduler.kv.pool.num_free == 0
    # A is granted its token, B needs a block and takes A's; C, behind both, gets 7 - 1 tokens.
    third = planned(scheduler)
    assert names(third.preempted) == ["A"]
    assert names(scheduler.decoding) == ["B"]
    assert [(r.id, n) for r, n in third.prefills] == [("C", 6)]


def test_a_request_that_preempts_itself_ends_the_walk() -> None:
    config = replace(ROOMY, num_kv_blocks=3)
    scheduler = Scheduler(config)
    scheduler.add(request("A", 3, 9, 0))  # needs its second block one step after B
    scheduler.add(request("B", 4, 9, 1))
    scheduler.finish(planned(scheduler))
    scheduler.finish(planned(scheduler))  # B takes the third block
    step = planned(scheduler)  # A: 4 tokens, needs one: B goes
    assert names(step.preempted) == ["B"]
    scheduler.finish(step)
    assert [r.id for s in drain(scheduler) for r, _ in s.prefills] == ["B"]


def test_a_prompt_over_the_threshold_is_computed_in_chunks_and_emits_with_the_last() -> None:
    scheduler = Scheduler(replace(ROOMY, long_prefill_token_threshold=4))
    scheduler.add(one := request("A", 10, 1))
    steps = drain(scheduler)
    assert [n for s in steps for _, n in s.prefills] == [4, 4, 2]
    assert [s.features.emitted_rows for s in steps] == [0, 0, 1]
    assert [s.features.prefill_kv_tokens for s in steps] == [0, 4, 8]
    assert [s.features.prefill_pairs for s in steps] == [10, 4 * 4 + 10, 2 * 8 + 3]
    assert one.first_tick == 2


def test_decodes_go_on_beside_the_chunks_of_a_long_prompt() -> None:
    scheduler = Scheduler(replace(ROOMY, max_num_batched_tokens=5))
    scheduler.add(request("A", 3, 9))
    scheduler.add(request("B", 10, 1))
    tokens = []
    for _ in range(4):
        step = planned(scheduler)
        tokens.append(([n for _, n in step.prefills], step.features.decode_seqs))
        scheduler.finish(step)
    assert tokens == [([3, 2], 0), ([4], 1), ([4], 1), ([], 1)]


def test_prefill_first_takes_a_prompt_whole_or_leaves_it_for_a_later_step() -> None:
    scheduler = Scheduler(replace(ROOMY, max_num_batched_tokens=8, batch_former="prefill-first"))
    scheduler.add(request("A", 5, 1))
    scheduler.add(request("B", 4, 1))
    assert [[n for _, n in s.prefills] for s in drain(scheduler)] == [[5], [4]]


def test_prefill_first_begins_a_step_with_a_prompt_longer_than_the_budget() -> None:
    scheduler = Scheduler(replace(ROOMY, max_num_batched_tokens=8, batch_former="prefill-first"))
    scheduler.add(request("A", 2, 2))
    scheduler.add(request("B", 18, 1))
    scheduler.add(request("C", 6, 1))
    steps = drain(scheduler)
    assert [[(r.id, n) for r, n in s.prefills] for s in steps] == [
        [("A", 2)],
        [("B", 8)],
        [("B", 8)],
        [("B", 2), ("C", 6)],
        [],
    ]
    assert [s.features.decode_seqs for s in steps] == [0, 0, 0, 0, 1]


def test_a_decode_that_finds_the_budget_spent_stalls_for_the_step() -> None:
    scheduler = Scheduler(replace(ROOMY, max_num_batched_tokens=10, batch_former="prefill-first"))
    scheduler.add(a := request("A", 3, 3))
    scheduler.finish(planned(scheduler))
    scheduler.add(request("B", 10, 2))
    step = planned(scheduler)
    assert step.features.decode_seqs == 0
    assert a.status is Status.STALLED
    scheduler.finish(step)
    assert [s.features.decode_seqs for s in drain(scheduler)] == [2, 1]
    assert (a.first_tick, a.last_tick, a.gaps) == (0, 3, [(0, 2)])


def test_a_request_that_shares_blocks_not_computed_after_all_is_preempted_too() -> None:
    config = replace(
        ROOMY, num_kv_blocks=5, batch_former="prefill-first", preemption_policy="priority",
        enable_prefix_caching=True,
    )  # fmt: skip
    scheduler = Scheduler(config)
    scheduler.add(request("A", 4, 4, 0, priority=0))
    scheduler.finish(planned(scheduler))
    for name, priority in (("B", 5), ("C", 1)):
        one = request(name, 9, 1, 1, priority)
        one.block_keys = ("first block", "second block")
        scheduler.add(one)
    # B is to compute the prefix, C shares it in the same step; then A needs a block, and B is the victim.
    step = planned(scheduler)
    assert (names(step.preempted), names(scheduler.decoding)) == (["C", "B"], ["A"])
    assert step.prefills == step.admitted == []
    scheduler.finish(step)
    scheduler.check()
    assert [(r.id, n) for r, n in planned(scheduler).prefills] == [("B", 9)]


def test_a_real_model_ends_a_request_before_its_limit() -> None:
    scheduler = Scheduler(ROOMY)
    one = Request("A", 0, prompt_tokens=3, output_tokens=None, max_tokens=10)
    scheduler.add(one)
    assert scheduler.finish(planned(scheduler)) == []
    assert scheduler.finish(planned(scheduler), stopped=[one]) == [one]
    assert (one.generated, one.finish_reason) == (2, FinishReason.STOP)
    assert scheduler.kv.pool.num_free == scheduler.kv.pool.total


def test_an_aborted_request_leaves_nothing_behind() -> None:
    scheduler = Scheduler(ROOMY)
    running, waiting = request("A", 30, 9), request("B", 3, 9)
    scheduler.add(running)
    scheduler.finish(planned(scheduler))
    scheduler.add(waiting)
    scheduler.abort(running)
    scheduler.abort(waiting)
    assert scheduler.schedule(0) is None
    scheduler.check()
    assert scheduler.kv.pool.num_free == scheduler.kv.pool.total
