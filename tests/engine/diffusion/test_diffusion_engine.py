"""The engine around a stub model: tokens, rounds, commits and what is left behind."""

from __future__ import annotations

from typing import Any

import pytest
from diffusion_alone import run_alone
from stub_blocks import (
    BLOCK,
    CHOICES,
    EOS,
    MASK,
    VOCAB,
    StubModel,
    assert_no_leak,
    expected,
    params,
    problems,
    run_all,
    stub_engine,
)

from blis_py.core.diffusion_request import DiffusionRequest
from blis_py.core.token_keys import token_keys
from blis_py.errors import InputError
from blis_py.latency.linear import Linear, LinearCoefficients, LinearCosts
from engine.diffusion.joint_threshold import JointThreshold
from engine.diffusion.low_confidence import LowConfidence
from engine.diffusion.settings import ALGORITHMS
from engine.diffusion.top_k_per_step import TopKPerStep
from engine.output_stream import OutputDelta
from engine.sampling_params import SamplingParams


@pytest.mark.parametrize("algorithm", CHOICES, ids=repr)
@pytest.mark.parametrize("fdfo", [True, False])
@pytest.mark.parametrize("page", [32, 64])
def test_tokens_and_rounds_are_those_of_one_block_at_a_time(algorithm: Any, fdfo: bool, page: int) -> None:
    engine = stub_engine(algorithm, fdfo=fdfo, block_size=page)
    drawn = problems(5, 14)
    sequences = [engine.add_request(prompt, params(most)) for prompt, most in drawn]
    run_all(engine)
    for sequence, (prompt, most) in zip(sequences, drawn, strict=True):
        output, rounds = expected(algorithm, prompt, most)
        assert sequence.output_ids == output
        assert sequence.request.rounds_per_block == rounds  # type: ignore[attr-defined]
        assert sequence.finish_reason == ("stop" if output[-1] == EOS else "length")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_all_switches_give_the_same_tokens(algorithm: str) -> None:
    def outputs(**modes: Any) -> list[list[int]]:
        engine = stub_engine(algorithm, **modes)
        sequences = [engine.add_request(prompt, params(most)) for prompt, most in problems(8, 10)]
        run_all(engine)
        return [sequence.output_ids for sequence in sequences]

    plain = outputs()
    for modes in ({"fdfo": False}, {"reuse_in_place": False}, {"reloop": False}, {"max_num_seqs": 1}):
        assert outputs(**modes) == plain
    assert outputs(enable_prefix_caching=False, num_kv_blocks=12) == plain


def test_preempted_blocks_go_on_with_their_ids_and_state() -> None:
    algorithm = JointThreshold(0.6)
    engine = stub_engine(algorithm, num_kv_blocks=8, max_model_len=224)
    drawn = [([3, 4, index], 150) for index in range(8)]
    sequences = [
        engine.add_request(p, SamplingParams(temperature=0, max_tokens=m, ignore_eos=True)) for p, m in drawn
    ]
    run_all(engine)
    assert engine.scheduler.counters.preemptions > 0
    alone = stub_engine(algorithm, max_num_seqs=1)
    for sequence, (prompt, most) in zip(sequences, drawn, strict=True):
        again = alone.add_request(prompt, SamplingParams(temperature=0, max_tokens=most, ignore_eos=True))
        run_all(alone)
        assert sequence.output_ids == again.output_ids


@pytest.mark.parametrize("fdfo", [False, True])
def test_clients_get_every_block_and_the_end(fdfo: bool) -> None:
    engine = stub_engine(fdfo=fdfo)
    drawn = problems(seed=3, count=6)
    lines: list[list[OutputDelta]] = [[] for _ in drawn]
    sequences = [
        engine.add_request(prompt, params(most), on_delta=own.append)
        for (prompt, most), own in zip(drawn, lines, strict=True)
    ]
    run_all(engine)
    engine.shutdown()
    for sequence, own in zip(sequences, lines, strict=True):
        assert [token for delta in own for token in delta.token_ids] == sequence.output_ids
        text = sequence.output_ids[:-1] if sequence.finish_reason == "stop" else sequence.output_ids
        assert "".join(delta.text for delta in own) == sequence.text() == " ".join(map(str, text))
        assert [delta.finish_reason for delta in own if delta.finish_reason] == [sequence.finish_reason]
    assert {sequence.finish_reason for sequence in sequences} == {"stop", "length"}


def test_logits_are_computed_for_masked_rows_only() -> None:
    model = StubModel()
    engine = stub_engine(TopKPerStep(8), model)
    engine.add_request([5] * 40, SamplingParams(temperature=0, max_tokens=24, ignore_eos=True))
    run_all(engine)
    assert model.lm_head_rows == 24 + 16 + 8
    assert model.forwards == 1 + 3 + 1


def test_a_block_without_finish_never_calls_the_allocator_between_its_rounds() -> None:
    engine = stub_engine(reloop=False)
    for prompt, most in problems(3, 20):
        engine.add_request(prompt, params(most))
    run_all(engine)
    assert engine.scheduler.counters.unfinished_allocator_calls == 0
    churning = stub_engine(reloop=False, reuse_in_place=False)
    for prompt, most in problems(3, 20):
        churning.add_request(prompt, params(most))
    run_all(churning)
    assert churning.scheduler.counters.unfinished_allocator_calls > 100
    assert churning.scheduler.counters.rounds == engine.scheduler.counters.rounds


