"""Ledgers of requests: they add up to the nanosecond, and causes are where they can be worked out."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import test_prefill_and_decode as prefill_and_decode
from cluster_runs import LATENCIES, Row, Run, flows, linear, runs, table_of
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_runs import DENOISING, ENDED, all_ledgers, check_sums, denoising, queueing_ns
from one_pool import simulate
from test_ranks import ranked_runs
from two_visits import handed_over

from blis_py.cluster.flow_settings import FlowSettings
from blis_py.cluster.ingress.closed_loop import ClosedLoop
from blis_py.core.config import SchedulerConfig
from blis_py.core.features import StepFeatures
from blis_py.latency.base import FrontendDelays, StepTime
from blis_py.ledger.book import Ledger
from blis_py.ledger.division import Divider, PrefillChunk
from blis_py.ledger.lines import LedgerLine, split

US, MS = 1_000, 1_000_000
ROOMY = SchedulerConfig(num_kv_blocks=1000, max_model_len=4096)


# -- they add up -------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=150)
@given(runs(), st.booleans(), st.sampled_from([0.0, 0.0, 0.5]))
def test_every_ledger_adds_up_to_the_nanosecond(run: Run, overlap: bool, eos_share: float) -> None:
    """Any policy, cache, former; preemptions, timeouts, refusals, horizons; and watching changes nothing."""
    run = replace(run, config=replace(run.config, async_scheduling=overlap), eos_share=eos_share)
    record, ledgers = all_ledgers(run.record, LATENCIES[run.latency])
    check_sums(record, ledgers)
    for row, ledger in enumerate(ledgers):
        if ledger.outcome in ENDED:
            delay_ns = int(record.scheduled_ns[row] - record.table.arrival_ns[row])
            waited_ns = queueing_ns(ledger)
            assert waited_ns >= delay_ns if overlap else waited_ns == delay_ns


@settings(max_examples=40, deadline=None)
@given(ranked_runs())
def test_ledgers_add_up_where_ranks_step_together(run: Run) -> None:
    """Each rank has a queue and KV blocks of its own; a step takes as long as the slowest."""
    record, ledgers = all_ledgers(run.record, LATENCIES[run.latency])
    check_sums(record, ledgers)
    for row, ledger in enumerate(ledgers):
        if ledger.outcome in ENDED:
            assert queueing_ns(ledger) == record.scheduled_ns[row] - record.table.arrival_ns[row]


@pytest.mark.slow
@settings(max_examples=60)
@given(runs(), st.booleans(), st.integers(1, 4), st.sampled_from([0, 5 * US]))
def test_ledgers_of_a_closed_loop_add_up_from_the_moment_of_sending(
    run: Run, overlap: bool, permits: int, think_ns: int
) -> None:
    config = replace(run.config, async_scheduling=overlap)
    options: dict[str, Any] = {**run.options, "horizon_ns": None}

    def again(**more: Any) -> Any:
        source = ClosedLoop(table_of(run.rows), permits, think_ns)
        return simulate(source, scheduler=config, latency=LATENCIES[run.latency], **options, **more)

    record, ledgers = all_ledgers(again, LATENCIES[run.latency])
    check_sums(record, ledgers)
    assert record.table.due_ns is not None
    waits = (record.table.arrival_ns - record.table.due_ns).tolist()
    assert [ledger.client_ns for ledger in ledgers] == waits


@pytest.mark.slow
@settings(max_examples=60)
@given(
    st.integers(0, 10**6),
    st.tuples(st.booleans(), st.booleans(), st.booleans()),
    st.sampled_from([0, 40 * MS]),
    st.sampled_from([13, 20, 400]),
    st.sampled_from([96, 2048]),
    st.sampled_from([None, 100 * MS]),
    st.sampled_from([0, 5 * US]),
)
def test_ledgers_of_block_diffusion_add_up(
    seed: int,
    modes: tuple[bool, bool, bool],
    timeout_ns: int,
    blocks: int,
    budget: int,
    horizon_ns: int | None,
    cost_ns: int,
) -> None:
    run, diffusion = denoising(
        seed,
        timeout_ns=timeout_ns,
        modes=modes,
        num_kv_blocks=blocks,
        budget=budget,
        horizon_ns=horizon_ns,
        cost_ns=cost_ns,
    )
    check_sums(*all_ledgers(run, DENOISING, diffusion))


@pytest.mark.slow
@settings(max_examples=40)
@given(runs(), flows())
def test_they_add_up_with_a_queue_at_the_gateway(run: Run, flow: FlowSettings) -> None:
    """Of those that it lets go, turns away or takes back."""
    simulated = partial(run.record, flow_control=flow)
    record, ledgers = all_ledgers(simulated, LATENCIES[run.latency])
    check_sums(record, ledgers)
    assert record.gateway_ns is not None
    for wait_ns, ledger in zip(record.gateway_ns.tolist(), ledgers, strict=True):
        assert ledger.whole.get(LedgerLine.GATEWAY, 0) == max(wait_ns, 0)


@pytest.mark.slow
def test_every_line_occurs_in_some_run() -> None:
    """What never occurs would not be tested by the sums."""
    elsewhere = {line for line in LedgerLine if line.value.startswith("hand-over")}
    unseen = (
        set(LedgerLine)
        - elsewhere
        - {LedgerLine.HAND_OVER, LedgerLine.HELD_BACK, LedgerLine.GATEWAY, LedgerLine.NO_PROMPTS}
    )

    def note(ledgers: list[Ledger]) -> None:
        for ledger in ledgers:
            unseen.difference_update(ledger.whole.keys())

    for modes in ((True, True, True), (False, True, True)):
        run, diffusion = denoising(1, modes=modes)
        note(all_ledgers(run, DENOISING, diffusion)[1])

    @settings(max_examples=300, derandomize=True, database=None)
    @given(runs(), st.booleans())
    def look(run: Run, overlap: bool) -> None:
        if unseen:
            run = replace(run, config=replace(run.config, async_scheduling=overlap))
            note(all_ledgers(run.record, LATENCIES[run.latency])[1])

    look()
    assert not unseen


# -- what is on which line ---------------------------------------------------------------------------


def ledgers_of(rows: list[Row], config: SchedulerConfig = ROOMY, latency: Any = None) -> list[Ledger]:
    model = latency or linear(10 * US)
    run = partial(simulate, table_of(rows), scheduler=config, latency=model)
    record, ledgers = all_ledgers(run, model)
    check_sums(record, ledgers)
    return ledgers


def test_a_request_that_arrives_during_a_step_waits_for_its_end() -> None:
    second = ledgers_of([Row(0, 16, 3, 3), Row(4, 16, 2, 2)])[1]
    assert second.first == {LedgerLine.RUNNING_STEP: 6 * US, LedgerLine.OWN_PREFILL: 10 * US}


def test_a_request_that_arrives_during_an_overlapped_step_waits_for_the_composed_one_too() -> None:
    config = replace(ROOMY, async_scheduling=True)
    second = ledgers_of([Row(0, 16, 6, 6), Row(12, 16, 2, 2)], config)[1]
    assert second.first == {
        LedgerLine.RUNNING_STEP: 8 * US,
        LedgerLine.COMPOSED_STEP: 10 * US,
        LedgerLine.OWN_PREFILL: 10 * US,
    }


def test_a_composed_step_is_no_refusal_even_if_there_was_nothing_left_in_it() -> None:
    """A prompt of three full steps. Who comes in the first is seen when the third is composed."""
    config = replace(ROOMY, async_scheduling=True, max_num_batched_tokens=100)
    second = ledgers_of([Row(0, 300, 1, 1), Row(4, 10, 1, 1)], config)[1]
    assert second.first == {
        LedgerLine.RUNNING_STEP: 6 * US,
        LedgerLine.COMPOSED_STEP: 10 * US,
        LedgerLine.NO_BUDGET: 10 * US,
        LedgerLine.OWN_PREFILL: 10 * US,
    }


def test_without_composed_steps_no_request_waits_for_one() -> None:
    """Two come during the only step in flight; there is a slot for one of them."""
    config = replace(ROOMY, async_scheduling=True, max_num_seqs=1)
    rows = [Row(0, 16, 1, 1), Row(3, 16, 1, 1), Row(4, 16, 1, 1)]
    third = ledgers_of(rows, config)[2]
    assert LedgerLine.COMPOSED_STEP not in third.first
    assert third.first[LedgerLine.RUNNING_STEP] == 6 * US


def test_all_slots_taken_is_distinguished_from_queueing_for_one() -> None:
    config = replace(ROOMY, max_num_seqs=1)
    first, second, third = ledgers_of([Row(0, 16, 3, 3), Row(1, 16, 2, 2), Row(2, 16, 1, 1)], config)
    assert LedgerLine.NO_SLOT not in first.whole
    assert second.first == {
        LedgerLine.RUNNING_STEP: 9 * US,
        LedgerLine.NO_SLOT: 20 * US,
        LedgerLine.OWN_PREFILL: 10 * US,
    }
    # The second's first step is one in which the third would have run, had it stood before it.
    assert third.first[LedgerLine.NO_SLOT] == 30 * US
    assert third.first[LedgerLine.BEHIND_SLOT] == 10 * US


def test_too_few_blocks_are_distinguished_from_queueing_behind_a_request_that_lacks_them() -> None:
    """40 blocks: the first holds 30 for 4 steps, the second needs 20, the third 1."""
    config = SchedulerConfig(num_kv_blocks=40, max_model_len=4096, prefix_cache="none")
    rows = [Row(0, 30 * 16 - 8, 4, 4), Row(1, 20 * 16 - 8, 1, 1), Row(2, 8, 1, 1)]
    _, second, third = ledgers_of(rows, config)
    assert second.first[LedgerLine.NO_KV] == 30 * US
    assert third.first[LedgerLine.BEHIND_KV] == 30 * US
    assert LedgerLine.NO_KV not in third.first


def test_the_budget_that_a_running_prompt_takes_is_distinguished_from_what_a_request_ahead_takes() -> None:
    config = replace(ROOMY, max_num_batched_tokens=100)
    rows = [Row(0, 300, 1, 1), Row(1, 100, 1, 1), Row(2, 10, 1, 1)]
    _, second, third = ledgers_of(rows, config)
    assert second.first[LedgerLine.NO_BUDGET] == 20 * US
    assert third.first[LedgerLine.NO_BUDGET] == 20 * US
    assert third.first[LedgerLine.BEHIND_BUDGET] == 10 * US
    assert {name: other.waited_ns for name, other in third.in_the_way.items()} == {
        "request_0": 20 * US,
        "request_1": 10 * US,
    }


def test_a_request_that_waits_for_a_prefix_in_the_making_is_held_back() -> None:
    config = SchedulerConfig(
        num_kv_blocks=400,
        max_model_len=4096,
        scheduler="lpm",
        max_num_batched_tokens=64,
        in_batch_sharing_tokens=16,
        long_prefill_token_threshold=32,
    )
    rows = [Row(0, 300, 1, 1, runs=(("a", 300),)), Row(1, 300, 1, 1, runs=(("a", 300),))]
    second = ledgers_of(rows, config)[1]
    assert second.first[LedgerLine.HELD_BACK] > 0
    assert not {LedgerLine.NO_KV, LedgerLine.BEHIND_KV} & second.first.keys()


def test_a_preemption_shows_as_waiting_and_computing_again() -> None:
    """11 blocks of 4 tokens: two requests fit with their prompts, and not with their answers."""
    config = SchedulerConfig(num_kv_blocks=11, max_model_len=64, block_size=4, prefix_cache="none")
    first, second = ledgers_of([Row(0, 16, 12, 12), Row(0, 16, 12, 12)], config)
    assert LedgerLine.PREEMPTED not in first.whole
    assert second.preemptions == 1
    assert second.whole[LedgerLine.PREEMPTED] > 0
    assert second.whole[LedgerLine.RECOMPUTE] == 10 * US
    assert {LedgerLine.PREEMPTED, LedgerLine.RECOMPUTE}.isdisjoint(second.first)
    assert second.in_the_way["request_0"].waited_ns == second.whole[LedgerLine.PREEMPTED]


def test_no_request_is_admitted_in_a_step_that_preempts() -> None:
    """The second goes at 50 us. There is room for the third, but the door is closed; later it is behind."""
    config = SchedulerConfig(num_kv_blocks=11, max_model_len=64, block_size=4, prefix_cache="none")
    rows = [Row(0, 16, 12, 12), Row(0, 16, 12, 12), Row(41, 4, 1, 1)]
    third = ledgers_of(rows, config)[2]
    assert third.first[LedgerLine.RUNNING_STEP] == 9 * US
    assert third.first[LedgerLine.NO_KV] == 10 * US
    assert third.first[LedgerLine.BEHIND_KV] > 0


def test_a_request_that_arrived_later_and_was_admitted_earlier_is_named() -> None:
    config = replace(ROOMY, scheduler="sjf", max_num_seqs=1)
    rows = [Row(0, 16, 3, 3), Row(1, 64, 1, 1), Row(2, 8, 1, 1)]
    long = ledgers_of(rows, config)[1]
    assert [name for name, other in long.in_the_way.items() if other.went_ahead] == ["request_2"]


def test_the_front_end_and_the_way_there_have_lines_of_their_own() -> None:
    delays = FrontendDelays(
        before_enqueue_ns=300, per_token_ns=10, at_end_ns=5, behind_ns=70, prompt_token_ns=2
    )
    run = partial(
        simulate,
        table_of([Row(0, 16, 3, 3)]),
        scheduler=ROOMY,
        latency=linear(10 * US, delays),
        admission_latency_ns=40,
        routing_latency_ns=2,
    )
    (ledger,) = all_ledgers(run, linear(10 * US, delays))[1]
    assert ledger.whole == {
        LedgerLine.ADMISSION: 42,
        LedgerLine.FRONT_END_BEFORE: 300,
        LedgerLine.OWN_PREFILL: 10 * US,
        LedgerLine.DECODE: 20 * US,
        LedgerLine.TOKENISATION: 16 * 2,
        LedgerLine.FRONT_END_AFTER: 70 + 3 * 10 + 5,
    }
    assert ledger.first[LedgerLine.TOKENISATION] == 16 * 2
    assert ledger.first[LedgerLine.FRONT_END_AFTER] == 70 + 10


def test_a_refused_request_spent_its_time_on_the_way() -> None:
    delays = FrontendDelays(before_enqueue_ns=300)
    latency = linear(10 * US, delays)
    run = partial(simulate, table_of([Row(0, 9000, 3, 3)]), scheduler=ROOMY, latency=latency)
    (ledger,) = all_ledgers(run, latency)[1]
    assert ledger.whole == {LedgerLine.FRONT_END_BEFORE: 300}
    assert ledger.ttft_ns is None


def test_a_block_that_is_final_rides_along_in_a_synchronous_batch_and_not_with_fdfo() -> None:
    rides = []
    for fdfo in (True, False):
        run, diffusion = denoising(3, modes=(fdfo, True, True))
        rides.append(
            sum(each.whole.get(LedgerLine.RIDING, 0) for each in all_ledgers(run, DENOISING, diffusion)[1])
        )
    assert rides[0] == 0
    assert rides[1] > 0


# -- how a step is divided ---------------------------------------------------------------------------


MIXED = StepFeatures(
    prefill_seqs=2,
    prefill_tokens=150,
    prefill_pairs=100 * 101 // 2 + 50 * 51 // 2,
    decode_seqs=4,
    decode_kv_tokens=800,
    max_context=300,
    emitted_rows=6,
)
CHUNKS = (PrefillChunk("a", 100, 0, 100), PrefillChunk("b", 50, 0, 50))


def test_a_step_is_divided_by_the_prices_of_the_steps_it_could_have_been() -> None:
    model = linear(1000, prefill_tokens=7, decode_seqs=11, emitted_rows=3)
    duration = model.step_ns(MIXED)
    own = Divider(model).of_prefill(duration, MIXED, CHUNKS, CHUNKS[0])
    assert own == {
        LedgerLine.HOST: 0,
        LedgerLine.OWN_PREFILL: 1000 + 7 * 100 + 3,
        LedgerLine.OTHERS_DECODE: 4 * 11 + 4 * 3,
        LedgerLine.OTHERS_PREFILL: 7 * 50 + 3,
    }
    decode = Divider(model).of_decode(duration, MIXED, CHUNKS)
    assert decode == {
        LedgerLine.HOST: 0,
        LedgerLine.DECODE: 1000 + 4 * 11 + 4 * 3,
        LedgerLine.OTHERS_PREFILL: 7 * 150 + 2 * 3,
    }


class _LessWhereShared:
    """2,100 ns for decodes, 100 ns a prompt, less a nanosecond for each KV entry that is read again."""

    def step(self, features: StepFeatures) -> StepTime:
        gpu_ns = 2100 * (features.decode_seqs > 0) + 100 * features.prefill_seqs
        return StepTime(max(gpu_ns - features.shared_kv_tokens, 1), 0)


def test_shared_reads_stay_with_the_decodes_when_a_step_is_divided() -> None:
    step = replace(MIXED, prefill_seqs=1, shared_kv_tokens=100)
    divider = Divider(_LessWhereShared())  # type: ignore[arg-type]
    decode = divider.of_decode(2100, step, CHUNKS[:1])
    assert decode == {LedgerLine.HOST: 0, LedgerLine.DECODE: 2000, LedgerLine.OTHERS_PREFILL: 100}
    prefill = divider.of_prefill(2100, step, CHUNKS[:1], CHUNKS[0])
    assert prefill == {
        LedgerLine.HOST: 0,
        LedgerLine.OWN_PREFILL: 100,
        LedgerLine.OTHERS_DECODE: 2000,
        LedgerLine.OTHERS_PREFILL: 0,
    }


@pytest.mark.parametrize("latency", sorted(LATENCIES))
@given(duration=st.integers(1, 10**9), own=st.sampled_from([0, 1, None]))
def test_no_part_is_negative_and_all_add_up_whatever_the_model_says(
    latency: str, duration: int, own: int | None
) -> None:
    divider = Divider(LATENCIES[latency])
    if own is None:
        times = divider.of_decode(duration, MIXED, CHUNKS)
    else:
        times = divider.of_prefill(duration, MIXED, CHUNKS, CHUNKS[own])
    assert sum(times.values()) == duration
    assert min(times.values()) >= 0


def test_host_time_that_an_overlapped_step_hides_is_on_no_line() -> None:
    model = LATENCIES["linear"]
    decode = StepFeatures(decode_seqs=3, decode_kv_tokens=1000, max_context=400, emitted_rows=3)
    time = model.step(decode)
    alone = Divider(model).of_decode(time.synchronous_ns, decode, ())
    behind = Divider(model).of_decode(time.overlapped_ns, decode, ())
    assert alone[LedgerLine.HOST] == time.host_ns
    assert behind[LedgerLine.HOST] == 0


@given(st.integers(0, 10**12), st.lists(st.integers(0, 10**9), min_size=1, max_size=8))
def test_a_whole_number_is_split_into_whole_parts(total: int, weights: list[int]) -> None:
    parts = split(total, weights)
    assert sum(parts) == total
    assert min(parts) >= 0
    if sum(weights):
        exact = np.array(weights, dtype=float) * total / sum(weights)
        assert all(abs(part - share) <= 1 + 1e-6 * share for part, share in zip(parts, exact, strict=True))


def test_between_two_instances_a_request_is_on_the_way() -> None:
    """Its step ends at 15 us, it leaves at 17, and is in the other queue at 22; see `handed_over`."""
    (ledger,) = all_ledgers(handed_over, linear(10 * US))[1]
    beyond = {LedgerLine.HOST: 2 * US}  # of a decode step of 12 us, where one takes 10
    assert (
        ledger.whole
        == {LedgerLine.OWN_PREFILL: 18 * US, LedgerLine.DECODE: 10 * US, LedgerLine.HAND_OVER: 7 * US}
        | beyond
    )
    assert ledger.first == {LedgerLine.OWN_PREFILL: 10 * US}
    assert (ledger.total_ns, ledger.ttft_ns) == (37 * US, 10 * US)


def test_a_sequence_whose_kv_was_handed_over_decodes_from_its_first_step_on() -> None:
    """Times as in `test_times_of_a_hand_over_are_those_worked_out_by_hand`."""
    requests = prefill_and_decode.table([0, 0, 3], [20, 30, 5], [4, 1, 3])
    run = partial(prefill_and_decode.apart, requests)
    record, ledgers = all_ledgers(run, prefill_and_decode.spec().latency)
    check_sums(record, ledgers)
    assert ledgers[0].whole == {
        LedgerLine.OWN_PREFILL: 30 * US,
        LedgerLine.HAND_OVER: 7 * US,
        LedgerLine.DECODE: 30 * US,
    }
    assert ledgers[2].whole == {
        LedgerLine.RUNNING_STEP: (27 + 5) * US,
        LedgerLine.OWN_PREFILL: 15 * US,
        LedgerLine.HAND_OVER: 7 * US,
        LedgerLine.DECODE: 20 * US,
    }


def test_a_hand_over_adds_up_with_what_the_front_end_takes() -> None:
    delays = FrontendDelays(per_token_ns=10, at_end_ns=5, behind_ns=70)
    record, ledgers = all_ledgers(partial(handed_over, delays), linear(10 * US))
    check_sums(record, ledgers)
    assert ledgers[0].whole[LedgerLine.FRONT_END_AFTER] == 70 + 3 * 10 + 5
    assert ledgers[0].first[LedgerLine.FRONT_END_AFTER] == 70 + 10
