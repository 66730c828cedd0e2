"""What can go wrong where host and device work at the same time, and what keeps it from going wrong.

Every guard is taken away in turn, and then a device that falls behind as chance has it finds it out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch
from mixed_load import assert_as_alone, random_settings, serve_load
from stream_model import ModelStream, ModelTicket, on_model_stream
from stub_engine import Letters, StubModel, expected, run_all, stub_engine

from blis_py.core.step import Step
from engine.engine import LLMEngine
from engine.sampling_params import SamplingParams
from engine.staging import PinnedRing

GREEDY = SamplingParams(temperature=0, max_tokens=20)


def lagging(seed: int = 0, pace: float = 0.02, **settings: Any) -> LLMEngine:
    engine = stub_engine(tokenizer=Letters(), **{"async_scheduling": True, **settings})
    on_model_stream(engine, Random(seed), pace)
    return engine


def answers(engine: LLMEngine, seed: int, requests: int) -> bool:
    """Whether all requests get what they get alone."""
    try:
        load = serve_load(engine, Random(seed), requests)
        assert not any(s.error for s in load.sequences)
        assert_as_alone(load)
    except (AssertionError, KeyError, IndexError, RuntimeError, ValueError):
        return False
    return True


@functools.cache
def answers_guarded(requests: int, settings: tuple[tuple[str, Any], ...]) -> bool:
    """Whether runs with every guard in place answer; the same runs for all guards."""
    return all(answers(lagging(seed, **dict(settings)), seed, requests) for seed in range(3))


def goes_wrong(spoil: Callable[[LLMEngine], None], requests: int = 12, **settings: Any) -> bool:
    """Whether a run without the guard breaks, or changes an answer; with it, none does."""
    settings = {"num_kv_blocks": 24, "max_model_len": 256, **settings}
    assert answers_guarded(requests, tuple(settings.items())), "goes wrong with its guard"

    def spoilt(seed: int) -> LLMEngine:
        engine = lagging(seed, **settings)
        spoil(engine)
        return engine

    return not all(answers(spoilt(seed), seed, requests) for seed in range(3))


def test_a_page_table_is_changed_behind_the_forward_that_still_reads_it() -> None:
    """Write after read. Without: host and device share the table."""

    def spoil(engine: LLMEngine) -> None:
        tables = engine.executor.builder.tables
        tables.device.set_(torch.from_numpy(tables.host))  # type: ignore[no-untyped-call]

    # Who is admitted takes the place of who is preempted in the same step, and whose token is in flight.
    assert goes_wrong(spoil, 25, batch_former="prefill-first", num_kv_blocks=16, max_model_len=250, pace=0.0)


def test_copies_stand_in_the_stream_of_the_forwards() -> None:
    """The same. Without: copies on a stream of their own, which a forward waits for, but not they."""

    def spoil(engine: LLMEngine) -> None:
        compute = engine.executor.side
        assert isinstance(compute, ModelStream)
        copies, last = ModelStream(Random(1), 1.0), list[ModelTicket]()
        transfer = engine.executor.builder.transfer

        class Two:
            recover = compute.recover

            def submit(self, operation: Any, /) -> ModelTicket:
                if getattr(operation, "func", None) == transfer:
                    last[:] = [copies.submit(operation)]
                    return last[0]
                return compute.submit_behind(operation, list(last))

        engine.executor.side = Two()

    assert goes_wrong(spoil)


@pytest.mark.parametrize("which", ["staging", "pages"])
def test_a_pinned_buffer_is_not_written_while_the_copy_out_of_it_runs(which: str) -> None:
    """One buffer will do if its copy is awaited, and two if no more than two steps are in hand."""

    def ring(engine: LLMEngine) -> PinnedRing:
        builder = engine.executor.builder
        return builder._staging.ring if which == "staging" else builder.tables.ring

    def one_buffer(engine: LLMEngine) -> None:
        ring(engine).buffers[1:] = []
        ring(engine)._readers[1:] = []
        ring(engine)._at = 0

    def no_wait(engine: LLMEngine) -> None:
        ring(engine).read_by = lambda reader: None  # type: ignore[method-assign]

    def neither(engine: LLMEngine) -> None:
        one_buffer(engine)
        no_wait(engine)

    assert goes_wrong(neither)
    for spoil in (one_buffer, no_wait):
        engine = lagging(num_kv_blocks=24, max_model_len=256)
        spoil(engine)
        assert_as_alone(serve_load(engine, Random(0), 12))


def test_what_a_step_in_flight_reads_is_kept_until_it_is_over() -> None:
    """Without: sampling takes what the host has by then, which is the next step's."""

    def spoil(engine: LLMEngine) -> None:
        run = engine._run
        engine._run = lambda batch, plan, timer: run(batch, plan and engine.sampler._plan, timer)  # type: ignore[method-assign]

    assert goes_wrong(spoil)


