"""Features of a step of several ranks are the sums of theirs, and the longest context of any."""

from __future__ import annotations

from blis_py.core.features import StepFeatures
from blis_py.core.rank_features import RankedFeatures


def rank(decode_seqs: int, longest: int, **further: int) -> StepFeatures:
    found = StepFeatures(decode_seqs=decode_seqs, decode_kv_tokens=10 * decode_seqs, max_context=longest)
    found.further = further
    return found


def test_what_the_ranks_have_is_added_up_further_features_included() -> None:
    both = RankedFeatures([rank(2, 30, drafts=4), rank(3, 50, drafts=1, images=7)])
    assert (both.decode_seqs, both.decode_kv_tokens, both.max_context) == (5, 50, 50)
    assert both.further == {"drafts": 5, "images": 7}


def test_a_longest_context_that_is_unknown_on_the_last_rank_is_unknown() -> None:
    assert RankedFeatures([rank(2, 30), rank(3, -1)]).max_context == -1


def test_an_idle_rank_has_no_context_however_long_it_has_been_idle() -> None:
    idle = StepFeatures()
    for known, longest in ((30, 35), (-1, -1)):
        step = RankedFeatures([rank(2, known), idle], since=[995, 0], tick=1000)
        assert step.max_context == longest
        assert step.after(3).max_context == (longest + 3 if longest > 0 else -1)
