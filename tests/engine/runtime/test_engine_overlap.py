"""The overlapped loop gives every request what the synchronous one gives it, and leaves nothing behind."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from mixed_load import (
    Unsteady,
    assert_as_alone,
    ends_by_outcome,
    random_settings,
    serve_load,
)
from stream_model import on_model_stream
from stub_engine import Letters, StubModel, expected, run_all, stub_engine, with_graphs

from blis_py.errors import InputError
from engine.config import EngineConfig
from engine.engine import LLMEngine
from engine.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=12)


def overlapped(model: StubModel | None = None, **settings: Any) -> LLMEngine:
    return stub_engine(
        model, tokenizer=Letters(), **{"async_scheduling": True, "check_relay": True, **settings}
    )


@pytest.mark.parametrize("seed", range(6))
def test_outputs_are_those_of_every_request_served_alone(seed: int) -> None:
    rng = Random(seed)
    engine = overlapped(Unsteady(rng, 0.0), **random_settings(rng))
    if seed % 2:
        on_model_stream(engine, Random(seed))
    if seed % 3 == 0:
        with_graphs(engine, (1, 3))
    assert_as_alone(serve_load(engine, rng))


def test_the_settings_and_requests_of_these_runs_have_what_makes_it_hard() -> None:
    reasons, counted = set(), {"preemptions": 0, "prefix_hit_tokens": 0, "discarded_tokens": 0}
    for seed in (0, 6, 9):
        rng = Random(seed)
        engine = overlapped(**random_settings(rng))
        load = serve_load(engine, rng)
        reasons |= {(s.finish_reason, type(s.stop_reason)) for s in load.sequences}
        for name in counted:
            counted[name] += getattr(engine.scheduler.counters, name)
    assert {reason for reason, _ in reasons} == {"stop", "length", "abort"}
    assert {("stop", str), ("stop", int), ("stop", type(None))} < reasons
    assert min(counted.values()) > 10


@pytest.mark.parametrize("seed", range(4))
def test_failing_forwards_end_their_requests_and_leave_the_others_intact(seed: int) -> None:
    rng = Random(100 + seed)
    model = Unsteady(rng, 0.04)
    engine = overlapped(model, **random_settings(rng))
    if seed % 2:
        on_model_stream(engine, Random(seed))
    load = serve_load(engine, rng)
    assert_as_alone(load)
    failed = [s for s in load.sequences if s.finish_reason == "error"]
    assert bool(failed) == bool(model.failures)
    assert all(s.error == "RuntimeError: out of memory, say" for s in failed)
    model.share = 0.0
    assert_as_alone(serve_load(engine, rng, 10))


@pytest.mark.parametrize("fail_at", range(9))
@pytest.mark.parametrize("cache", ["hash", "radix"])
def test_what_a_broken_step_should_have_computed_is_never_a_prefix_hit(fail_at: int, cache: str) -> None:
    engine = overlapped(StubModel(fail_at=fail_at), max_num_batched_tokens=50, prefix_cache=cache)
    prompt = [3, 1, 4] * 12
    for _ in range(2):
        several = [engine.add_request([*prompt, i], GREEDY) for i in range(6)]
        run_all(engine)
    assert [s.output_ids for s in several] == [expected([*prompt, i], 12) for i in range(6)]


def test_a_step_that_cannot_be_launched_leaves_the_one_in_flight_alone() -> None:
    engine = overlapped()
    prepare, calls = engine.executor.prepare, []

    def failing(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 4:
            raise RuntimeError("no memory")
        return prepare(*args)

    engine.executor.prepare = failing  # type: ignore[method-assign]
    sequence = engine.add_request([1, 2, 3], GREEDY)
    last = engine.add_request([4, 5], SamplingParams(temperature=0, max_tokens=3))
    run_all(engine)
    assert (sequence.finish_reason, sequence.error) == ("error", "RuntimeError: no memory")
    assert sequence.output_ids == expected([1, 2, 3], 12)[:2], "its third is in flight when it ends"
    assert (last.finish_reason, last.output_ids) == ("length", expected([4, 5], 3))
    assert engine.recorder.log().steps["failed"] == [0, 0, 0, 1]
    assert engine.add_request([7], GREEDY).finish_reason is None
    run_all(engine)


def test_an_interrupt_leaves_an_engine_that_can_be_used() -> None:
    engine = overlapped()
    await_result, calls = engine.await_result, []

    def interrupted(flight: Any) -> Any:
        calls.append(flight)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return await_result(flight)

    engine.await_result = interrupted  # type: ignore[method-assign]
    engine.add_request([1, 2, 3], GREEDY)
    with pytest.raises(KeyboardInterrupt):
        run_all(engine)
    sequence = engine.add_request([4, 5], GREEDY)
    run_all(engine)
    assert sequence.output_ids == expected([4, 5], 12)


# -- one step late ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_a_token_is_discarded_for_each_unforeseeable_end(seed: int) -> None:
    rng = Random(seed)
    engine = overlapped(num_kv_blocks=400, block_size=16, max_num_batched_tokens=400)
    load = serve_load(engine, rng, aborts=False)
    assert engine.scheduler.counters.preemptions == 0
    late = [s for s in load.sequences if ends_by_outcome(s)]
    assert engine.scheduler.counters.discarded_tokens == len(late) > 5
    steps = engine.recorder.log().steps
    emitted = sum(len(s.output_ids) for s in load.sequences)
    assert sum(steps["emitted_rows"]) == emitted + len(late)


def test_step_n_plus_1_is_launched_before_the_outcome_of_step_n_is_read() -> None:
    engine = overlapped()
    stream = on_model_stream(engine, Random(0), pace=0.0)
    engine.add_request([1, 2, 3], GREEDY)
    for turn in range(8):
        launched, landed = engine.scheduler.tick, engine.scheduler.resolved
        assert (launched, landed) == ((turn + 1, turn) if turn else (0, 0))
        engine.step()
        forwards = [ticket for ticket in stream.queue if ticket.operation.func == engine._run]  # type: ignore[attr-defined]
        assert len(forwards) == 1, "that of the step behind the one that was awaited"


def test_an_arrival_during_a_step_is_in_the_step_after_the_next() -> None:
    engine = overlapped()
    engine.add_request([1, 2, 3], GREEDY)
    engine.step()  # launches steps 0 and 1, awaits 0
    engine.add_request([4, 5], GREEDY)
    run_all(engine)
    assert [i for i, ids in enumerate(engine.recorder.log().steps["admitted_ids"]) if 1 in ids] == [2]


def test_there_is_no_empty_step_while_the_last_one_is_awaited() -> None:
    engine = overlapped(max_num_seqs=1)
    for i in range(3):
        engine.add_request([i + 1], SamplingParams(temperature=0, max_tokens=2))
    run_all(engine)
    assert engine.scheduler.tick == 6
    assert min(engine.recorder.log().steps["emitted_rows"]) == 1


def test_a_step_in_flight_is_awaited_though_its_outcome_is_not_needed() -> None:
    engine = overlapped()
    params = SamplingParams(temperature=0, stop_token_ids=expected([1, 2, 3], 1))
    sequence = engine.add_request([1, 2, 3], params)
    assert engine.step().finished == [sequence]
    assert engine.has_unfinished, "the step behind it"
    with pytest.raises(RuntimeError, match="a step is in flight"):
        engine.reset()
    run_all(engine)
    engine.reset()
    assert engine.scheduler.tick == 0


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize("clock", ["cpu", "steady"])
def test_a_clock_of_one_thread_is_refused(clock: str) -> None:
    with pytest.raises(InputError, match="has two"):
        EngineConfig(model="stub", async_scheduling=True, clock=clock)


def test_the_relay_is_only_checked_where_there_is_one() -> None:
    with pytest.raises(InputError, match="check_relay: needs async_scheduling"):
        EngineConfig(model="stub", check_relay=True)


def test_block_diffusion_has_no_overlapped_loop() -> None:
    from engine.diffusion.build import build_diffusion_engine
    from engine.diffusion.low_confidence import LowConfidence
    from engine.diffusion.settings import DllmSettings

    config = EngineConfig(model="stub", async_scheduling=True)
    with pytest.raises(InputError, match="async_scheduling: block diffusion has no overlapped loop"):
        build_diffusion_engine(config, DllmSettings(LowConfidence()))
