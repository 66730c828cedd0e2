"""KV blocks of several groups of layers in one pool."""

from __future__ import annotations

from random import Random

import pytest

from blis_py.core.config import SchedulerConfig
from blis_py.core.kv_groups import ALIGNED, CHUNKED, FULL, STATE, WINDOW, KVGroup, longest_that_fits
from blis_py.core.request import Request
from blis_py.core.scheduler import Scheduler

SIZE = 4
TWO = (KVGroup(FULL), KVGroup(WINDOW, 8))


def scheduler(groups: tuple[KVGroup, ...] = TWO, **more: object) -> Scheduler:
    settings = {"num_kv_blocks": 40, "block_size": SIZE, "max_model_len": 200, "scheduler": "fcfs"}
    return Scheduler(SchedulerConfig(**{**settings, "kv_groups": groups, **more}))  # type: ignore[arg-type]


def run(core: Scheduler, *requests: Request) -> list[int]:
    """Blocks in use in each step."""
    for request in requests:
        assert core.add(request) is None
    used = []
    while (step := core.schedule(0)) is not None:
        used.append(core.blocks_in_use())
        core.finish(step)
        core.check()
    return used


def keys(count: int) -> list[int]:
    return list(range(count))


def test_a_window_gives_back_blocks_while_the_others_keep_theirs() -> None:
    used = run(scheduler(), Request("A", 0, 20, 13))
    # 5 blocks each; then full layers have one more with every fourth token, and of the window the last seven
    # tokens and the next one stay, in two or three blocks.
    assert used == [10, 6 + 3, 9, 9, 9 - 1, 7 + 3, 10, 10, 10 - 1, 8 + 3, 11, 11, 11 - 1]


def test_a_chunk_is_given_back_as_a_whole_and_a_state_is_one_block() -> None:
    assert run(scheduler((KVGroup(CHUNKED, 8),)), Request("A", 0, 7, 4)) == [2, 2, 1, 1]
    assert run(scheduler((KVGroup(STATE), KVGroup(STATE))), Request("A", 0, 50, 4)) == [2, 2, 2, 2]


def test_a_prefix_needs_all_blocks_of_full_layers_and_the_last_ones_of_windows() -> None:
    core = scheduler()
    run(core, Request("A", 0, 21, 1, block_keys=keys(5)))
    later = Request("B", 0, 25, 1, block_keys=keys(5))
    run(core, later)
    assert later.cached_tokens == 20

    # The last window alone is not enough for a shorter common beginning.
    kept = scheduler(windows_keep_replays=True)
    run(kept, Request("A", 0, 21, 1, block_keys=keys(5)))
    shorter = Request("B", 0, 14, 1, block_keys=keys(3))
    again = Request("C", 0, 21, 1, block_keys=keys(5))
    run(kept, shorter)
    run(kept, again)
    assert (shorter.cached_tokens, again.cached_tokens) == (0, 20)


def test_a_request_finds_its_own_blocks_after_a_preemption() -> None:
    core = scheduler(num_kv_blocks=20)
    first, second = Request("A", 0, 16, 30), Request("B", 0, 16, 30)
    run(core, first, second)
    assert (first.preemptions, second.preemptions) == (0, 1)
    assert core.kv.pool.in_use == 0


def test_the_whole_prompt_counts_at_admission_with_no_more_than_windows_hold() -> None:
    only = (KVGroup(WINDOW, 8),)
    limits = {"num_kv_blocks": 8, "max_num_batched_tokens": 8, "scheduler_reserve_full_isl": True}
    assert len(run(scheduler(only, **limits, windows_cap_prompts=True), Request("A", 0, 80, 2))) == 11
    refused = scheduler(only, **limits)
    refused.add(Request("A", 0, 80, 2))
    with pytest.raises(RuntimeError, match="stuck"):
        refused.schedule(0)


def chunks(core: Scheduler, request: Request) -> list[int]:
    """Tokens of each step of a request alone."""
    assert core.add(request) is None
    found = []
    while (step := core.schedule(0)) is not None:
        found.append(step.prefills[0][1] if step.prefills else 1)
        core.finish(step)
        core.check()
    return found


def test_a_group_whose_layers_keep_less_of_a_token_has_blocks_of_more_tokens() -> None:
    wide = (KVGroup(WINDOW, 8), KVGroup(FULL, 0, 2))
    core = scheduler(wide)
    assert run(core, Request("A", 0, 20, 1, block_keys=keys(5))) == [5 + 3]
    # What both sizes end with is found: 16 of 20 tokens, not all five blocks of 4.
    later = Request("B", 0, 21, 1, block_keys=keys(5))
    run(core, later)
    assert later.cached_tokens == 16


STATES = (KVGroup(FULL), KVGroup(ALIGNED))


def test_a_chunk_ends_where_the_cache_keeps_a_state() -> None:
    assert chunks(scheduler(STATES), Request("A", 0, 23, 2)) == [20, 3, 1]
    # Of a budget of 14 tokens three blocks of 4 are used; of one of 3, which no block fits into, all.
    tight = {"max_num_batched_tokens": 14, "max_num_seqs": 1, "state_chunks_align_prompts": True}
    assert chunks(scheduler(STATES, **tight), Request("A", 0, 23, 1)) == [12, 8, 3]
    narrow = {**tight, "max_num_batched_tokens": 3}
    assert chunks(scheduler(STATES, **narrow), Request("A", 0, 9, 1)) == [3, 1, 3, 1, 1]
    # A repetition computes the last token anew, so a prompt of five whole blocks leaves its fourth state.
    assert chunks(scheduler(STATES), Request("A", 0, 20, 1)) == [20]
    assert chunks(scheduler(STATES, states_precede_last_token=True), Request("A", 0, 20, 1)) == [16, 4]


