"""Sampling parameters, and tokens that depend on nothing but their own request."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from stub_engine import VOCAB, Letters, StubModel, expected, run_all, stub_engine

from blis_py.errors import InputError
from engine.sampling_params import SamplingParams


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.inf),
        ("top_k", -2),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", 1.1),
        ("repetition_penalty", 0.0),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("max_tokens", 0),
        ("min_tokens", -1),
        ("min_tokens", 17),
        ("logprobs", -1),
        ("stop", ["a", ""]),
        ("max_tokens", "5"),
        ("max_tokens", 2.5),
        ("max_tokens", True),
        ("min_tokens", None),
        ("temperature", "hot"),
        ("temperature", None),
        ("top_k", 1.5),
        ("seed", 0.5),
        ("stop", [1]),
        ("stop", 5),
        ("stop_token_ids", 5),
        ("stop_token_ids", [None]),
        ("stop_token_ids", [True]),
        ("ignore_eos", "no"),
    ],
)
def test_a_value_of_another_type_or_out_of_range_is_refused_by_name(key: str, value: Any) -> None:
    with pytest.raises(InputError, match=key):
        SamplingParams(**{key: value})


def sampled(prompts: list[list[int]], params: SamplingParams, **settings: Any) -> list[list[int]]:
    engine = stub_engine(**settings)
    sequences = [engine.add_request(prompt, params) for prompt in prompts]
    run_all(engine)
    return [sequence.output_ids for sequence in sequences]


RANDOM = SamplingParams(temperature=1.0, max_tokens=20, seed=5)


def test_a_seeded_sample_does_not_depend_on_the_batch() -> None:
    prompts = [[i + 1] * (10 + 5 * i) for i in range(12)]
    together = sampled(prompts, RANDOM)
    alone = [sampled([prompt], RANDOM)[0] for prompt in prompts]
    crowded = sampled(prompts, RANDOM, num_kv_blocks=14, max_model_len=200, max_num_batched_tokens=30)
    assert together == alone == crowded
    assert together[0] != expected(prompts[0], 20), "greedy, not random"


def test_requests_without_a_seed_differ_and_repeat_with_the_engines_seed() -> None:
    params = SamplingParams(temperature=1.0, max_tokens=20)
    first, second = sampled([[1, 2, 3]] * 2, params)
    assert first != second
    assert sampled([[1, 2, 3]] * 2, params) == [first, second]
    assert sampled([[1, 2, 3]] * 2, params, seed=1) != [first, second]


def test_greedy_and_random_requests_share_a_batch() -> None:
    engine = stub_engine()
    greedy = engine.add_request([4, 5], SamplingParams(temperature=0, max_tokens=20))
    seeded = engine.add_request([1] * 10, RANDOM)
    run_all(engine)
    assert greedy.output_ids == expected([4, 5], 20)
    assert seeded.output_ids == sampled([[1] * 10], RANDOM)[0]


def test_parameters_beyond_the_numbers_of_a_kernel_break_no_step() -> None:
    (output,) = sampled([[1, 2, 3]], SamplingParams(temperature=1e300, top_k=1 << 40, max_tokens=5))
    assert len(output) == 5


def test_top_k_of_one_is_greedy() -> None:
    params = SamplingParams(temperature=2.0, top_k=1, max_tokens=20)
    assert sampled([[3, 4, 5]], params) == [expected([3, 4, 5], 20)]


@pytest.mark.parametrize("params", [{"top_k": 3}, {"top_p": 0.3}, {"min_p": 0.7}], ids=str)
def test_filters_keep_to_the_most_likely_tokens(params: dict[str, Any]) -> None:
    """The stub's logits fall by 1/8 from token to token."""
    prompt = [9, 8, 7]
    ranks = set()
    for seed in range(20):
        output = sampled([prompt], SamplingParams(temperature=1.0, max_tokens=10, seed=seed, **params))[0]
        for i, token in enumerate(output):
            best = expected(prompt + output[:i], 1)[0]
            ranks.add((token - best) % VOCAB)
    assert ranks == {0, 1, 2}


def test_penalties_are_those_of_the_tokens_so_far() -> None:
    """A stub that always prefers token 7, then 8, then 9, by one logit each."""

    class Stubborn(StubModel):
        def logits(self, hidden: torch.Tensor) -> torch.Tensor:
            row = torch.full((VOCAB,), -50.0)
            row[7:10] = torch.tensor([3.0, 2.0, 1.0])
            return row.repeat(len(hidden), 1)

    def outputs(**params: Any) -> list[int]:
        engine = stub_engine(Stubborn())
        engine.add_request([1], SamplingParams(temperature=0, max_tokens=6))  # not penalised
        sequence = engine.add_request([8], SamplingParams(temperature=0, max_tokens=6, **params))
        run_all(engine)
        return sequence.output_ids

    assert outputs() == [7] * 6
    assert outputs(presence_penalty=1.5) == [7, 8, 7, 7, 7, 7]
    assert outputs(frequency_penalty=0.7) == [7, 7, 8, 7, 8, 9]
    # Prompt token 8 counts as seen: 3, 2 / 2, 1 and then 3 / 2, 2 / 2, 1.
    assert outputs(repetition_penalty=2.0) == [7] * 6
    assert outputs(repetition_penalty=4.0) == [7, 9, 7, 7, 7, 7]


def test_logprobs_are_the_models_own_whatever_was_sampled() -> None:
    engine = stub_engine()
    prompt = [5, 6, 7]
    params = SamplingParams(temperature=3.0, seed=1, max_tokens=5, logprobs=2, frequency_penalty=1.0)
    sequence = engine.add_request(prompt, params)
    plain = engine.add_request(prompt, SamplingParams(temperature=0, max_tokens=5))
    run_all(engine)
    assert plain.logprobs == []
    log_z = math.log(sum(math.exp(-rank / 8) for rank in range(VOCAB)))
    for i, (token, noted) in enumerate(zip(sequence.output_ids, sequence.logprobs, strict=True)):
        best = expected(prompt + sequence.output_ids[:i], 1)[0]
        assert set(noted) == {best, (best + 1) % VOCAB, token}
        for candidate, value in noted.items():
            assert value == pytest.approx(-((candidate - best) % VOCAB) / 8 - log_z, abs=1e-4)


def test_min_tokens_forbids_the_end_also_to_greedy_rows_beside_others() -> None:
    class Ending(StubModel):
        def logits(self, hidden: torch.Tensor) -> torch.Tensor:
            row = torch.zeros(VOCAB)
            row[0], row[1] = 9.0, 5.0
            return row.repeat(len(hidden), 1)

    engine = stub_engine(Ending(), tokenizer=Letters())
    held = engine.add_request([3], SamplingParams(temperature=0, max_tokens=9, min_tokens=4))
    free = engine.add_request([3], SamplingParams(temperature=0, max_tokens=9))
    run_all(engine)
    assert (held.output_ids, free.output_ids) == ([1, 1, 1, 1, 0], [0])
