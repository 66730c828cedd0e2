"""Terms of fitted step times: how much of each a step has."""

from __future__ import annotations

import pytest

from blis_py.latency.fitted_terms import TERMS, StepPoint


def point(**features: float) -> StepPoint:
    x = StepPoint()
    for name in StepPoint.__slots__:
        setattr(x, name, features.get(name, 0))
    return x


@pytest.mark.parametrize(
    ("term", "amounts"),
    [
        ("step", {0: 1, 3: 1}),
        ("tokens", {0: 0, 5: 5, 300: 300}),
        ("tokens_beyond_knee", {99: 0, 100: 0, 101: 1, 300: 200}),
        ("first_tokens", {0: 0, 15: 15, 16: 16, 17: 16, 300: 16}),
        ("few_tokens", {0: 0, 3: 3, 4: 4, 5: 4, 300: 4}),
    ],
)
def test_terms_of_tokens(term: str, amounts: dict[int, int]) -> None:
    """Those beyond the knee, here of 100 tokens; the first 16; the first 4."""
    assert {tokens: TERMS[term](point(tokens=tokens, knee=100)) for tokens in amounts} == amounts


def test_other_terms_are_what_a_step_has_or_whether_it_has_any() -> None:
    x = point(attended=3, max_context=50, prefill_seqs=2, prefill_pairs=7, emitted_rows=4)
    assert TERMS["padded_kv_tokens"](x) == 150
    assert (TERMS["max_context"](x), TERMS["prefill_pairs"](x), TERMS["emitted_rows"](x)) == (50, 7, 4)
    assert (TERMS["any_decode"](x), TERMS["any_prefill"](x)) == (1, 1)
    assert (TERMS["any_decode"](point()), TERMS["any_prefill"](point())) == (0, 0)