def test_the_reloop_saves_calls_of_the_scheduler_and_no_round() -> None:
    counters = {}
    for reloop in (True, False):
        engine = stub_engine(reloop=reloop, max_num_seqs=2)
        for prompt, most in problems(4, 8):
            engine.add_request(prompt, params(most))
        run_all(engine)
        counters[reloop] = engine.scheduler.counters
    assert counters[True].rounds == counters[False].rounds
    assert counters[True].batches < counters[False].batches == counters[False].rounds


def test_an_arrival_between_rounds_ends_the_batch_when_a_slot_is_free() -> None:
    engine = stub_engine(TopKPerStep(1))
    engine.add_request([1, 2], params(20), request_id="first")
    late = iter(["late"])

    def poll() -> None:
        for name in late:
            engine.add_request([3], params(5), request_id=name)

    engine.poll = poll
    engine.step()
    assert engine.scheduler.counters.rounds == 1
    assert len(engine.scheduler.waiting) == 1
    engine.poll = None
    run_all(engine)


def test_a_follow_up_finds_the_committed_blocks_of_the_conversation() -> None:
    engine = stub_engine()
    first = engine.add_request([7] * 40, SamplingParams(temperature=0, max_tokens=60, ignore_eos=True))
    run_all(engine)
    follow_up = engine.add_request([7] * 40 + first.output_ids, params(8))
    run_all(engine)
    assert follow_up.request.cached_tokens == 96
    fresh = stub_engine()
    alone = fresh.add_request([7] * 40 + first.output_ids, params(8))
    run_all(fresh)
    assert alone.output_ids == follow_up.output_ids


def test_a_mask_token_in_the_prompt_is_a_token_like_any_other() -> None:
    for prompt in ([MASK] * 64, [MASK] * 33, [1, MASK, 2]):
        for algorithm in CHOICES:
            engine = stub_engine(algorithm)
            sequence = engine.add_request(prompt, params(20))
            run_all(engine)
            assert sequence.output_ids == expected(algorithm, prompt, 20)[0]
            assert MASK not in sequence.output_ids


def test_an_error_in_a_forward_ends_its_requests_and_leaves_the_engine_whole() -> None:
    engine = stub_engine(model=StubModel(fail_at=4), max_num_seqs=2)
    sequences = [engine.add_request([1] * 40, params(40)) for _ in range(4)]
    run_all(engine)
    assert [sequence.finish_reason for sequence in sequences].count("error") == 2
    assert sequences[0].error == "RuntimeError: out of memory, say"


class Stubborn(LowConfidence):
    """Never fills anything."""

    def step(self, blocks: Any, logits: Any, state: Any) -> Any:
        return blocks.ids[:, 0] < 0


@pytest.mark.parametrize("fdfo", [True, False])
def test_an_algorithm_without_progress_is_stopped(fdfo: bool) -> None:
    engine = stub_engine(Stubborn(), fdfo=fdfo)
    sequence = engine.add_request([1], params(5))
    run_all(engine)
    assert sequence.finish_reason == "error"
    assert "no progress" in str(sequence.error)


@pytest.mark.parametrize(
    ("prompt", "given", "key"),
    [
        ([VOCAB], {}, "prompt"),
        ([1], {"temperature": 1.0}, "temperature"),
        ([1], {"logprobs": 1}, "sampling"),
        ([1] * 500, {"max_tokens": 50}, "odd"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused(
    prompt: list[int], given: dict[str, Any], key: str
) -> None:
    engine = stub_engine()
    with pytest.raises(InputError) as refusal:
        engine.add_request(prompt, SamplingParams(**{"temperature": 0.0, **given}), request_id="odd")
    assert refusal.value.key == key
    assert_no_leak(engine)


@pytest.mark.parametrize("fdfo", [True, False])
def test_engine_and_simulator_form_the_same_batches_given_the_same_step_counts(fdfo: bool) -> None:
    engine = stub_engine(LowConfidence(0.9), fdfo=fdfo, num_kv_blocks=20, max_model_len=320)
    drawn = problems(11, 20)
    for prompt, most in drawn:
        engine.add_request(prompt, params(most), arrival_ns=0)
    sequences = list(engine._sequences.values())
    run_all(engine)
    requests = [
        DiffusionRequest(
            sequence.request.id,
            0,
            len(prompt),
            len(sequence.output_ids),
            block_keys=token_keys(prompt, BLOCK),
            row=row,
        )
        for row, (sequence, (prompt, _)) in enumerate(zip(sequences, drawn, strict=True))
    ]
    rounds = [sequence.request.rounds_per_block for sequence in sequences]  # type: ignore[attr-defined]
    simulated = run_alone(
        requests,
        rounds,
        scheduler=engine.scheduler.config,
        latency=Linear(LinearCoefficients(LinearCosts(step=1000))),
        diffusion=engine.scheduler.diffusion,
    )
    assert simulated.batches == engine.log.rows
    assert simulated.counters.rounds == engine.scheduler.counters.rounds
    assert simulated.counters.wasted_tokens == engine.scheduler.counters.wasted_tokens
