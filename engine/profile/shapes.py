"""What a shape is, and whether an engine can be brought to it."""

from __future__ import annotations

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
    shares: bool = False
    """Whether sequences that begin alike share pages."""


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
    shared: int = 0
    """Leading tokens that all decodes have in common, whole blocks."""

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
    shared: int = 3
    """How much decodes share: nothing, and so many less one up to all but their last blocks."""
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
        shared=2,
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
    return sum(-(-(context + more) // limits.block_size) for context in contexts) <= limits.num_kv_blocks
