"""Who is seen when: small runs with steps of 10 us, computed by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cluster_runs import Row, linear, table_of
from one_pool import simulate

from blis_py.core.config import SchedulerConfig
from blis_py.errors import InputError
from blis_py.latency.base import FrontendDelays
from blis_py.latency.linear import Linear, LinearCoefficients, LinearCosts
from blis_py.metrics.invariants import check
from blis_py.metrics.record import Outcome, RunRecord
from blis_py.requests.table import RequestTable

US = 1000
CONFIG = SchedulerConfig(num_kv_blocks=100, max_model_len=1000, block_size=4)


def serve(rows: list[Row], config: SchedulerConfig = CONFIG, **options: Any) -> RunRecord:
    latency = linear(10 * US, options.pop("frontend", None))
    record = simulate(table_of(rows), scheduler=config, latency=latency, **options)
    check(record)
    return record


def test_the_first_token_comes_with_the_prefill_and_one_with_each_step_after() -> None:
    record = serve([Row(3, 5, 4, 4)])
    assert record.scheduled_ns.tolist() == [3 * US]
    assert record.first_token_ns.tolist() == [13 * US]
    assert record.last_token_ns.tolist() == record.finish_ns.tolist() == [43 * US]
    assert record.instances[0].step_end_ns.tolist() == [13 * US, 23 * US, 33 * US, 43 * US]
    assert record.emitted_tokens.tolist() == [4]


def test_an_arrival_in_the_middle_of_a_jump_is_seen_at_the_end_of_the_step_in_progress() -> None:
    record = serve([Row(0, 1, 100, 100), Row(55, 1, 1, 1)])
    assert record.enqueue_ns.tolist() == [0, 55 * US]
    assert record.scheduled_ns.tolist() == [0, 60 * US]
    assert record.finish_ns.tolist() == [1000 * US, 70 * US]


def test_an_arrival_exactly_at_a_step_boundary_is_seen_by_the_next_step() -> None:
    record = serve([Row(0, 1, 100, 100), Row(50, 1, 1, 1)])
    assert record.scheduled_ns.tolist() == [0, 50 * US]


def test_an_arrival_when_all_is_idle_starts_at_once() -> None:
    record = serve([Row(0, 1, 1, 1), Row(777, 1, 1, 1)])
    assert record.scheduled_ns.tolist() == [0, 777 * US]


def test_arrivals_at_the_same_instant_share_their_first_step() -> None:
    record = serve([Row(5, 3, 1, 1), Row(5, 4, 1, 1)])
    assert len(record.instances[0].step_end_ns) == 1


@pytest.mark.parametrize(("horizon_us", "tokens"), [(49, 4), (50, 5), (55, 5), (60, 6)])
def test_a_horizon_counts_the_steps_that_are_over_by_then(horizon_us: int, tokens: int) -> None:
    record = serve([Row(0, 1, 100, 100)], horizon_ns=horizon_us * US)
    assert record.outcome.tolist() == [Outcome.RUNNING]
    assert record.emitted_tokens.tolist() == [tokens]
    assert record.last_token_ns.tolist() == [10 * tokens * US]
    assert record.end_ns == horizon_us * US


def test_a_horizon_leaves_waiting_requests_queued_and_later_arrivals_out() -> None:
    one_at_a_time = SchedulerConfig(num_kv_blocks=100, max_model_len=1000, max_num_seqs=1)
    record = serve([Row(0, 1, 9, 9), Row(1, 1, 1, 1), Row(56, 1, 1, 1)], one_at_a_time, horizon_ns=55 * US)
    assert record.outcome.tolist() == [Outcome.RUNNING, Outcome.QUEUED]


def test_a_preempted_request_in_the_queue_at_the_horizon_keeps_what_it_had_emitted() -> None:
    tight = SchedulerConfig(num_kv_blocks=4, max_model_len=1000, block_size=4, enable_prefix_caching=False)
    record = serve([Row(0, 4, 9, 9), Row(0, 4, 9, 9)], tight, horizon_ns=75 * US)
    assert record.outcome.tolist() == [Outcome.RUNNING, Outcome.QUEUED]
    assert record.preemptions.tolist() == [0, 1]
    assert record.emitted_tokens.tolist() == [7, 5]
    assert record.scheduled_ns.tolist() == [0, 0]
    assert record.last_token_ns.tolist() == [70 * US, 50 * US]


def test_recorded_steps_state_the_longest_context() -> None:
    runs = serve([Row(0, 6, 3, 3), Row(10, 4, 9, 9)], record_steps=True).instances[0].runs
    assert runs is not None
    assert runs["max_context"][:4].tolist() == [0, 6, 7, 5]


def test_admission_and_routing_delays_come_before_the_front_end_and_the_queue() -> None:
    frontend = FrontendDelays(before_enqueue_ns=7 * US, per_token_ns=2 * US, at_end_ns=5 * US)
    record = serve(
        [Row(0, 1, 3, 3)], frontend=frontend, admission_latency_ns=100 * US, routing_latency_ns=20 * US
    )
    assert record.enqueue_ns.tolist() == record.scheduled_ns.tolist() == [127 * US]
    # Token j is seen j output delays late; none of it holds up the engine.
    assert record.first_token_ns.tolist() == [(127 + 10 + 2) * US]
    assert record.last_token_ns.tolist() == [(127 + 30 + 6) * US]
    assert record.finish_ns.tolist() == [(127 + 30 + 6 + 5) * US]
    assert record.instances[0].busy_ns == 30 * US


def test_tokens_are_as_late_as_the_step_of_the_first_had_sequences_to_stream_to() -> None:
    """One alone, then a second: its first token comes with the third of the other, and all of its tokens are
    2 x 4 us late; those of the first stay as late as they were."""
    frontend = FrontendDelays(behind_seq_ns=4 * US)
    record = serve([Row(0, 1, 5, 5), Row(15, 1, 2, 2)], frontend=frontend)
    assert record.first_token_ns.tolist() == [(10 + 4) * US, (30 + 8) * US]
    assert record.last_token_ns.tolist() == record.finish_ns.tolist() == [(50 + 4) * US, (40 + 8) * US]


def test_all_tokens_of_a_request_are_as_late_as_its_prompt_is_long() -> None:
    """Both are in the same steps; the engine waits for neither."""
    frontend = FrontendDelays(prompt_token_ns=3 * US)
    record = serve([Row(0, 2, 4, 4), Row(0, 7, 3, 3)], frontend=frontend)
    assert record.enqueue_ns.tolist() == record.scheduled_ns.tolist() == [0, 0]
    assert record.first_token_ns.tolist() == [(10 + 6) * US, (10 + 21) * US]
    assert record.last_token_ns.tolist() == record.finish_ns.tolist() == [(40 + 6) * US, (30 + 21) * US]


def test_delays_by_the_prompt_and_by_other_sequences_add_up() -> None:
    frontend = FrontendDelays(behind_seq_ns=4 * US, prompt_token_ns=3 * US)
    record = serve([Row(0, 2, 1, 1), Row(0, 7, 1, 1)], frontend=frontend)
    assert record.first_token_ns.tolist() == [(10 + 8 + 6) * US, (10 + 8 + 21) * US]
    both = FrontendDelays(behind_seq_ns=4 * US).plus(FrontendDelays(prompt_token_ns=3 * US))
    assert both == frontend
    assert (both.vary, FrontendDelays(before_enqueue_ns=1).vary) == (True, False)


def test_a_request_that_times_out_meanwhile_has_not_seen_a_late_token() -> None:
    frontend = FrontendDelays(behind_seq_ns=4 * US)
    record = serve([Row(0, 1, 50, 50, patience_us=33)], frontend=frontend)
    assert record.emitted_tokens.tolist() == [2]  # the third leaves the engine at 30 us and is seen at 34


def test_the_front_end_of_one_request_runs_while_the_engine_serves_another() -> None:
    frontend = FrontendDelays(before_enqueue_ns=25 * US)
    record = serve([Row(0, 1, 9, 9), Row(12, 1, 1, 1)], frontend=frontend)
    assert record.scheduled_ns.tolist() == [25 * US, 45 * US]  # ready at 37, step ends at 45


def test_a_client_that_gives_up_in_the_queue_never_runs() -> None:
    one_at_a_time = SchedulerConfig(num_kv_blocks=100, max_model_len=1000, max_num_seqs=1)
    record = serve([Row(0, 1, 9, 9), Row(1, 1, 1, 1, patience_us=32)], one_at_a_time)
    assert record.outcome.tolist() == [Outcome.COMPLETED, Outcome.TIMED_OUT]
    assert record.finish_ns.tolist() == [90 * US, 33 * US]
    assert record.scheduled_ns.tolist() == [0, -1]


def test_a_client_that_gives_up_while_running_frees_its_place_at_the_end_of_the_step() -> None:
    one_at_a_time = SchedulerConfig(num_kv_blocks=100, max_model_len=1000, max_num_seqs=1)
    record = serve([Row(0, 1, 50, 50, patience_us=33), Row(1, 1, 1, 1)], one_at_a_time)
    assert record.outcome.tolist() == [Outcome.TIMED_OUT, Outcome.COMPLETED]
    assert record.finish_ns.tolist() == [33 * US, 50 * US]
    assert record.emitted_tokens.tolist() == [3, 1]  # the fourth came after it had gone
    assert record.scheduled_ns.tolist() == [0, 40 * US]


def test_a_client_that_gives_up_has_seen_what_reached_it_by_then() -> None:
    # Token j leaves the engine at 10 j us and is seen 2 j us later; the fourth step is the last.
    frontend = FrontendDelays(per_token_ns=2 * US)
    record = serve([Row(0, 1, 50, 50, patience_us=33)], frontend=frontend)
    assert record.emitted_tokens.tolist() == [2]
    assert record.last_token_ns.tolist() == [24 * US]


def test_a_client_that_gives_up_after_a_stall_has_seen_the_tokens_before_it() -> None:
    config = SchedulerConfig(
        num_kv_blocks=100, max_model_len=100, max_num_batched_tokens=10, batch_former="prefill-first"
    )
    record = serve([Row(0, 3, 9, 9, patience_us=25), Row(5, 10, 2, 2)], config)
    assert record.outcome.tolist() == [Outcome.TIMED_OUT, Outcome.COMPLETED]
    assert (record.emitted_tokens.tolist(), record.visits.emission.last_step.tolist()) == ([1, 2], [0, 2])
    assert record.visits.emission.breaks.tolist() == []


def test_a_request_that_finishes_exactly_at_its_deadline_is_completed() -> None:
    record = serve([Row(0, 1, 3, 3, patience_us=30)])
    assert record.outcome.tolist() == [Outcome.COMPLETED]


def test_requests_that_can_never_fit_are_unservable_and_the_rest_goes_on() -> None:
    config = SchedulerConfig(num_kv_blocks=10, max_model_len=100, block_size=4)
    record = serve([Row(0, 99, 2, 2), Row(0, 41, 1, 1), Row(0, 40, 1, 1)], config)
    assert record.outcome.tolist() == [Outcome.UNSERVABLE, Outcome.UNSERVABLE, Outcome.COMPLETED]
    assert record.finish_ns.tolist() == [0, 0, 10 * US]


def test_an_answer_without_limit_is_cut_at_max_model_len() -> None:
    config = SchedulerConfig(num_kv_blocks=100, max_model_len=8, block_size=4)
    record = serve([Row(0, 5, 50, limit=0)], config)
    assert record.outcome.tolist() == [Outcome.LENGTH_CAPPED]
    assert record.emitted_tokens.tolist() == [3]


def test_a_preemption_keeps_the_first_token_and_shows_as_one_long_gap() -> None:
    config = SchedulerConfig(num_kv_blocks=4, max_model_len=100, block_size=4, enable_prefix_caching=False)
    record = serve([Row(0, 4, 8, 8), Row(0, 4, 8, 8)], config)
    assert record.preemptions.tolist() == [0, 1]
    assert record.first_token_ns.tolist() == [10 * US, 10 * US]
    assert record.last_token_ns.tolist() == [80 * US, 110 * US]
    assert record.visits.emission.breaks.tolist() == [[1, 4, 8]]
    assert record.scheduled_ns.tolist() == [0, 0]
    assert record.instances[0].prefill_tokens == 4 + 4 + 9


def test_a_decode_that_finds_the_budget_spent_leaves_a_break() -> None:
    config = SchedulerConfig(
        num_kv_blocks=100, max_model_len=100, max_num_batched_tokens=10, batch_former="prefill-first"
    )
    record = serve([Row(0, 3, 3, 3), Row(5, 10, 2, 2)], config)
    assert record.visits.emission.breaks.tolist() == [[0, 0, 2]]
    assert record.last_token_ns.tolist() == [40 * US, 30 * US]


def test_a_request_thrown_out_in_the_step_that_admitted_it_is_scheduled_when_it_computes() -> None:
    config = SchedulerConfig(
        num_kv_blocks=2, max_model_len=100, block_size=4, batch_former="prefill-first",
        enable_prefix_caching=False,
    )  # fmt: skip
    # At 10 us the second takes the last block, but the first needs it for its next token.
    record = serve([Row(0, 4, 3, 3), Row(5, 4, 1, 1)], config)
    assert record.first_token_ns.tolist() == [10 * US, 40 * US]
    assert record.scheduled_ns.tolist() == [0, 30 * US]


def test_a_request_thrown_out_before_it_computed_anything_still_counts_its_preemption() -> None:
    config = SchedulerConfig(
        num_kv_blocks=2, max_model_len=100, block_size=4, batch_former="prefill-first",
        enable_prefix_caching=False,
    )  # fmt: skip
    record = serve([Row(0, 4, 3, 3), Row(5, 4, 1, 1, patience_us=12)], config)
    assert record.outcome.tolist() == [Outcome.COMPLETED, Outcome.TIMED_OUT]
    assert record.scheduled_ns.tolist() == [0, -1]
    assert record.preemptions.sum() == record.instances[0].preemptions == 1


def test_round_robin_takes_turns() -> None:
    record = serve([Row(i, 1, 1, 1) for i in range(6)], num_instances=3)
    assert record.instance.tolist() == [0, 1, 2, 0, 1, 2]


def test_least_loaded_avoids_the_instance_that_is_still_busy() -> None:
    rows = [Row(0, 1, 50, 50)] + [Row(100 + 20 * i, 1, 1, 1) for i in range(5)]
    record = serve(rows, num_instances=2, routing_policy="least-loaded")
    busy = record.instance[0]
    assert (record.instance[1:] == 1 - busy).all()


def test_the_router_counts_what_it_sent_even_when_reports_are_stale() -> None:
    rows = [Row(0, 1, 50, 50) for _ in range(8)]
    record = serve(rows, num_instances=4, routing_policy="least-loaded", snapshot_refresh_ns=10**15)
    assert np.bincount(record.instance).tolist() == [2, 2, 2, 2]


def test_reported_load_is_as_stale_as_configured() -> None:
    # At 100 us one instance still runs its first request; it is idle from 150 us on.
    rows = [Row(0, 1, 15, 15), Row(0, 1, 1, 1), Row(100, 1, 1, 1), Row(160, 1, 1, 1)]

    def last_goes_to_the_first_ones(refresh_us: int) -> set[bool]:
        """Whether it does, over some seeds of the router's ties."""
        records = [
            serve(
                rows,
                num_instances=2,
                routing_policy="least-loaded",
                snapshot_refresh_ns=refresh_us * US,
                seed=s,
            )
            for s in range(10)
        ]
        return {bool(record.instance[3] == record.instance[0]) for record in records}

    assert last_goes_to_the_first_ones(refresh_us=90) == {False}  # a report of 100 us says it is busy
    assert last_goes_to_the_first_ones(refresh_us=60) == {True, False}  # a new one: they are equal


