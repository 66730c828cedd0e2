"""Sampling: the reference against definitions and statistics, the CUDA kernel (on the CPU) against it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from cuda_on_cpu import cuda_on_cpu
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from engine.kernels import SamplingTensors, apply_penalties, backend, logprobs, sample

Tensor = torch.Tensor
ROWS_OF = ("temperature", "top_k", "top_p", "min_p", "seeds", "positions")


def tensors(rows: int, **given_values: Any) -> SamplingTensors:
    """One setting for all rows, temperature 1 and no filters unless given."""
    values = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seeds": 11, **given_values}
    dtypes = {"top_k": torch.int32, "seeds": torch.int64}
    columns = {
        name: torch.full((rows,), value, dtype=dtypes.get(name, torch.float32))
        for name, value in values.items()
        if name in ROWS_OF
    }
    rest = {name: value for name, value in values.items() if name not in ROWS_OF}
    return SamplingTensors(**columns, positions=torch.arange(rows), **rest)


def bitmask(allowed: list[set[int]], vocabulary: int) -> Tensor:
    words = torch.zeros(len(allowed), (vocabulary + 31) // 32, dtype=torch.int64)
    for row, ids in enumerate(allowed):
        for i in ids:
            words[row, i // 32] |= 1 << (i % 32)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def drawn(logits: list[float], draws: int = 400, **settings: Any) -> set[int]:
    """The tokens that ever come out of `draws` draws."""
    return set(sample(torch.tensor([logits]).expand(draws, -1), tensors(draws, **settings)).tolist())


# ---- greedy ----


@pytest.mark.parametrize("flag", [True, False])
def test_temperature_zero_takes_the_highest_logit_and_the_lowest_id_of_a_tie(flag: bool) -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0, 3.0], [5.0, 5.0, 5.0, 5.0], [-4.0, -3.0, -2.0, -1.0]])
    assert sample(logits, tensors(3, temperature=0.0, all_greedy=flag)).tolist() == [1, 0, 3]


def test_greedy_and_sampled_rows_mix() -> None:
    logits = torch.randn(6, 50)
    mixed = tensors(6)
    mixed.temperature[::2] = 0
    found, sampled = sample(logits, mixed), sample(logits, tensors(6))
    assert torch.equal(found[::2], logits.argmax(-1)[::2])
    assert torch.equal(found[1::2], sampled[1::2])


# ---- distribution ----


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_come_with_the_probabilities_of_the_tempered_softmax(temperature: float) -> None:
    logits, draws = torch.tensor([2.0, 1.0, 0.0, -1.0, 0.5, 1.5]), 20_000
    tokens = sample(logits.expand(draws, -1), tensors(draws, temperature=temperature))
    expected = torch.softmax(logits.double() / temperature, dim=0) * draws
    assert stats.chisquare(tokens.bincount(minlength=6).numpy(), expected.numpy()).pvalue > 1e-3


def test_seeds_give_independent_draws_at_one_position() -> None:
    draws = 20_000
    settings = replace(
        tensors(draws), seeds=torch.arange(draws), positions=torch.zeros(draws, dtype=torch.int64)
    )
    counts = sample(torch.zeros(draws, 5), settings).bincount(minlength=5)
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3


def test_kept_tokens_are_drawn_by_their_renormalised_probabilities() -> None:
    logits, draws = torch.tensor([2.0, 1.0, 0.0, -1.0]), 20_000
    counts = sample(logits.expand(draws, -1), tensors(draws, top_k=2)).bincount(minlength=4)
    expected = torch.softmax(logits[:2].double(), dim=0) * draws
    assert counts[2:].sum() == 0
    assert stats.chisquare(counts[:2].numpy(), expected.numpy()).pvalue > 1e-3


def test_a_sample_does_not_depend_on_its_place_in_the_batch() -> None:
    logits = torch.randn(16, 300)
    settings = replace(tensors(16, top_k=40, top_p=0.9), seeds=torch.randint(0, 2**62, (16,)))
    together = sample(logits, settings)
    order = torch.randperm(16)
    shuffled = SamplingTensors(**{name: getattr(settings, name)[order] for name in ROWS_OF})
    assert torch.equal(sample(logits[order], shuffled), together[order])
    for row in range(16):
        alone = SamplingTensors(**{name: getattr(settings, name)[row : row + 1] for name in ROWS_OF})
        assert sample(logits[row : row + 1], alone).item() == together[row]


# ---- filters ----


def test_top_k_keeps_k_tokens_and_what_ties_with_the_last() -> None:
    assert drawn([3.0, 2.0, 1.0, 0.0], top_k=1) == {0}
    assert drawn([1.0, 0.9, 0.8, 0.7], top_k=3) == {0, 1, 2}
    assert drawn([1.0, 0.9, 0.9, 0.9, 0.0], top_k=2) == {0, 1, 2, 3}
    assert drawn([0.1, 0.0, 0.1], top_k=0) == drawn([0.1, 0.0, 0.1], top_k=50) == {0, 1, 2}


def test_top_p_keeps_the_fewest_most_likely_tokens_that_reach_the_mass() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().tolist()
    assert drawn(logits, top_p=0.49) == {0}
    assert drawn(logits, top_p=0.51) == {0, 1}
    assert drawn(logits, top_p=0.81) == {0, 1, 2}
    assert drawn(logits, top_p=1.0) == {0, 1, 2, 3}
    assert drawn(logits, top_p=0.0) == {0}
    assert drawn([1.0, 1.0, 1.0, -9.0], top_p=0.1) == {0, 1, 2}  # a tie is kept whole


def test_min_p_is_relative_to_the_most_likely_token() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().tolist()
    assert drawn(logits, min_p=0.59) == {0, 1}
    assert drawn(logits, min_p=0.29) == {0, 1, 2}
    assert drawn(logits, min_p=1.0) == {0}


def test_filters_are_judged_after_the_temperature_and_all_of_them_hold() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().tolist()
    assert drawn(logits, temperature=0.25, top_p=0.8) == {0}
    assert drawn(logits, top_k=3, top_p=0.9, min_p=0.59) == {0, 1}
    assert drawn(logits, top_k=1, top_p=0.99, min_p=0.01) == {0}


@given(st.data())
def test_the_drawn_token_is_one_that_every_filter_keeps(data: st.DataObject) -> None:
    vocabulary = data.draw(st.integers(1, 12))
    logits = torch.tensor(
        [data.draw(st.lists(st.integers(-5, 5), min_size=vocabulary, max_size=vocabulary))]
    ).float()
    top_k = data.draw(st.integers(0, 13))
    top_p = data.draw(st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]))
    min_p = data.draw(st.sampled_from([0.0, 0.05, 0.5, 1.0]))
    settings = tensors(1, top_k=top_k, top_p=top_p, min_p=min_p, seeds=data.draw(st.integers(0, 9999)))
    token = int(sample(logits, settings))
    p = torch.softmax(logits[0].double(), dim=0)
    above = p[p > p[token]]
    slack = 1e-5  # the kernels add up in float32
    assert top_k == 0 or len(above) < top_k
    assert len(above) == 0 or top_p == 1 or above.sum() < top_p + slack
    assert p[token] >= min_p * p.max() - slack


# ---- bitmask ----


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_only_allowed_tokens_come_out(temperature: float) -> None:
    allowed = [{3, 31}, {32, 63, 64}, {69}]
    logits = torch.randn(3, 70)
    tokens = sample(logits, tensors(3, temperature=temperature, bitmask=bitmask(allowed, 70)))
    assert all(int(token) in ids for token, ids in zip(tokens, allowed, strict=True))


@pytest.mark.parametrize(
    "settings", [{"temperature": 0.0, "all_greedy": True}, {"temperature": 0.0}, {}, {"top_k": 2}]
)
def test_a_row_that_allows_nothing_yields_minus_one(settings: dict[str, Any]) -> None:
    given_settings = tensors(2, bitmask=bitmask([set(), {4}], 40), **settings)
    assert sample(torch.randn(2, 40), given_settings).tolist() == [-1, 4]
    with cuda_on_cpu():
        assert sample(torch.randn(2, 40), given_settings).tolist() == [-1, 4]


def test_filters_are_judged_on_what_the_bitmask_leaves() -> None:
    logits = torch.tensor([[9.0, 8.0, 1.0, 0.9, 0.0]]).expand(300, -1)
    settings = tensors(300, top_k=2, bitmask=bitmask([{2, 3, 4}], 5).expand(300, -1))
    assert set(sample(logits, settings).tolist()) == {2, 3}


# ---- the CUDA kernel ----


def some_settings(rows: int, vocabulary: int, masked: bool) -> SamplingTensors:
    def sometimes(share: float, values: Tensor, off: float) -> Tensor:
        return torch.where(torch.rand(rows) < share, values, torch.tensor(off, dtype=values.dtype))

    return SamplingTensors(
        temperature=sometimes(0.85, torch.rand(rows) * 1.5 + 0.05, 0.0),
        top_k=sometimes(0.5, torch.randint(1, 60, (rows,), dtype=torch.int32), 0),
        top_p=sometimes(0.5, torch.rand(rows), 1.0),
        min_p=sometimes(0.3, torch.rand(rows) * 0.2, 0.0),
        seeds=torch.randint(-(2**62), 2**62, (rows,)),
        positions=torch.randint(0, 2**40, (rows,)),
        bitmask=torch.randint(-(2**31), 2**31, (rows, (vocabulary + 31) // 32)).to(torch.int32)
        if masked
        else None,
    )


@pytest.mark.parametrize("vocabulary", [1, 5, 1000, 9001])
@pytest.mark.parametrize("spread", [0.0, 1.0, 8.0])
@pytest.mark.parametrize("masked", [False, True])
def test_the_cuda_sampler_draws_the_tokens_of_the_reference(
    vocabulary: int, spread: float, masked: bool
) -> None:
    torch.manual_seed(vocabulary)
    logits = torch.randn(5, vocabulary) * spread
    settings = some_settings(5, vocabulary, masked)
    expected = sample(logits, settings)
    with cuda_on_cpu():
        found = sample(logits, settings)
    assert torch.equal(found, expected)


def test_without_filters_the_host_flag_changes_nothing() -> None:
    logits = torch.randn(5, 200)
    assert torch.equal(sample(logits, tensors(5)), sample(logits, tensors(5, filtered=False)))


# ---- penalties and log-probabilities ----


def test_penalties_apply_to_what_was_seen() -> None:
    logits = torch.tensor([[2.0, -2.0, 1.0, 1.0]])
    found = apply_penalties(
        logits,
        prompt_mask=torch.tensor([[True, True, False, False]]),
        output_counts=torch.tensor([[0, 0, 3, 0]]),
        repetition=torch.tensor([2.0]),
        presence=torch.tensor([0.5]),
        frequency=torch.tensor([0.1]),
    )
    torch.testing.assert_close(found, torch.tensor([[1.0, -4.0, 0.5 - 0.3 - 0.5, 1.0]]))


def test_neutral_penalties_change_nothing() -> None:
    logits = torch.randn(2, 9)
    off = torch.zeros(2)
    seen = torch.ones(2, 9, dtype=torch.bool)
    assert torch.equal(apply_penalties(logits, seen, seen.int(), torch.ones(2), off, off), logits)


def test_logprobs_are_normalised_and_fall() -> None:
    logits = torch.randn(3, 20)
    values, ids = logprobs(logits, 20)
    torch.testing.assert_close(values.exp().sum(-1), torch.ones(3))
    assert (values.diff(dim=-1) <= 0).all()
    assert torch.equal(logprobs(logits, 1)[1][:, 0], logits.argmax(-1))
    assert torch.equal(ids.sort(dim=-1).values, torch.arange(20).expand(3, -1))


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown kernel backend"), backend.force("opencl"):  # type: ignore[arg-type]
        pass