def test_kernels_that_copy_a_state_inside_a_chunk_need_no_further_step() -> None:
    core = scheduler((KVGroup(FULL), KVGroup(ALIGNED, 1)))
    assert chunks(core, Request("A", 0, 23, 2, block_keys=keys(5))) == [23, 1]
    later = Request("B", 0, 23, 1, block_keys=keys(5))
    assert chunks(core, later) == [3]
    assert later.cached_tokens == 20


def test_a_request_begins_from_a_state_at_the_end_of_a_block_of_another() -> None:
    core = scheduler(STATES)
    run(core, Request("A", 0, 23, 1, block_keys=keys(5)))
    same = Request("B", 0, 23, 1, block_keys=keys(5))
    run(core, same)
    assert same.cached_tokens == 20
    # Nothing is kept at the end of the common beginning, where the next one stops to leave a state.
    other = Request("C", 0, 23, 1, block_keys=[*keys(3), 8, 9])
    assert chunks(core, other) == [12, 8, 3]
    assert other.cached_tokens == 0
    third = Request("D", 0, 23, 1, block_keys=[*keys(3), 6, 7])
    run(core, third)
    assert third.cached_tokens == 12


def test_a_state_that_a_step_computes_cannot_be_used_in_it() -> None:
    core = scheduler(STATES, num_kv_blocks=100)
    first = Request("A", 0, 23, 9, block_keys=keys(5))
    second = Request("B", 0, 23, 9, block_keys=keys(5))
    for request in (first, second):
        assert core.add(request) is None
    admitted = []
    for _ in range(2):
        step = core.schedule(0)
        assert step is not None
        admitted.append([request.id for request in step.admitted])
        core.finish(step)
    assert admitted == [["A"], ["B"]]
    assert second.cached_tokens == 20


def test_a_request_has_a_state_and_for_a_while_the_one_before() -> None:
    # Blocks of the full layers, and one or two states.
    assert run(scheduler(STATES), Request("A", 0, 7, 7)) == [
        1 + 1,
        2 + 2,
        2 + 1,
        3 + 2,
        3 + 1,
        3 + 1,
        3 + 1,
        4 + 2,
    ]


def test_the_longest_sequence_is_what_all_groups_together_have_room_for() -> None:
    assert longest_that_fits((KVGroup(FULL),), 10, SIZE, 8) == 40
    assert longest_that_fits((KVGroup(FULL), KVGroup(FULL)), 10, SIZE, 8) == 20
    # A window of 8 with 8 tokens in flight holds at most 5 blocks.
    assert longest_that_fits(TWO, 40, SIZE, 8) == 35 * SIZE
    assert longest_that_fits((KVGroup(WINDOW, 8),), 5, SIZE, 8) > 10**9


class Drive:
    """Requests on one scheduler, with as many steps at once as are alike, or one by one."""

    def __init__(self, core: Scheduler, at_once: bool) -> None:
        self.core, self.at_once = core, at_once
        self.in_use: dict[int, int] = {}
        """Blocks in use by step; of steps at once in the first and the last."""

    def run(self, requests: list[Request]) -> None:
        core, coming = self.core, list(requests)
        while coming or core.running or core.queue_depth:
            while coming and coming[0].arrival_ns <= core.tick:
                assert core.add(coming.pop(0)) is None
            step = core.schedule(core.tick)
            steps = 1
            if step is not None:
                self.in_use[core.tick] = core.blocks_in_use()
                if self.at_once:
                    steps = core.identical_decode_steps(step)
                    if coming:
                        steps = max(min(steps, coming[0].arrival_ns - core.tick), 1)
                    self.in_use[core.tick + steps - 1] = core.blocks_in_use(steps)
            if step is not None:
                core.finish(step, steps)
            elif coming:
                core.tick = core.kv.pool.tick = core.resolved = coming[0].arrival_ns


@pytest.mark.parametrize("awaits", [False, True])
@pytest.mark.parametrize(
    "groups",
    [
        TWO,
        (KVGroup(WINDOW, 7), KVGroup(FULL), KVGroup(CHUNKED, 8)),
        (KVGroup(ALIGNED), KVGroup(ALIGNED), KVGroup(FULL)),
        (KVGroup(ALIGNED, 1), KVGroup(FULL)),
        (KVGroup(WINDOW, 7), KVGroup(FULL, 0, 2)),
        (KVGroup(WINDOW, 18, 2), KVGroup(FULL)),
    ],
)
def test_steps_at_once_are_the_same_steps(groups: tuple[KVGroup, ...], awaits: bool) -> None:
    def requests() -> list[Request]:
        rng = Random(5)
        arrivals = sorted(rng.randint(0, 300) for _ in range(30))
        return [
            Request(
                f"r{number}",
                arrival,
                rng.randint(1, 60),
                rng.randint(1, 50),
                block_keys=[f"a{rng.randint(0, 1)}-{index}" for index in range(2)],
            )
            for number, arrival in enumerate(arrivals)
        ]

    found = []
    for at_once in (False, True):
        core = scheduler(
            groups,
            num_kv_blocks=120,
            windows_await_outcome=awaits,
            states_leave_gaps=awaits,
            reuse_unhashed_first=True,
        )
        every = requests()
        drive = Drive(core, at_once)
        drive.run(every)
        ends = [(each.first_tick, each.last_tick, each.cached_tokens, each.preemptions) for each in every]
        found.append((ends, drive.in_use, core.kv.pool.in_use))
    (ends, in_use, held), (ends_at_once, in_use_at_once, held_at_once) = found
    assert ends_at_once == ends
    assert held == held_at_once == 0
    assert len(in_use_at_once) < len(in_use)
    assert {tick: in_use[tick] for tick in in_use_at_once} == in_use_at_once
