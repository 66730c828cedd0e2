"""What a shape is, and whether an engine can be brought to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SLACK_STEPS = 4
"""Steps of a visit beside the measured ones, rounded up: one before them, one behind."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What an engine allows."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    num_kv_blocks: int
    block_size: int
    chunk: int = 0
    """Longest chunk of one prompt in a step; 0 = no limit."""
    buckets: tuple[int, ...] = ()
    """Batch sizes of captured graphs."""
    experts: int = 0
    """Routed experts of a sparse layer; 0 = the model has none."""
    top_k: int = 0
    """Experts of a token."""


@dataclass(frozen=True, slots=True)
class Shape:
    """One composition to be measured."""

    source: str
    decodes: tuple[int, ...] = ()
    """Context of each decoding sequence in the first measured step."""
    prefills: tuple[tuple[int, int], ...] = ()
    """Of each prompt: its new tokens, and how many tokens before these are in the cache, whole blocks."""
    steps: int = 1
    """Consecutive measured steps; from one to the next every context grows by 1."""
    experts: int = 0
    """Experts of a sparse layer that get tokens; 0 = whichever the tokens choose."""

    @property
    def contexts(self) -> list[int]:
        """Tokens of every sequence, prompt included, when the measured steps begin."""
        return [*self.decodes, *(past + new for new, past in self.prefills)]


@dataclass(frozen=True, slots=True)
class Grid:
    """How fine the plan is."""

    batches: int | None = None
    """Batch sizes of decode steps where no graphs dictate them; `None` = every power of two, and between."""
    contexts: int = 4
    skewed_batches: tuple[int, ...] = (4, 16, 64)
    prefill_tokens: int = 6
    prefill_seqs: tuple[int, ...] = (1, 4, 16)
    pasts: int = 3
    """Of a prompt: none, and so many less one up to the longest."""
    mixed: int = 48
    experts: int = 5
    decode_steps: int = 3
    """Measured steps in a row."""


GRIDS = {
    "full": Grid(),
    "quick": Grid(
        batches=2,
        contexts=2,
        skewed_batches=(2,),
        prefill_tokens=2,
        prefill_seqs=(1, 2),
        pasts=2,
        mixed=2,
        experts=2,
        decode_steps=2,
    ),
}


def fits(shape: Shape, limits: Limits) -> bool:
    """Whether an engine can be brought to run exactly this."""
    decodes, budget = len(shape.decodes), limits.max_num_batched_tokens
    if decodes + len(shape.prefills) > limits.max_num_seqs or decodes + 1 > budget:
        return False
    if shape.prefills and decodes + sum(new for new, _ in shape.prefills) > budget:
        return False
    if limits.chunk and any(new > limits.chunk for new, _ in shape.prefills):
        return False
    contexts, more = shape.contexts, shape.steps + SLACK_STEPS
    if min(contexts) < 1 or min(shape.decodes, default=2) < 2 or max(contexts) + more > limits.max_model_len:
        return False
    blocks = sum(-(-(context + more) // limits.block_size) for context in contexts)
    return blocks <= limits.num_kv_blocks and filling(shape.decodes, limits) is not None


def filling(contexts: Sequence[int], limits: Limits) -> list[int] | None:
    """Prompt lengths with which sequences that come at once all decode at these contexts at the same time.

    They do so in the second step in which all of them decode: one leads to it. Prompts are computed in
    order, under the token budget; those that are done decode meanwhile, so the first are begun with less.
    `None` where that takes longer than some context is long.
    """
    contexts = [context - 1 for context in contexts]
    prompts = list(contexts)
    for _ in range(20 if contexts else 0):
        done = _completion_steps(prompts, limits)
        if done is None:
            return None
        begun = [context - (done[-1] - step) for context, step in zip(contexts, done, strict=True)]
        if min(begun) < 1:
            return None
        if begun == prompts:
            return prompts
        prompts = begun
    return prompts  # off by a step somewhere: the step log says what was measured


def _completion_steps(prompts: Sequence[int], limits: Limits) -> list[int] | None:
    """The step in which each prompt is complete, when running sequences go first and others in order."""
    done: list[int] = []
    left, step, chunk = list(prompts), 0, limits.chunk or limits.max_num_batched_tokens
    while len(done) < len(prompts):
        budget = limits.max_num_batched_tokens - len(done)
        if budget < 1:
            return None
        index = len(done)
        while index < len(left) and budget:
            tokens = min(left[index], budget, chunk)
            left[index] -= tokens
            budget -= tokens
            index += 1
        while len(done) < len(left) and left[len(done)] == 0:
            done.append(step)
        step += 1
    return done
