"""The life of diffusion blocks: when they run, when they commit, what they hold in between."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from diffusion_runs import BLOCK, Driver, keyed, request, scheduled, scheduler
from hypothesis import given, settings
from hypothesis import strategies as st

from blis_py.core.diffusion_request import NO_SLOT, BatchOutcome
from blis_py.core.request import FinishReason
from blis_py.errors import InputError

EXAMPLE = {"A": (3,), "B": (8,), "C": (2,), "D": (4,), "E": (4,)}


def example(**settings: Any) -> Driver:
    """Three slots, blocks of 3, 8 and 2 rounds, and two requests that wait."""
    driver = Driver(scheduler(max_num_seqs=3, **settings), EXAMPLE)
    for name in EXAMPLE:
        driver.scheduler.add(request(name))
    driver.drain()
    return driver


# -- the two modes ---------------------------------------------------------------------------------


def test_first_done_leaves_first_and_a_queued_request_is_admitted_at_once() -> None:
    driver = example(fdfo=True)
    assert {name: driver.left_at[name] for name in "CAB"} == {"C": 2, "A": 3, "B": 8}
    assert (driver.entered_at["D"], driver.entered_at["E"]) == (2, 3)
    assert driver.scheduler.counters.idle_block_rounds == 0


def test_a_synchronous_batch_waits_for_its_slowest_block() -> None:
    driver = example(fdfo=False)
    assert [driver.left_at[name] for name in "ABC"] == [8, 8, 8]
    assert driver.entered_at["D"] == driver.entered_at["E"] == 8
    assert driver.scheduler.counters.idle_block_rounds == (8 - 3) + (8 - 8) + (8 - 2) == 11


def test_prompts_and_blocks_share_a_round_in_fdfo_and_never_in_synchronous_mode() -> None:
    for fdfo in (True, False):
        driver = Driver(scheduler(fdfo=fdfo), {"short": (5,)})
        driver.scheduler.add(request("short", prompt=3))
        if fdfo:
            driver.step()
        driver.scheduler.add(request("long", prompt=70))
        driver.drain()
        assert any(batch.prefills and batch.denoise for batch in driver.history) == fdfo


def test_blocks_of_a_synchronous_batch_wait_while_a_newcomer_computes_its_prompt() -> None:
    driver = Driver(scheduler(fdfo=False, max_num_batched_tokens=128), {})
    driver.scheduler.add(request("first", prompt=1, output=90))
    driver.step()
    driver.scheduler.add(request("second", prompt=200))
    batch = driver.begin()
    assert batch is not None
    assert batch.prefills
    assert not batch.denoise
    driver.end(batch)
    driver.drain()


# -- prompts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("prompt", "prefilled"), [(0, 0), (1, 0), (31, 0), (32, 32), (33, 32), (64, 64)])
@pytest.mark.parametrize("fdfo", [True, False])
def test_whole_blocks_of_the_prompt_are_computed_and_the_tail_begins_the_first_block(
    prompt: int, prefilled: int, fdfo: bool
) -> None:
    driver = Driver(scheduler(fdfo=fdfo), {})
    one = request("r", prompt=prompt, output=40)
    driver.scheduler.add(one)
    if prefilled:
        batch = driver.begin()
        assert batch is not None
        assert batch.prefills == [(one, prefilled)]
        assert not batch.denoise
        driver.end(batch)
    batch = driver.begin()
    assert batch is not None
    assert batch.denoise == [one]
    assert one.computed == prefilled
    assert one.known_tokens == prompt % BLOCK
    driver.end(batch)
    driver.drain()
    assert one.generated == 40
    assert len(one.rounds_per_block) == -(-(prompt % BLOCK + 40) // BLOCK)


def test_a_prompt_takes_many_blocks_a_round_as_the_budget_allows() -> None:
    driver = Driver(scheduler(max_num_batched_tokens=200, max_num_seqs=2), {})
    one = request("r", prompt=500)
    driver.scheduler.add(one)
    driver.drain()
    assert [tokens for batch in driver.history for _, tokens in batch.prefills] == [192, 192, 96]


def test_denoising_blocks_come_before_prompts_in_the_budget() -> None:
    driver = Driver(scheduler(max_num_batched_tokens=128), {"a": (9,), "b": (9,)})
    for name in "ab":
        driver.scheduler.add(request(name))
    driver.step()
    driver.scheduler.add(request("long", prompt=300))
    batch = driver.begin()
    assert batch is not None
    assert [tokens for _, tokens in batch.prefills] == [128 - 2 * BLOCK]
    driver.end(batch)
    driver.drain()


# -- commit ----------------------------------------------------------------------------------------


def test_output_beyond_the_limit_is_waste() -> None:
    driver = Driver(scheduler(), {})
    one = request("r", prompt=40, output=None, max_tokens=30)
    driver.scheduler.add(one)
    driver.step()
    commits = []
    while (step := driver.step()) is not None:
        commits += step
    assert [(c.emitted_tokens, c.wasted_tokens, c.finished) for c in commits] == [
        (24, 0, False),
        (6, 26, True),
    ]
    assert one.finish_reason is FinishReason.STOP


def test_an_end_of_sequence_inside_a_block_truncates_it() -> None:
    core = scheduler()
    one = request("r", prompt=8, output=None, max_tokens=100)
    core.add(one)
    batch = core.schedule(0)
    assert batch is not None
    (commit,) = core.finish(batch, BatchOutcome([BLOCK], stopped={one: 5}))
    assert (commit.emitted_tokens, commit.wasted_tokens, commit.finished) == (5, 19, True)
    assert core.schedule(0) is None


def test_a_request_without_a_limit_is_cut_at_the_last_whole_block() -> None:
    driver = Driver(scheduler(max_model_len=100), {})
    one = request("r", prompt=10, output=None)
    driver.scheduler.add(one)
    driver.drain()
    assert one.generated == 96 - 10
    assert one.finish_reason is FinishReason.LENGTH


def test_a_block_is_accepted_as_a_whole_or_not_at_all() -> None:
    core = scheduler()
    core.add(request("r"))
    batch = core.schedule(0)
    assert batch is not None
    with pytest.raises(ValueError, match="as a whole"):
        core.finish(batch, BatchOutcome([7]))


# -- what a block keeps between rounds ---------------------------------------------------------------


class Spy:
    """Counts every call that takes or gives back KV blocks."""

    def __init__(self, core: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        for name in ("take", "give_back", "leave", "use", "reclaim"):
            monkeypatch.setattr(core.kv.pool, name, self._counted(getattr(core.kv.pool, name)))

    def _counted(self, method: Any) -> Any:
        def call(*args: Any) -> Any:
            self.calls += 1
            return method(*args)

        return call


@pytest.mark.parametrize("page", [32, 64, 256])
def test_an_unfinished_block_keeps_slot_and_pages_without_an_allocator_call(
    page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(scheduler(block_size=page), {"r": (20,)})
    one = request("r", prompt=40)
    driver.scheduler.add(one)
    driver.step()
    driver.step()
    spy, slot, pages = Spy(driver.scheduler, monkeypatch), one.slot, list(one.block_table)
    for _ in range(18):
        assert driver.step() == []
        assert (one.slot, one.block_table) == (slot, pages)
    assert spy.calls == 0
    driver.drain()
    assert spy.calls > 0
    assert driver.scheduler.counters.unfinished_allocator_calls == 0


def test_without_reuse_an_unfinished_block_takes_slot_and_pages_anew_every_round() -> None:
    driver = Driver(scheduler(reuse_in_place=False), {"r": (20,)})
    one = request("r")
    driver.scheduler.add(one)
    driver.step()
    assert one.slot == NO_SLOT
    assert one.block_table == []
    driver.drain()
    assert driver.scheduler.counters.unfinished_allocator_calls == 19 * 4
    assert one.rounds_per_block == [20]


def test_without_reuse_a_page_that_holds_a_committed_block_is_kept_all_the_same() -> None:
    driver = Driver(scheduler(reuse_in_place=False, block_size=64), {"r": (1, 20)})
    one = request("r", output=64)
    driver.scheduler.add(one)
    assert [commit.emitted_tokens for commit in driver.step() or ()] == [32]
    page = list(one.block_table)
    assert len(page) == driver.scheduler.blocks_in_use() == 1
    for _ in range(19):
        assert driver.step() == []
        assert (one.slot, one.block_table, driver.scheduler.blocks_in_use()) == (NO_SLOT, page, 1)
    driver.drain()
    assert one.rounds_per_block == [1, 20]


def test_a_batch_yields_only_to_a_request_that_could_join() -> None:
    core = scheduler(max_num_seqs=2, num_kv_blocks=4)
    core.add(request("a", prompt=40))
    core.finish(scheduled(core), BatchOutcome())
    scheduled(core)
    assert not core.must_yield(0)
    core.add(request("too-long-now", prompt=96, output=10))
    assert core.must_yield(0) is False
    core.abort(next(iter(core.waiting)))  # type: ignore[arg-type]
    core.add(request("fits", prompt=5))
    assert core.must_yield(0)
    assert scheduler(reloop=False).must_yield(0)


def test_a_batch_yields_to_a_deadline() -> None:
    core = scheduler()
    core.add(request("a", deadline_ns=50))
    core.schedule(0)
    assert not core.must_yield(49)
    assert core.must_yield(50)
    assert [gone.id for gone in core.expire(50)] == ["a"]
    core.check()
    assert core.kv.pool.num_free == core.kv.pool.total


def test_a_batch_does_not_yield_to_the_deadline_of_a_request_that_has_ended() -> None:
    core = scheduler()
    core.add(request("a", deadline_ns=50))
    core.add(request("b", deadline_ns=70))
    core.schedule(0)
    core.abort(next(iter(core.running)))
    assert core.first_deadline_ns == 70
    assert not core.must_yield(60)
    assert core.expire(60) == []
    assert core.must_yield(70)


@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("blocks", [2, 3, 4, 5])
def test_a_parked_block_that_gives_way_to_others_takes_no_slot(blocks: int, policy: str, reuse: bool) -> None:
    """Three requests, each of which needs nearly all pages, and none of which has a slot between batches."""
    driver = Driver(
        scheduler(
            fdfo=True, reuse_in_place=reuse, num_kv_blocks=blocks, max_model_len=blocks * BLOCK,
            max_num_seqs=3, preemption_policy=policy,
        ),
        {"a": (1,), "b": (3,), "c": (2,)},
    )  # fmt: skip
    requests = [
        request(name, output=(blocks - 1) * BLOCK, priority=priority)
        for name, priority in (("a", 0), ("b", 2), ("c", 1))
    ]
    for one in requests:
        driver.scheduler.add(one)
    driver.drain()
    assert [one.generated for one in requests] == [(blocks - 1) * BLOCK] * 3


def test_a_preempted_block_goes_on_where_it_was() -> None:
    driver = Driver(scheduler(max_num_seqs=2, num_kv_blocks=5), {"a": (2,), "b": (30,)})
    a, b = request("a", prompt=32, output=90), request("b", prompt=32, output=32)
    driver.scheduler.add(a)
    driver.scheduler.add(b)
    while not b.preemptions:
        driver.step()
    done = b.block_rounds
    assert done > 0
    assert b.dllm_algo_state == "b"
    driver.drain()
    assert b.rounds_per_block == [30]
    assert b.generated == 32


# -- bad settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"block_size": 16}, "block_size"),
        ({"block_size": 48}, "block_size"),
        ({"max_num_seqs": 128}, "max_num_batched_tokens"),
        ({"max_model_len": 31}, "max_model_len"),
        ({"long_prefill_token_threshold": 16}, "long_prefill_token_threshold"),
        ({"block_tokens": 0}, "block_diffusion.block_size"),
        ({"scheduler": "nobody"}, "scheduler"),
        ({"scheduler": "lpm"}, "scheduler"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(settings: dict[str, Any], key: str) -> None:
    with pytest.raises(InputError) as refusal:
        scheduler(**settings)
    assert refusal.value.key == key


def test_a_request_that_never_fits_is_refused_at_arrival() -> None:
    core = scheduler(num_kv_blocks=2)
    assert core.add(request("r", prompt=60, output=None, max_tokens=5)) is not None
    assert core.schedule(0) is None


# -- everything at once ------------------------------------------------------------------------------


@settings(max_examples=100)
@given(
    seed=st.integers(0, 10**6),
    modes=st.fixed_dictionaries({name: st.booleans() for name in ("fdfo", "reuse_in_place")}),
    page=st.sampled_from([32, 64]),
    pages=st.integers(4, 12),
    slots=st.integers(1, 5),
    policy=st.sampled_from(["fcfs", "priority-fcfs", "sjf"]),
    victim=st.sampled_from(["fcfs", "priority"]),
)
def test_nothing_leaks_no_request_starves_and_nothing_crosses_requests(
    seed: int, modes: dict[str, bool], page: int, pages: int, slots: int, policy: str, victim: str
) -> None:
    rng = Random(seed)
    core = scheduler(
        block_size=page,
        num_kv_blocks=pages,
        max_num_seqs=slots,
        max_num_batched_tokens=rng.choice([slots * BLOCK, 256]),
        scheduler=policy,
        preemption_policy=victim,
        prefix_cache=rng.choice(["hash", "radix", "none"]),
        **modes,
    )
    names = [str(index) for index in range(rng.randint(1, 12))]
    driver = Driver(core, {name: [rng.randint(1, 6) for _ in range(5)] for name in names})
    alive = []
    for _ in range(2000):
        if names and rng.random() < 0.4:
            ids = [rng.randrange(2) for _ in range(rng.choice([0, 1, 31, 32, 33, 64, 90]))]
            one = keyed(names.pop(), ids, page, output=rng.randint(1, 100), priority=rng.randrange(3))
            if core.add(one) is None:
                alive.append(one)
        if alive and rng.random() < 0.03:
            core.abort(gone := alive.pop(rng.randrange(len(alive))))
            assert gone.slot == NO_SLOT
        commits = driver.step()
        core.check()
        for commit in commits or ():
            if commit.finished:
                alive.remove(commit.request)
                assert commit.request.generated == commit.request.target
        if not names and not alive:
            break
    else:
        pytest.fail("a request never finished")
    driver.drain()
    if modes["reuse_in_place"]:
        assert core.counters.unfinished_allocator_calls == 0
