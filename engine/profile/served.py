"""The short runs of a profile: requests that come and go, so that the batch changes as it does in service."""

from __future__ import annotations

from random import Random

from engine.profile.families import CONTEXT, longest_context
from engine.profile.shapes import Limits

MOST_STEPS = 1 << 20
"""More than a run has."""
_SHARES = (1.0, 0.25, 0.6)
"""Of the sequences that may run, those under way; a run after the other."""
_MOST_REQUESTS = 48
_ANSWERS = (2, 24)
"""Least and most tokens of an answer: short, so that somebody always comes or goes."""


def concurrency(limits: Limits, number: int) -> int:
    """Requests under way in the run of this number."""
    return max(1, round(_SHARES[number % len(_SHARES)] * limits.max_num_seqs))


def short_requests(limits: Limits, number: int) -> list[tuple[int, int]]:
    """Tokens of prompt and answer of the requests of the run of this number."""
    rng, most = Random(number), _ANSWERS[1]
    room = limits.num_kv_blocks // concurrency(limits, number) * limits.block_size
    longest = max(min(longest_context(limits), room) - most, CONTEXT)
    count = min(2 * concurrency(limits, number) + 4, _MOST_REQUESTS)
    return [
        (int(CONTEXT * (longest / CONTEXT) ** rng.random()), rng.randint(*_ANSWERS)) for _ in range(count)
    ]
