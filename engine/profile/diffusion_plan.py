"""Measured rounds of block diffusion, as plain data."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from blis_py.core.blocks import block_count
from blis_py.errors import InputError
from engine.profile.families import shares, spaced
from engine.profile.shapes import Grid, ShapeLimits

ROUNDS = 3
"""Rounds of a visit."""


@dataclass(frozen=True, slots=True)
class RoundShape:
    """One composition; with `rounds` above 1 the following rounds have one masked position less each."""

    source: str = "diffusion"
    blocks: tuple[int, ...] = ()
    """Context of each block, whole blocks."""
    masked: int = 0
    """Positions of each block that are masked in the first measured round."""
    prefills: tuple[tuple[int, int], ...] = ()
    """Tokens of each prompt computed in the round, whole blocks, and the number before these in the
    cache, whole pages."""
    rounds: int = ROUNDS
    experts: int = 0


def plan_rounds(limits: ShapeLimits, block: int, grid: Grid) -> list[RoundShape]:
    """All rounds that fit, each once: blocks by context and masked share, prompts alone and beside blocks.

    Raises:
        InputError: the limits leave no room for any.
    """
    shapes = [shape for shape in _grid(limits, block, grid) if _fits(shape, limits, block)]
    if not any(shape.blocks for shape in shapes):
        fix = f"use a max_model_len of at least {2 * block}"
        raise InputError("no room for a single block", key="max_model_len", fix=fix)
    return list(dict.fromkeys(shapes))


def sentinel_round(shapes: Sequence[RoundShape]) -> RoundShape:
    """A shape of middling size to be measured again and again."""
    blocks = sorted((shape for shape in shapes if not shape.prefills), key=lambda s: len(s.blocks))
    return dataclasses.replace(blocks[len(blocks) // 2], source="sentinel")


def _grid(limits: ShapeLimits, block: int, grid: Grid) -> Iterator[RoundShape]:
    longest = limits.max_model_len // block * block - 2 * block
    contexts = [0, *(context // block * block for context in spaced(block, longest, grid.contexts - 1))]
    counts = spaced(1, limits.max_num_seqs, 2 * grid.contexts - 1)
    if limits.buckets:
        counts = sorted({min(size + more, limits.max_num_seqs) for size in limits.buckets for more in (0, 1)})
    for count in counts:
        for context in contexts:
            for masked in sorted({block - 1, max(block // 2, ROUNDS), max(block // 8, ROUNDS), ROUNDS - 1}):
                yield RoundShape(blocks=_around(context, count, block, longest), masked=masked)
    middle = contexts[-1] // 2 // block * block
    past = middle // limits.block_size * limits.block_size
    for tokens in spaced(block, limits.max_num_batched_tokens // block * block, grid.prefill_tokens):
        for seqs in grid.prefill_seqs:
            new = [count * block for count in shares(tokens // block, seqs)]
            for before in (0, past):
                prompts = tuple((count, before) for count in new)
                yield RoundShape(prefills=prompts, rounds=1)
                for count in (1, limits.max_num_seqs // 2):
                    blocks = _around(middle, count, block, longest)
                    yield RoundShape(blocks=blocks, masked=block // 2, prefills=prompts, rounds=1)
    if limits.experts:
        for active in spaced(limits.top_k, limits.experts, grid.experts):
            yield RoundShape("experts", (middle,), block // 2, experts=active)


def _around(middle: int, count: int, block: int, longest: int) -> tuple[int, ...]:
    """Contexts of so many blocks, from half the middle one to one and a half of it: in service they differ.

    Attention that is padded to the longest costs more then than for equal ones.

    >>> _around(128, 3, 32, 512), _around(128, 1, 32, 512)
    ((64, 128, 192), (128,))
    """
    if count == 1:
        return (middle,)
    shares = [0.5 + place / (count - 1) for place in range(count)]
    most = max(middle, longest)
    return tuple(min(round(middle * share / block) * block, most) for share in shares)


def _fits(shape: RoundShape, limits: ShapeLimits, block: int) -> bool:
    new = sum(tokens for tokens, _ in shape.prefills)
    if len(shape.blocks) + len(shape.prefills) > limits.max_num_seqs or any(n < 1 for n, _ in shape.prefills):
        return False
    if len(shape.blocks) * block + new > limits.max_num_batched_tokens:
        return False
    if limits.chunk and any(tokens > limits.chunk // block * block for tokens, _ in shape.prefills):
        return False
    ends = [context + 2 * block for context in shape.blocks]
    ends += [past + tokens + 2 * block for tokens, past in shape.prefills]
    pages = sum(block_count(end, limits.block_size) for end in ends)
    return max(ends) <= limits.max_model_len and pages <= limits.num_kv_blocks