@pytest.mark.parametrize(
    ("options", "key"),
    [({"num_instances": 0}, "num_instances"), ({"routing_policy": "best"}, "routing_policy")],
)
def test_impossible_clusters_are_refused(options: dict[str, Any], key: str) -> None:
    with pytest.raises(InputError, match=key):
        serve([Row(0, 1, 1, 1)], **options)


def test_a_class_without_a_priority_is_refused_unless_it_is_given_one() -> None:
    rows = [Row(0, 1, 1, 1, slo_class="platinum")]
    with pytest.raises(InputError, match="platinum"):
        serve(rows)
    assert serve(rows, slo_priorities={"platinum": 9}).outcome.tolist() == [Outcome.COMPLETED]


def test_overridden_classes_change_the_order() -> None:
    config = SchedulerConfig(num_kv_blocks=100, max_model_len=100, max_num_seqs=1, scheduler="priority-fcfs")
    rows = [Row(0, 1, 1, 1, slo_class="critical"), Row(0, 1, 1, 1, slo_class="batch")]
    assert serve(rows, config).scheduled_ns.tolist() == [0, 10 * US]
    assert serve(rows, config, slo_priorities={"batch": 50}).scheduled_ns.tolist() == [10 * US, 0]


def test_nothing_to_do_is_an_empty_record() -> None:
    record = serve([])
    assert len(record.outcome) == 0
    assert record.instances[0].busy_ns == 0


def test_a_model_that_prices_the_longest_context_gets_it() -> None:
    costs = LinearCoefficients(gpu=LinearCosts(step=1000, max_context=10))
    one = np.array([0], dtype=np.int64)
    table = RequestTable.build(one, one + 100, one + 3)
    record = simulate(
        table,
        scheduler=SchedulerConfig(num_kv_blocks=100, max_model_len=1000),
        latency=Linear(costs),
    )
    # The prompt has no context yet; the two decodes have 100 and 101 tokens of it.
    assert record.instances[0].step_end_ns.tolist() == [1000, 3000, 5010]
