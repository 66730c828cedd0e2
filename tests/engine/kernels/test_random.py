"""Philox4x32-10 against its authors' test vectors and plain integers; the sampler's noise."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from engine.kernels.random import all_random_words, gumbel, philox, random_words

ONES = 0xFFFFFFFF
# The known answers published with Random123 (kat_vectors: philox4x32 10).
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES, ONES, ONES, ONES), (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
word = st.integers(0, ONES)


def run(counter: tuple[int, ...], key: tuple[int, ...]) -> tuple[int, ...]:
    c0, c1, c2, c3 = (torch.tensor(value) for value in counter)
    k0, k1 = (torch.tensor(value) for value in key)
    return tuple(int(value) for value in philox((c0, c1, c2, c3), (k0, k1)))


def plain(counter: tuple[int, ...], key: tuple[int, ...]) -> tuple[int, ...]:
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        first, second = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (second >> 32) ^ c1 ^ k0, second & ONES, (first >> 32) ^ c3 ^ k1, first & ONES
        k0, k1 = (k0 + 0x9E3779B9) & ONES, (k1 + 0xBB67AE85) & ONES
    return c0, c1, c2, c3


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_the_known_answers(counter: tuple[int, ...], key: tuple[int, ...], expected: tuple[int, ...]) -> None:
    assert run(counter, key) == expected


@given(st.tuples(word, word, word, word), st.tuples(word, word))
def test_every_block_is_that_of_unbounded_integers(counter: tuple[int, ...], key: tuple[int, ...]) -> None:
    assert run(counter, key) == plain(counter, key)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**40), st.integers(1, 70))
def test_a_word_is_a_function_of_seed_position_and_vocabulary_id(
    seed: int, position: int, vocabulary: int
) -> None:
    words = all_random_words(torch.tensor([seed, 1]), torch.tensor([position, 2]), vocabulary)
    assert words.shape == (2, vocabulary)
    last = vocabulary - 1
    block = plain((position & ONES, position >> 32, last // 4, 0), (seed & ONES, (seed >> 32) & ONES))
    assert words[0, last] == block[last % 4]


def test_words_of_chosen_ids_are_those_of_the_whole_vocabulary() -> None:
    seeds, positions = torch.randint(-(2**62), 2**62, (3,)), torch.tensor([0, 7, 2**33])
    words, ids = all_random_words(seeds, positions, 101), torch.randint(0, 101, (3, 9))
    assert torch.equal(random_words(seeds, positions, ids), words.gather(1, ids))


def test_the_noise_is_gumbel_distributed() -> None:
    noise = gumbel(all_random_words(torch.arange(8), torch.arange(8), 5000)).flatten()
    assert stats.kstest(noise.numpy(), stats.gumbel_r.cdf).pvalue > 1e-3


def test_the_noise_is_finite_for_every_kind_of_word() -> None:
    words = torch.tensor([0, 1, 2**24, 2**31, ONES - 1, ONES])
    noise = gumbel(words)
    assert noise.isfinite().all()
    assert (noise.diff() <= 0).all()
