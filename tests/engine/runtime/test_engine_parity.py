"""The simulator forms the engine's batches, step by step, given its arrivals and step times."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from busy_run import (
    CHUNKS,
    CONFIGS,
    FAIR,
    LFU,
    RADIX_SCHEDULERS,
    ROOMY,
    SCHEDULERS,
    assert_same_batches,
    busy_run,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from stub_engine import VOCAB, StubModel, run_all, stub_engine

from blis_py.calibrate.parity import replay_steps
from blis_py.errors import InputError
from blis_py.traces.steplog import StepLog, read_step_log, write_step_log
from engine.sampling_params import SamplingParams


@SCHEDULERS
@CONFIGS
def test_the_simulator_forms_the_same_batches(scheduler: str, config: dict[str, Any]) -> None:
    assert_same_batches(busy_run(1, scheduler=scheduler, **config))


@RADIX_SCHEDULERS
@pytest.mark.parametrize(
    "config", [ROOMY, CHUNKS, FAIR, LFU], ids=["roomy", "chunks", "fair", "prefill-first"]
)
def test_the_simulator_forms_the_same_batches_over_a_radix_tree(
    scheduler: str, config: dict[str, Any]
) -> None:
    if scheduler == "fcfs":
        config = {key: value for key, value in config.items() if key != "fairness_tokens"}
    engine = busy_run(3, scheduler=scheduler, prefix_cache="radix", **config)
    assert_same_batches(engine)
    assert engine.scheduler.counters.prefix_hit_tokens > 500


def test_lpm_over_hashed_blocks_forms_the_same_batches_too() -> None:
    engine = busy_run(4, scheduler="lpm", num_kv_blocks=24, max_num_batched_tokens=40)
    assert replay_steps(engine.recorder.log()).share == 1.0


def test_the_runs_compared_contain_what_makes_it_hard() -> None:
    engine = busy_run(1, num_kv_blocks=24, max_num_batched_tokens=40)
    counters, steps = engine.scheduler.counters, engine.recorder.log().steps
    assert counters.preemptions > 5
    assert counters.prefix_hit_tokens > 500
    assert sum(d > 0 and p > 0 for d, p in zip(steps["decode_seqs"], steps["prefill_seqs"], strict=True)) > 20
    reasons = set(engine.recorder.log().requests["finish_reason"])
    assert reasons == {"stop", "length", "abort", "timeout"}


@settings(max_examples=15)
@given(
    seed=st.integers(0, 10**6),
    blocks=st.integers(16, 60),
    budget=st.integers(4, 100),
    seqs=st.integers(1, 16),
    scheduler=st.sampled_from(["fcfs", "priority-fcfs", "sjf", "reverse-priority"]),
    aging=st.sampled_from([None, 0.05]),
)
def test_random_settings_too(
    seed: int, blocks: int, budget: int, seqs: int, scheduler: str, aging: float | None
) -> None:
    engine = busy_run(
        seed,
        20,
        num_kv_blocks=blocks,
        max_num_batched_tokens=budget,
        max_num_seqs=seqs,
        scheduler=scheduler,
        sjf_aging_ms=aging if scheduler == "sjf" else None,
    )
    parity = replay_steps(engine.recorder.log())
    assert (parity.first, parity.share) == (None, 1.0)


def test_another_scheduler_is_found_out_at_the_first_step_it_plans_otherwise() -> None:
    log = busy_run(3, num_kv_blocks=24, scheduler="fcfs").recorder.log()
    log.meta["scheduler"] = log.meta["scheduler"] | {"scheduler": "sjf"}
    parity = replay_steps(log)
    assert parity.first is not None
    assert parity.share < 1
    assert parity.first.engine != parity.first.simulator


def test_other_step_times_change_the_batches() -> None:
    log = busy_run(3, num_kv_blocks=24).recorder.log()
    log.steps["start_ns"] = [start // 3 for start in log.steps["start_ns"]]
    assert replay_steps(log).share < 0.5


def test_a_run_that_goes_on_is_compared_as_far_as_it_got() -> None:
    engine = stub_engine()
    engine.add_request([1, 2, 3], SamplingParams(temperature=0, max_tokens=30))
    for _ in range(10):
        engine.step()
    parity = replay_steps(engine.recorder.log())
    assert (parity.steps, parity.identical, parity.first) == (10, 10, None)


def test_the_comparison_ends_at_a_broken_step() -> None:
    engine = busy_run(0, 10, StubModel(fail_at=25), num_kv_blocks=64)
    parity = replay_steps(engine.recorder.log())
    assert (parity.steps, parity.identical, parity.stopped_at) == (25, 25, 25)


# -- the log as a file ---------------------------------------------------------------------------


def log_of_a_run() -> StepLog:
    return busy_run(2, 12, num_kv_blocks=24).recorder.log()


@pytest.mark.parametrize("name", ["steps.csv", "steps.csv.gz", "steps.parquet"])
def test_a_log_is_read_back_as_it_was_written(tmp_path: Path, name: str) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    log = log_of_a_run()
    write_step_log(log, tmp_path / name)
    again = read_step_log(tmp_path / name)
    assert again == log
    assert replay_steps(again).share == 1.0


def test_a_file_that_is_no_step_log_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="not a step log"):
        read_step_log(path)
    with pytest.raises(InputError, match="unknown kind of file"):
        read_step_log(tmp_path / "steps.txt")


def test_a_log_of_another_schema_is_refused(tmp_path: Path) -> None:
    log = log_of_a_run()
    log.meta["schema"] = 999
    write_step_log(log, tmp_path / "steps.csv")
    with pytest.raises(InputError, match="another schema"):
        read_step_log(tmp_path / "steps.csv")


def test_a_damaged_cell_is_named(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    write_step_log(log_of_a_run(), path)
    lines = path.read_text().splitlines()
    lines[4] = lines[4].replace(lines[4].split(",")[1], "soon", 1)
    path.write_text("\n".join(lines))
    with pytest.raises(InputError, match=r"steps.csv:5: start_ns: not what belongs here \(found 'soon'\)"):
        read_step_log(path)


def test_segments_and_features_of_the_log_add_up() -> None:
    log = log_of_a_run()
    for index in range(len(log)):
        row = {name: column[index] for name, column in log.steps.items()}
        segments = sum(row[f"{part}_ns"] for part in ("schedule", "prepare", "launch", "sample", "finish"))
        assert segments == row["end_ns"] - row["start_ns"]
        assert row["prefill_tokens"] == sum(row["prefill_chunks"])
        assert row["decode_seqs"] == len(row["decode_ids"])
        assert row["gpu_ns"] == row["launch_ns"] + row["sample_ns"]
    assert sum(log.steps["emitted_rows"]) == sum(log.requests["output_tokens"])
    assert sorted(i for ids in log.steps["finished_ids"] for i in ids) == sorted(
        number
        for number, reason in zip(log.requests["number"], log.requests["finish_reason"], strict=True)
        if reason in ("stop", "length")
    )


def test_the_engine_on_the_wall_clock_is_matched_too() -> None:
    from engine.clock import WallClock

    engine = stub_engine(clock=WallClock(), num_kv_blocks=24, max_model_len=256)
    rng = random.Random(0)
    for _ in range(30):
        prompt = [rng.randrange(VOCAB) for _ in range(rng.randrange(1, 100))]
        engine.add_request(prompt, SamplingParams(temperature=0, max_tokens=30))
        engine.step()
    run_all(engine)
    assert replay_steps(engine.recorder.log()).share == 1.0


def test_engine_and_simulator_look_as_many_requests_up_in_the_cache() -> None:
    engine = busy_run(3, scheduler="lpm", prefix_cache="radix", max_num_seqs=4, **ROOMY)
    scanned = engine.recorder.log().steps["scanned_requests"]
    assert sum(scanned) > 100
    assert_same_batches(engine)
    assert "scanned_requests" not in busy_run(3, **ROOMY).recorder.log().steps
