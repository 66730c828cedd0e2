"""GPU time and host time of a profile, each alone, on a machine by simulated events: what they predict."""

from __future__ import annotations

import functools
from itertools import product
from random import Random
from typing import Any

import numpy as np
import pytest
from simulated_gpu import Costs, Machine, of_length, simulated_engine

from blis_py.calibrate.fit import fit
from blis_py.calibrate.fit.accuracy import features_of
from blis_py.calibrate.rerun import measured_times, rerun
from blis_py.latency.fitted import Fitted
from blis_py.traces.samples import StepSamples, joined, samples_of
from blis_py.traces.steplog import StepLog
from engine.profile.measure import StepBench
from engine.profile.plan import plan
from engine.profile.prompts import ProfilePrompts
from engine.profile.shapes import Grid, Shape

LIMITS = {"max_num_seqs": 8, "max_num_batched_tokens": 256, "max_model_len": 256, "num_kv_blocks": 200}
GRID = Grid(contexts=3, skewed_batches=(4,), prefill_tokens=5, prefill_seqs=(1, 2), pasts=1, mixed=12)
HOST_BOUND = Costs(gpu_step=300, gpu_token=1, launching=2_400)
GPU_BOUND = Costs(gpu_step=2_000, gpu_token=20, launching=150)
BETWEEN = Costs(gpu_step=500, gpu_token=12, launching=1_200)
"""Decodes wait for the host, long prompts for the GPU."""
LAUNCHED_PROMPTS = Costs(gpu_step=1_000, gpu_token=4, launching=100, launching_prompts=1_700)
"""Decodes are captured and wait for the GPU, prompts are launched kernel by kernel."""
EACH = pytest.mark.parametrize(
    "costs", [HOST_BOUND, GPU_BOUND, BETWEEN], ids=["host-bound", "GPU-bound", "between"]
)


