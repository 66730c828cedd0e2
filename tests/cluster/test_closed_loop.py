"""A closed loop: no more requests under way than permits, and the next one when one has ended."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cluster_runs import Row, linear, table_of
from one_pool import simulate

import blis_py as blis
from blis_py.cluster.flow_settings import FlowSettings
from blis_py.cluster.ingress.closed_loop import ClosedLoop
from blis_py.cluster.instances.diffusion import BlockDiffusion
from blis_py.core.config import SchedulerConfig
from blis_py.core.diffusion_config import DiffusionConfig
from blis_py.errors import InputError
from blis_py.latency.base import FrontendDelays
from blis_py.metrics.record import Outcome, RunRecord

US = 1000
CONFIG = SchedulerConfig(num_kv_blocks=400, max_model_len=4096, max_num_seqs=64)
MODEL = {"model": "llama-3.1-8b", "seed": 3}


def closed(rows: list[Row], permits: int, think_us: int = 0, **options: object) -> RunRecord:
    source = ClosedLoop(table_of(rows), permits, think_us * US)
    return simulate(source, scheduler=CONFIG, latency=linear(10 * US), **options)  # type: ignore[arg-type]


def under_way(record: RunRecord) -> int:
    """The most requests at a time, between sending and the end that the client sees."""
    sent, ended = np.sort(record.table.arrival_ns), np.sort(record.finish_ns)
    return int((np.arange(1, len(sent) + 1) - np.searchsorted(ended, sent, side="right")).max())


@pytest.mark.parametrize("permits", [1, 3, 8])
def test_there_are_never_more_requests_under_way_than_permits(permits: int) -> None:
    record = closed([Row(0, 20, n % 7 + 1, n % 7 + 1) for n in range(60)], permits)
    assert set(record.outcome.tolist()) == {Outcome.COMPLETED}
    assert under_way(record) == permits
    assert (record.table.arrival_ns == 0).sum() == permits


def test_each_request_is_sent_when_one_has_ended_and_the_client_has_thought() -> None:
    """One permit, steps of 10 us: an answer of n tokens ends after n steps, and a pause of 5 us follows."""
    record = closed([Row(0, 8, n, n) for n in (1, 4, 2)], 1, think_us=5)
    assert record.table.arrival_ns.tolist() == [0, 15 * US, 60 * US]
    assert record.finish_ns.tolist() == [10 * US, 55 * US, 80 * US]
    assert record.table.due_ns is not None
    assert record.table.due_ns.tolist() == [0, 0, 0]


def test_a_client_sees_the_end_behind_the_front_end() -> None:
    latency = linear(10 * US, FrontendDelays(before_enqueue_ns=3 * US, behind_ns=2 * US))
    record = simulate(ClosedLoop(table_of([Row(0, 8, 1, 1)] * 2), 1), scheduler=CONFIG, latency=latency)
    assert record.table.arrival_ns.tolist() == [0, 15 * US]


def test_a_client_that_is_streamed_to_beside_others_goes_on_as_late_as_it_sees_the_end() -> None:
    """Two at once: each end is seen 2 x 3 us late."""
    latency = linear(10 * US, FrontendDelays(behind_seq_ns=3 * US))
    record = simulate(ClosedLoop(table_of([Row(0, 8, 1, 1)] * 3), 2), scheduler=CONFIG, latency=latency)
    assert record.table.arrival_ns.tolist() == [0, 0, 16 * US]


def test_a_client_goes_on_as_late_as_its_prompt_is_long() -> None:
    latency = linear(10 * US, FrontendDelays(prompt_token_ns=US))
    record = simulate(ClosedLoop(table_of([Row(0, 8, 1, 1)] * 2), 1), scheduler=CONFIG, latency=latency)
    assert record.table.arrival_ns.tolist() == [0, 18 * US]


def test_with_a_rate_a_due_request_waits_for_a_permit_and_not_longer() -> None:
    record = closed([Row(0, 8, 3, 3), Row(10, 8, 3, 3), Row(500, 8, 3, 3)], 1)
    assert record.table.arrival_ns.tolist() == [0, 30 * US, 500 * US]


def test_patience_counts_from_sending() -> None:
    """The second would have given up at 25 us, had its time begun when it was due."""
    record = closed([Row(0, 8, 3, 3), Row(0, 8, 2, 2, patience_us=25)], 1)
    assert record.outcome.tolist() == [Outcome.COMPLETED, Outcome.COMPLETED]


def test_a_request_that_times_out_or_cannot_be_served_frees_the_permit() -> None:
    rows = [Row(0, 8, 900, 900, patience_us=50), Row(0, 5000, 1, 1), Row(0, 8, 2, 2)]
    record = closed(rows, 1)
    assert record.outcome.tolist() == [Outcome.TIMED_OUT, Outcome.UNSERVABLE, Outcome.COMPLETED]


def test_without_a_rate_as_many_requests_as_permits_are_sent_at_once() -> None:
    result = blis.run(**MODEL, concurrency=16, num_requests=80)
    assert under_way(result.record) == 16
    requests = result.requests
    assert (requests.arrival_s == 0).sum() == 16
    assert (requests.client_wait_ms[:16] == 0).all()
    assert (requests.client_wait_ms[16:] > 0).all()
    assert "client_wait_ms" not in blis.run(**MODEL, num_requests=5).requests


def test_a_simulation_of_a_closed_loop_can_run_twice() -> None:
    simulation = blis.build(**MODEL, concurrency=4, num_requests=30)
    assert simulation.run().summary == simulation.run().summary


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"think_time_ms": 5.0}, "means a closed loop"),
        ({"concurrency": 4, "horizon": "60s"}, "how many requests"),
        ({"concurrency": -1}, "at least 1"),
    ],
)
def test_a_closed_loop_that_is_none_is_refused(settings: dict[str, object], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        blis.build(**MODEL, **settings)


@pytest.mark.parametrize("overlapped", [False, True], ids=["synchronous", "asynchronous"])
def test_a_client_that_times_out_or_is_refused_within_a_step_goes_on_at_once(overlapped: bool) -> None:
    """Steps take 10 us each, and end at 10, 20, 30: patience ends at 25, the refusal is at 25, too."""
    config = replace(CONFIG, async_scheduling=overlapped)
    rows = [Row(0, 8, 900, 900, patience_us=25), Row(0, 5000, 1, 1), Row(0, 8, 900, 900, patience_us=4)]
    source = ClosedLoop(table_of([Row(0, 8, 50, 50), *rows, Row(0, 8, 2, 2)]), 2)
    record = simulate(source, scheduler=config, latency=linear(10 * US))
    assert record.outcome.tolist()[1:4] == [Outcome.TIMED_OUT, Outcome.UNSERVABLE, Outcome.TIMED_OUT]
    assert record.table.arrival_ns.tolist() == [0, 0, 25 * US, 25 * US, 29 * US]


def blocks(*rounds: list[int], fdfo: bool) -> BlockDiffusion:
    """Blocks of 8 tokens, with the rounds of each block of each request."""
    return BlockDiffusion(rounds, DiffusionConfig(block_tokens=8, fdfo=fdfo))


@pytest.mark.parametrize("fdfo", [False, True])
def test_a_client_of_block_diffusion_goes_on_within_a_round_too(fdfo: bool) -> None:
    """Rounds take 10 us; a batch of the synchronous mode takes as many as its slowest block."""
    rows = [Row(0, 8, 64), Row(0, 8, 64, patience_us=25), Row(0, 8, 8)]
    config = replace(CONFIG, block_size=8)
    kind = blocks([9] * 8, [9] * 8, [1], fdfo=fdfo)
    source = ClosedLoop(table_of(rows), 2)
    record = simulate(source, scheduler=config, latency=linear(10 * US), kind=kind)
    assert record.outcome[1] == Outcome.TIMED_OUT
    assert record.table.arrival_ns.tolist() == [0, 0, 25 * US]


@pytest.mark.parametrize(("fdfo", "answered"), [(False, True), (True, False)])
def test_a_block_that_becomes_final_in_the_round_at_the_end_of_patience_is_an_answer(
    fdfo: bool, answered: bool
) -> None:
    """Patience ends in the last round of the prompt's batch and of three; at 35 us none is left to come.

    The synchronous mode returns to its queue only with the whole batch.
    """
    config, kind = replace(CONFIG, block_size=8), blocks([3], [1], fdfo=fdfo)
    for patience_us, is_answer in ((35, True), (25, answered)):
        source = ClosedLoop(table_of([Row(0, 8, 8, patience_us=patience_us), Row(0, 8, 8)]), 1)
        record = simulate(source, scheduler=config, latency=linear(10 * US), kind=kind)
        assert record.outcome[0] == (Outcome.COMPLETED if is_answer else Outcome.TIMED_OUT)
        sent_us = 40 if is_answer else patience_us
        assert record.table.arrival_ns.tolist() == [0, sent_us * US]


def test_an_evicted_request_frees_the_permit_when_it_is_evicted() -> None:
    """A sheddable request makes room for a critical one at 25 us, within a step that ends at 30."""
    rows = [Row(0, 8, 50, slo_class="batch"), Row(25, 8, 5, slo_class="critical"), Row(26, 8, 5)]
    flow = FlowSettings(
        saturation_detector="concurrency", max_concurrency_per_instance=1, in_flight_eviction=True
    )
    for single_step in (False, True):
        record = closed(rows, 2, flow_control=flow, single_step=single_step)
        assert record.outcome.tolist() == [Outcome.EVICTED, Outcome.COMPLETED, Outcome.COMPLETED]
        assert record.table.arrival_ns.tolist() == [0, 25 * US, 26 * US]


def test_a_client_with_a_network_goes_on_when_the_end_reaches_it() -> None:
    """At 25 us its request gives up in the queue; the response takes 2 us."""
    rows = [Row(0, 8, 50), Row(0, 8, 50, patience_us=25), Row(0, 8, 2)]
    table = replace(table_of(rows), network_ns=np.array([[2 * US, 0.0]] * 3))
    config = replace(CONFIG, max_num_seqs=1)
    record = simulate(ClosedLoop(table, 2), scheduler=config, latency=linear(10 * US))
    assert record.outcome[1] == Outcome.TIMED_OUT
    assert record.table.arrival_ns.tolist() == [0, 0, 27 * US]


@pytest.mark.parametrize("overlapped", [False, True], ids=["synchronous", "asynchronous"])
def test_an_answer_that_the_step_at_the_end_of_patience_completes_is_an_answer(overlapped: bool) -> None:
    config = replace(CONFIG, async_scheduling=overlapped)
    source = ClosedLoop(table_of([Row(0, 8, 3, 3, patience_us=25), Row(0, 8, 1, 1)]), 1)
    record = simulate(source, scheduler=config, latency=linear(10 * US))
    assert record.outcome.tolist() == [Outcome.COMPLETED, Outcome.COMPLETED]
    assert record.table.arrival_ns.tolist() == [0, 30 * US]