def test_tensors_of_a_step_live_as_long_as_it_is_in_flight() -> None:
    engine = lagging(pace=0.0)
    engine.add_request([1, 2, 3], GREEDY)
    engine.step()
    (flight,) = engine._flights
    parcel = flight.batch.transfer
    held = [ticket.operation for ticket in engine.executor.side.queue]  # type: ignore[attr-defined]
    assert any(parcel in getattr(operation, "args", ()) for operation in held)
    assert flight.batch.layout.device.input_ids.data_ptr() == parcel.layout.device.input_ids.data_ptr()


def test_a_chunk_of_a_prompt_is_booked_before_the_next_one_is_planned() -> None:
    """Without: the scheduler sees a step when its outcome is there."""

    def spoil(engine: LLMEngine) -> None:
        advance, late = engine.scheduler.advance, list[Step]()

        def later(step: Step) -> None:
            late.append(step)
            if len(late) > 1:
                advance(late.pop(0))

        engine.scheduler.advance = later  # type: ignore[method-assign,assignment]

    assert goes_wrong(spoil, max_num_batched_tokens=20)


def test_no_request_gets_a_token_behind_its_end_or_ends_twice() -> None:
    """Without: the outcome is given to all who were in the step."""

    def spoil(engine: LLMEngine) -> None:
        resolve = engine.resolve

        def to_all(flight: Any, outcome: Any) -> Any:
            flight.complete = True
            return resolve(flight, outcome)

        engine.resolve = to_all  # type: ignore[method-assign]

    assert goes_wrong(spoil)


def test_a_token_is_taken_out_of_the_relay_buffer_only_when_it_is_there() -> None:
    """Without: sampled tokens do not get there; a check that poisons what it has taken finds it."""

    def spoil(engine: LLMEngine) -> None:
        engine.executor.keep_tokens = lambda batch, tokens: None  # type: ignore[method-assign]

    assert goes_wrong(spoil)
    engine = lagging(check_relay=True)
    spoil(engine)
    sequence = engine.add_request([1, 2, 3], GREEDY)
    run_all(engine)
    assert "taken out of the relay buffer before" in (sequence.error or "")


def test_placeholders_are_replaced_before_they_reach_the_model() -> None:
    class Watching(StubModel):
        def __call__(self, input_ids: Any, *args: Any) -> Any:
            assert (input_ids >= 0).all(), "a placeholder"
            return super().__call__(input_ids, *args)

    engine = stub_engine(Watching(), async_scheduling=True)
    builder = engine.executor.builder
    mixed, seen = builder.mixed, list[int]()

    def looking(*args: Any) -> Any:
        layout = mixed(*args)
        seen.extend(layout.host.tokens[0].tolist())
        return layout

    builder.mixed = looking  # type: ignore[method-assign]
    sequences = []
    for i in range(4):
        sequences.append(engine.add_request([i + 1, 2], GREEDY))
        engine.step()
    run_all(engine)
    assert min(seen) < 0, "the host has none of the tokens of decodes"
    assert [s.output_ids for s in sequences] == [expected([i + 1, 2], 20) for i in range(4)]