def bench(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> StepBench:
    machine.install(monkeypatch)
    engine = simulated_engine(machine, **LIMITS)
    return StepBench(engine, ProfilePrompts(engine.vocab_size, None, 0))


@functools.cache
def profiled(costs: Costs) -> StepSamples:
    """Every shape of the plan, visited as in a profile: once to warm up, once to count."""
    parts = []
    with pytest.MonkeyPatch.context() as patch:
        measuring = bench(Machine(costs), patch)
        for number, shape in enumerate(plan(measuring.limits, GRID)):
            measuring.visit(shape)
            samples = measuring.visit(shape)
            samples.table["shape"][:] = number
            samples.table["repetition"][:] = np.arange(len(samples))
            parts.append(samples)
    return joined(parts)


def served(costs: Costs, monkeypatch: pytest.MonkeyPatch, seed: int = 0, **settings: Any) -> StepLog:
    """A run with requests that come at random, some of them together."""
    machine, rng = Machine(costs), Random(seed)
    machine.install(monkeypatch)
    engine = simulated_engine(machine, **LIMITS, **settings)
    coming = sorted(rng.uniform(0, 60_000) for _ in range(40))
    prompts = [[rng.randrange(1, 97) for _ in range(rng.randrange(4, 120))] for _ in coming]
    lengths = [rng.randrange(2, 24) for _ in coming]
    while coming or engine.has_unfinished:
        now_ns = engine.clock.now_ns()
        while coming and coming[0] * 1e3 <= now_ns:
            arrival_ns = int(coming.pop(0) * 1e3)
            engine.add_request(prompts.pop(), of_length(lengths.pop()), arrival_ns=arrival_ns)
        if engine.has_unfinished:
            engine.step(now_ns)
        elif coming:
            engine.clock.wait_until(int(coming[0] * 1e3))
    return engine.recorder.log()


@EACH
def test_gpu_time_of_a_visit_is_the_gpus_alone(costs: Costs, monkeypatch: pytest.MonkeyPatch) -> None:
    measuring = bench(Machine(costs), monkeypatch)
    shape = Shape("mixed", (100, 50), ((33, 32),))
    measuring.visit(shape)
    samples = measuring.visit(shape)
    expected_us = costs.gpu_step + costs.gpu_token * 35 + costs.gpu_kv * 152
    assert samples["gpu_ns"][0] / 1e3 == pytest.approx(expected_us, abs=1)
    assert samples["launching_ns"][0] / 1e3 == pytest.approx(costs.launching, abs=20)
    assert not samples["launch_bound"].any()


@EACH
def test_a_visit_takes_as_long_as_if_the_stream_had_not_slept(
    costs: Costs, monkeypatch: pytest.MonkeyPatch
) -> None:
    measuring = bench(Machine(costs), monkeypatch)
    shape = Shape("decode", (100, 50, 40), steps=3)
    awake, asleep = measuring.visit(shape), measuring.visit(shape)
    np.testing.assert_allclose(asleep["total_ns"], awake["total_ns"], atol=20_000)
    assert asleep["host_ns"].min() >= 0


def test_a_stream_that_woke_too_early_sleeps_longer_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(HOST_BOUND)
    measuring = bench(machine, monkeypatch)
    shape = Shape("decode", (20,))
    measuring.visit(shape)
    machine.costs = Costs(gpu_step=300, gpu_token=1, launching=9_000)
    assert measuring.visit(shape)["launch_bound"].tolist() == [1]
    assert measuring.visit(shape)["launch_bound"].tolist() == [0]


def prediction_errors(latency: Fitted, log: StepLog) -> list[float]:
    """Mean TTFT, TPOT and E2E of the simulator beside those of the engine."""
    there, here = measured_times(log), rerun(log, latency)
    tokens = np.maximum(there.output_tokens - 1, 1)
    errors = []
    for value in (lambda t: t.ttft_s, lambda t: (t.e2e_s - t.ttft_s) / tokens, lambda t: t.e2e_s):
        errors.append(float(value(here).mean() / value(there).mean()) - 1)
    return errors


@pytest.mark.parametrize(
    ("costs", "within"),
    [(HOST_BOUND, 0.01), (GPU_BOUND, 0.01), (BETWEEN, 0.01), (LAUNCHED_PROMPTS, 0.07)],
    ids=["host-bound", "GPU-bound", "host-bound decodes", "host-bound prompts"],
)
def test_one_profile_predicts_both_loops(
    costs: Costs, within: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    latency = Fitted(fit(profiled(costs), bootstrap=0))
    for overlap, seed in product((False, True), (0, 1)):
        log = served(costs, monkeypatch, seed, async_scheduling=overlap)
        assert np.abs(prediction_errors(latency, log)).max() < within


def test_alternating_steps_of_the_overlapped_loop_are_priced_alike_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    latency = Fitted(fit(profiled(BETWEEN), bootstrap=0))
    log = served(BETWEEN, monkeypatch, async_scheduling=True)
    at_once, one_by_one = (rerun(log, latency, single_step=single) for single in (False, True))
    np.testing.assert_array_equal(at_once.ttft_s, one_by_one.ttft_s)
    np.testing.assert_array_equal(at_once.e2e_s, one_by_one.e2e_s)


@pytest.mark.parametrize("costs", [HOST_BOUND, GPU_BOUND], ids=["host-bound", "GPU-bound"])
def test_steps_of_an_overlapped_run_are_what_they_would_take_one_after_another(
    costs: Costs, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = samples_of(served(costs, monkeypatch, async_scheduling=True), "run")
    here = samples_of(served(costs, monkeypatch), "run")
    latency = Fitted(fit(profiled(costs), bootstrap=0))
    for samples in (there, here):
        predicted = sum(latency.step_ns(features) for features in features_of(samples))
        assert samples["total_ns"].sum() == pytest.approx(predicted, rel=0.03)


def test_an_overlapped_run_of_a_gpu_bound_engine_alone_predicts_both_loops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs = [served(GPU_BOUND, monkeypatch, seed, async_scheduling=True) for seed in (1, 2)]
    latency = Fitted(fit(joined([samples_of(log, f"run {i}") for i, log in enumerate(runs)]), bootstrap=0))
    for overlap in (False, True):
        log = served(GPU_BOUND, monkeypatch, async_scheduling=overlap)
        assert np.abs(prediction_errors(latency, log)).max() < 0.05
