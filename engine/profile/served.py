"""Short runs of a profile: requests arrive and leave, so that the batch changes as in service."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from random import Random

from engine.kinds import Engine
from engine.profile.families import CONTEXT_TOKENS, longest_context_tokens
from engine.profile.prompts import ProfilePrompts
from engine.profile.shapes import ShapeLimits
from engine.sampling_params import SamplingParams

MAX_STEPS = 1 << 20
"""Upper bound of the steps of a run."""
_SHARES = (1.0, 0.25, 0.6)
"""Concurrency as a share of the maximum number of sequences, in successive runs."""
_MAX_REQUESTS = 48
_ANSWERS = (2, 24)
"""Least and most tokens of an answer: short, so that requests keep arriving and leaving."""
_MASKED = 8
"""Most tokens of an answer that is denoised. Each takes a round."""


def concurrency(limits: ShapeLimits, number: int) -> int:
    """Concurrency of run `number`."""
    return max(1, round(_SHARES[number % len(_SHARES)] * limits.max_num_seqs))


def short_requests(limits: ShapeLimits, number: int) -> list[tuple[int, int]]:
    """Prompt and answer tokens of the requests of run `number`."""
    rng, most = Random(number), _ANSWERS[1]
    room = limits.num_kv_blocks // concurrency(limits, number) * limits.block_size
    longest = max(min(longest_context_tokens(limits), room) - most, CONTEXT_TOKENS)
    count = min(2 * concurrency(limits, number) + 4, _MAX_REQUESTS)
    return [
        (int(CONTEXT_TOKENS * (longest / CONTEXT_TOKENS) ** rng.random()), rng.randint(*_ANSWERS))
        for _ in range(count)
    ]


def short_blocks(limits: ShapeLimits, block: int, number: int) -> list[tuple[int, int]]:
    """The same for answers in blocks: each fills up the last block of its prompt, and ends with it."""
    rng, at_most = Random(number), concurrency(limits, number)
    room = min(limits.num_kv_blocks // at_most * limits.block_size, limits.max_model_len)
    most = max(room // block, 1)
    masked = [rng.randint(1, min(_MASKED, block)) for _ in range(min(2 * at_most + 4, _MAX_REQUESTS))]
    return [(int(most ** rng.random()) * block - tokens, tokens) for tokens in masked]


def serve_closed(
    engine: Engine, requests: Iterable[tuple[int, int]], at_most: int, prompts: ProfilePrompts
) -> None:
    """Serve requests with given prompt and answer lengths in a closed loop."""
    waiting, under_way = deque(requests), 0
    while waiting or engine.has_unfinished:
        now_ns = engine.clock.now_ns()
        while waiting and under_way < at_most:
            prompt, answer = waiting.popleft()
            engine.add_request(prompts.take(prompt), of_length(answer))
            under_way += 1
        under_way -= len(engine.step(now_ns).finished)


def of_length(tokens: int) -> SamplingParams:
    """Parameters for an answer of exactly `tokens` tokens, without text."""
    return SamplingParams(temperature=0, ignore_eos=True, max_tokens=tokens, detokenize=False)
