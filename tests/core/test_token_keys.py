"""Keys of blocks of real tokens: a chain of hashes."""

from __future__ import annotations

from array import array
from hashlib import blake2b

from hypothesis import given
from hypothesis import strategies as st

from blis_py.core.token_keys import token_keys

tokens = st.lists(st.integers(0, 200_000), max_size=30)


@given(tokens, st.integers(1, 9))
def test_a_key_is_the_hash_of_the_key_before_it_and_the_tokens_of_its_block(
    token_ids: list[int], size: int
) -> None:
    chained, before = [], b""
    for begin in range(0, len(token_ids) - size + 1, size):
        block = array("i", token_ids[begin : begin + size]).tobytes()
        before = blake2b(before + block, digest_size=16).digest()
        chained.append(before)
    assert token_keys(token_ids, size) == chained


@given(tokens, tokens, st.integers(1, 9))
def test_prompts_have_the_keys_of_the_blocks_with_which_they_begin_alike(
    one: list[int], other: list[int], size: int
) -> None:
    common = next(
        (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )
    both = list(zip(token_keys(one, size), token_keys(other, size), strict=False))
    assert [a == b for a, b in both] == [n < common // size for n in range(len(both))]


@given(tokens, st.integers(1, 9))
def test_keys_go_on_from_a_parent(token_ids: list[int], size: int) -> None:
    keys, cut = token_keys(token_ids, size), len(token_ids) // size // 2
    parent = keys[cut - 1] if cut else b""
    assert keys[:cut] + token_keys(token_ids[cut * size :], size, parent) == keys