def test_a_preempted_request_comes_back_when_its_token_in_flight_has_arrived() -> None:
    engine = lagging(pace=0.0, num_kv_blocks=20, max_model_len=250, max_num_seqs=16)
    load = serve_load(engine, Random(6), 40)
    assert engine.scheduler.counters.preemptions > 3
    assert_as_alone(load)


# -- hidden synchronisation ------------------------------------------------------------------------

WAITING = ("item", "tolist", "numpy", "cpu", "__bool__", "__int__", "__float__", "__index__", "nonzero")


class NoWaiting:
    """While it is on, asking a tensor for a value is an error: on a GPU the host would wait for it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.on = False
        for name in WAITING:
            patch.setattr(torch.Tensor, name, self._refusing(name, getattr(torch.Tensor, name)))

    def _refusing(self, name: str, inner: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self.on:
                raise AssertionError(f"{name} waits for the device")
            return inner(*args, **kwargs)

        return call

    def during(self, owner: Any, name: str, on: bool) -> None:
        inner = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            before, self.on = self.on, on
            try:
                return inner(*args, **kwargs)
            finally:
                self.on = before

        setattr(owner, name, call)


def never_waiting(patch: pytest.MonkeyPatch) -> LLMEngine:
    """An engine whose launching side may not ask for values; a model and a kernel of the CPU may."""
    no_waiting = NoWaiting(patch)
    engine = stub_engine(tokenizer=Letters(), num_kv_blocks=24, max_model_len=256, async_scheduling=True)
    on_model_stream(engine, Random(0), 0.3)
    executor = engine.executor
    for owner, name in ((executor.builder, "transfer"), (engine, "_run"), (engine.sampler, "launch")):
        no_waiting.during(owner, name, True)
    for owner, name in ((executor.forward, "hidden"), (executor.forward, "logits")):
        no_waiting.during(owner, name, False)
    from engine import sampler

    kernel = sampler.sample

    def on_cpu(*args: Any) -> Any:
        before, no_waiting.on = no_waiting.on, False
        try:
            return kernel(*args)
        finally:
            no_waiting.on = before

    patch.setattr(sampler, "sample", on_cpu)
    return engine


def test_launching_a_step_never_waits_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = never_waiting(monkeypatch)
    load = serve_load(engine, Random(1), 25)
    assert not [s.error for s in load.sequences if s.error]
    assert any(s.params.penalised for s in load.sequences)
    assert any(s.params.min_tokens for s in load.sequences)
    assert any(s.logprobs for s in load.sequences)


def test_a_value_read_on_the_way_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = never_waiting(monkeypatch)
    keep = engine.executor.keep_tokens
    engine.executor.keep_tokens = lambda batch, tokens: keep(batch, torch.tensor(tokens.tolist()))  # type: ignore[method-assign]
    sequence = engine.add_request([1, 2], GREEDY)
    run_all(engine)
    assert sequence.error == "AssertionError: tolist waits for the device"


def test_a_turn_of_the_loop_waits_once_for_the_step_before() -> None:
    settings = random_settings(Random(2)) | {"num_kv_blocks": 400, "block_size": 16}
    engine = lagging(pace=0.0, **settings)
    waits, wait = list[int](), ModelTicket.wait
    side = engine.executor.side
    assert isinstance(side, ModelStream)

    def counting(ticket: ModelTicket) -> Any:
        if not ticket.done:
            waits.append(engine.scheduler.resolved)
        return wait(ticket)

    ModelTicket.wait = counting  # type: ignore[method-assign]
    try:
        serve_load(engine, Random(2), 20)
    finally:
        ModelTicket.wait = wait  # type: ignore[method-assign]
    assert sorted(waits) == list(range(engine.scheduler.tick))
