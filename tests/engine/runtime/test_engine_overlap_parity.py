"""The simulator forms the overlapped engine's batches, given its arrivals and step times."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
from busy_run import CHUNKS, CONFIGS, LFU, RADIX_SCHEDULERS, ROOMY, SCHEDULERS, assert_same_batches, busy_run
from mixed_load import random_settings, serve_load
from stub_engine import Letters, StubModel, run_all, stub_engine

from blis_py.calibrate.parity import replay_steps
from blis_py.calibrate.recorded import step_durations_ns
from blis_py.traces.steplog import read_step_log, write_step_log
from engine.clock import WallClock
from engine.sampling_params import SamplingParams


@SCHEDULERS
@CONFIGS
def test_the_simulator_forms_the_same_batches(scheduler: str, config: dict[str, Any]) -> None:
    engine = busy_run(0, 40, scheduler=scheduler, async_scheduling=True, **config)
    assert_same_batches(engine)
    assert engine.scheduler.counters.discarded_tokens > 3


@RADIX_SCHEDULERS
@pytest.mark.parametrize("config", [ROOMY, CHUNKS, LFU], ids=["roomy", "chunks", "prefill-first"])
def test_the_simulator_forms_the_same_batches_over_a_radix_tree(
    scheduler: str, config: dict[str, Any]
) -> None:
    engine = busy_run(3, 40, scheduler=scheduler, prefix_cache="radix", async_scheduling=True, **config)
    assert_same_batches(engine)
    assert engine.scheduler.counters.prefix_hit_tokens > 400


@pytest.mark.parametrize("seed", range(6))
def test_and_where_requests_end_for_every_reason_under_random_settings(seed: int) -> None:
    rng = Random(seed)
    engine = stub_engine(tokenizer=Letters(), async_scheduling=True, **random_settings(rng))
    serve_load(engine, rng)
    assert_same_batches(engine)


def test_the_engine_on_the_wall_clock_is_matched_too() -> None:
    engine = stub_engine(clock=WallClock(), num_kv_blocks=24, max_model_len=256, async_scheduling=True)
    rng = Random(0)
    for i in range(30):
        prompt = [rng.randrange(97) for _ in range(rng.randrange(1, 100))]
        engine.add_request(prompt, SamplingParams(temperature=0, max_tokens=30))
        engine.step()
        if i % 10 == 9:
            run_all(engine)  # it falls idle
    assert_same_batches(engine)


def test_the_comparison_ends_at_a_step_that_failed_in_flight() -> None:
    engine = busy_run(0, 10, StubModel(fail_at=25), num_kv_blocks=64, async_scheduling=True)
    parity = replay_steps(engine.recorder.log())
    assert (parity.steps, parity.identical, parity.stopped_at) == (25, 25, 25)


def test_played_back_step_by_step_an_overlapped_run_is_another() -> None:
    log = busy_run(0, 40, num_kv_blocks=24, async_scheduling=True).recorder.log()
    log.meta["scheduler"] = log.meta["scheduler"] | {"async_scheduling": False}
    assert replay_steps(log).share < 0.5


def test_its_log_states_when_forwards_ran_and_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    engine = busy_run(2, 12, num_kv_blocks=24, clock=WallClock(), async_scheduling=True)
    log = engine.recorder.log()
    write_step_log(log, tmp_path / "steps.csv")
    assert read_step_log(tmp_path / "steps.csv") == log
    assert (step_durations_ns(log) > 0).all()
    begun, ended = log.column("forward_start_ns"), log.column("forward_end_ns")
    assert (begun[1:] >= ended[:-1]).all(), "one after another"
    assert (log.column("gpu_ns") == ended - begun).all()
    seen = log.column("seen_ns")
    assert (seen >= log.column("end_ns")).all()
    assert (log.column("start_ns")[2:] <= seen[1:-1]).all(), "planned before the one before it was over"
