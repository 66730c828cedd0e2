"""A run that jumps over alike steps and one that takes them one by one are the same, byte for byte."""

from __future__ import annotations

import numpy as np
import pytest
from cluster_runs import LATENCIES, Row, Run, differences, runs
from hypothesis import given, settings

from blis_py.core.config import SchedulerConfig
from blis_py.metrics.invariants import check


@pytest.mark.slow
@settings(max_examples=100)
@given(runs())
def test_a_jump_equals_its_steps(run: Run) -> None:
    record = run.record()
    assert differences(record, run.record(single_step=True)) == []
    check(record)


def long_decodes(**options: object) -> Run:
    """A few long answers, arrivals in the middle, blocks that run out."""
    config = SchedulerConfig(num_kv_blocks=40, max_model_len=4096)
    rows = [Row(arrival_us=700 * i, prompt=20 + i, output=300, limit=300) for i in range(6)]
    return Run(rows, config, options=options)


@pytest.mark.parametrize("latency", sorted(LATENCIES))
def test_long_jumps_equal_their_steps_with_every_latency_model(latency: str) -> None:
    run = long_decodes()
    run = Run(run.rows, run.config, latency)
    record = run.record()
    assert record.preemptions.sum() > 0
    assert differences(record, run.record(single_step=True)) == []


@pytest.mark.parametrize("horizon_us", [1_000, 1_005, 2_345, 3_000])
def test_a_horizon_in_the_middle_of_a_jump_cuts_it_where_single_steps_would_end(horizon_us: int) -> None:
    run = long_decodes(horizon_ns=horizon_us * 1000)
    assert differences(run.record(), run.record(single_step=True)) == []


@pytest.mark.parametrize("max_num_seqs", [1, 8])
def test_a_horizon_after_a_block_was_taken_for_the_step_in_progress_leaves_the_same_peak(
    max_num_seqs: int,
) -> None:
    config = SchedulerConfig(num_kv_blocks=20, max_model_len=1000, block_size=4, max_num_seqs=max_num_seqs)
    rows = [Row(0, 4, 40, 40), Row(1, 4, 4, 4)]
    for horizon_us in range(10, 120, 5):
        run = Run(rows, config, options={"horizon_ns": horizon_us * 1000})
        assert differences(run.record(), run.record(single_step=True)) == [], horizon_us


def test_a_request_still_on_its_way_at_the_horizon_was_not_dispatched() -> None:
    config = SchedulerConfig(num_kv_blocks=20, max_model_len=1000)
    rows = [Row(0, 4, 4, 4), Row(48, 4, 4, 4)]
    run = Run(rows, config, options={"horizon_ns": 50_000, "admission_latency_ns": 3_000})
    record = run.record()
    assert record.instance.tolist() == [0, -1]
    assert differences(record, run.record(single_step=True)) == []


def test_the_steps_table_states_when_requests_were_preempted() -> None:
    config = SchedulerConfig(num_kv_blocks=8, max_model_len=100, block_size=4, enable_prefix_caching=False)
    rows = [Row(arrival_us=0, prompt=4, output=15, limit=15) for _ in range(4)]
    run = Run(rows, config)
    (instance,) = run.record(record_steps=True).instances
    assert instance.runs is not None
    assert instance.preemptions > 0
    assert instance.runs["preemptions"].sum() == instance.preemptions
    assert instance.runs["preemptions"][0] == 0, "in the beginning there is room for all"


def test_instances_whose_requests_break_off_in_any_order_leave_the_same_record() -> None:
    config = SchedulerConfig(num_kv_blocks=8, max_model_len=100, block_size=4, enable_prefix_caching=False)
    rows = [Row(arrival_us=0, prompt=4, output=15 - 3 * (i % 3), limit=15 - 3 * (i % 3)) for i in range(12)]
    run = Run(rows, config, options={"num_instances": 3})
    record = run.record()
    assert len(set(record.instance[record.visits.emission.breaks[:, 0]].tolist())) > 1
    assert differences(record, run.record(single_step=True)) == []


def test_a_head_whose_cached_prefix_shrinks_while_it_waits_is_admitted_in_the_same_step() -> None:
    """It needs as many blocks as it finds cached and free ones, so it may fit when it finds fewer."""
    config = SchedulerConfig(
        num_kv_blocks=14, max_model_len=1000, block_size=1, long_prefill_token_threshold=3
    )
    rows = [
        Row(0, 6, 1, 1, runs=(("document", 6),)),
        Row(0, 4, 1, 1, runs=(("document", 4),)),
        Row(0, 1, 13, 13),
        Row(60, 10, 1, 1, runs=(("document", 6),)),
    ]
    run = Run(rows, config)
    assert differences(run.record(), run.record(single_step=True)) == []


def test_the_same_seed_gives_the_same_bytes_and_another_breaks_ties_differently() -> None:
    config = SchedulerConfig(num_kv_blocks=100, max_model_len=1000)
    run = Run(
        [Row(arrival_us=5 * i, prompt=5, output=20, limit=20) for i in range(40)],
        config,
        options={"num_instances": 4, "routing_policy": "least-loaded"},
    )
    assert differences(run.record(seed=7), run.record(seed=7)) == []
    assert "instance" in differences(run.record(seed=7), run.record(seed=8))


def test_recording_the_steps_changes_nothing_else() -> None:
    run = long_decodes()
    assert differences(run.record(), run.record(record_steps=True)) == []


def test_the_steps_table_adds_up_to_the_totals() -> None:
    record = long_decodes().record(record_steps=True)
    (instance,) = record.instances
    runs_table = instance.runs
    assert runs_table is not None
    assert runs_table["steps"].sum() == len(instance.step_end_ns)
    assert (runs_table["end_ns"] - runs_table["start_ns"]).sum() == instance.busy_ns
    assert runs_table["prefill_tokens"].sum() == instance.prefill_tokens
    assert (runs_table["decode_seqs"] * runs_table["steps"]).sum() == instance.decode_tokens
    assert runs_table["kv_blocks"].max() == instance.peak_kv_blocks


def test_recorded_steps_of_a_jump_and_single_ones_agree_where_both_have_a_row() -> None:
    run = long_decodes()
    jumps = run.record(record_steps=True).instances[0].runs
    steps = run.record(record_steps=True, single_step=True).instances[0].runs
    assert jumps is not None
    assert steps is not None
    assert len(jumps["steps"]) < len(steps["steps"]) / 5
    first_of = jumps["steps"].cumsum() - jumps["steps"]
    last_of = jumps["steps"].cumsum() - 1
    for name in jumps.names:
        if name in ("steps", "preemptions"):  # sums over the steps of a row
            single = np.add.reduceat(steps[name], first_of)
            assert (jumps[name] == single).all()
            continue
        rows = last_of if name in ("end_ns", "kv_blocks") else first_of
        assert (jumps[name] == steps[name][rows]).all(), name


def test_a_deadline_ends_a_jump_though_the_order_of_the_queue_changes_later() -> None:
    """The second one gives up at 200 us and leaves its place; the third will have waited too long at 600."""
    config = SchedulerConfig(
        num_kv_blocks=40, max_model_len=4096, max_num_seqs=2, scheduler="sjf", sjf_aging_ms=0.6
    )
    run = Run([Row(0, 1, 90, 90), Row(0, 1, 90, 90, patience_us=200), Row(0, 9, 5, 5)], config)
    record = run.record()
    assert record.scheduled_ns.tolist() == [0, 0, 200_000]
    assert differences(record, run.record(single_step=True)) == []
