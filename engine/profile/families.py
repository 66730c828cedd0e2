"""The families of shapes of an autoregressive model; each is a function of the limits and the grid."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

import torch

from engine.profile.shapes import SLACK_STEPS, Grid, Shape, ShapeLimits, fits

CONTEXT_TOKENS = 16
"""Shortest context on the grid."""
_MAX_PROMPTS = 8
"""Largest number of prompts in a mixed step."""


def decode(limits: ShapeLimits, grid: Grid) -> Iterator[Shape]:
    """Batch by context."""
    for batch in _batches(limits, grid):
        room = limits.num_kv_blocks // batch * limits.block_size - 2 * limits.block_size
        longest = min(longest_context_tokens(limits), room)
        for context in spaced(CONTEXT_TOKENS, longest, grid.contexts):
            yield Shape("decode", _around(context, batch, limits.block_size), steps=grid.decode_steps)


def host(limits: ShapeLimits, grid: Grid) -> Iterator[Shape]:
    """Host work by batch size: decodes of short sequences, and admissions of as many."""
    for batch in _batches(limits, grid):
        contexts = _around(2 * CONTEXT_TOKENS, batch, limits.block_size)
        yield Shape("host", contexts, steps=grid.decode_steps)
        yield Shape("host", contexts[: batch // 2], ((1, 0),) * (batch - batch // 2))


def skewed(limits: ShapeLimits, grid: Grid) -> Iterator[Shape]:
    """Equal batch size and total context, distributed evenly, in halves, or mostly to one sequence."""
    for batch in grid.skewed_batches:
        longest = longest_context_tokens(limits)
        mean = min(longest, limits.num_kv_blocks // batch * limits.block_size) // 3
        if batch < 2 or mean < 8:
            continue
        half, few = batch // 2, max(mean // 4, 1)
        rest = mean * batch - few * half
        high = min(longest, mean * batch - few * (batch - 1))
        others = mean * batch - high
        for contexts in (
            (mean,) * batch,
            (few,) * half + shares(rest, batch - half),
            (*shares(others, batch - 1), high),
        ):
            yield Shape("skewed", contexts, steps=grid.decode_steps)


def shared(limits: ShapeLimits, grid: Grid) -> Iterator[Shape]:
    """Decodes with a common prefix, by its share of the context; and equal ones without."""
    size = limits.block_size
    for batch in grid.skewed_batches if limits.shares else ():
        batch = min(batch, limits.max_num_seqs)
        context_tokens = min(longest_context_tokens(limits), limits.num_kv_blocks // batch * size - 2 * size)
        most = (context_tokens - 1) // size - 1
        if batch > 1 and most >= grid.shared:
            for part in range(grid.shared):
                tokens = most * part // (grid.shared - 1) * size
                yield Shape("shared", (context_tokens,) * batch, steps=grid.decode_steps, shared=tokens)


def prefill(limits: ShapeLimits, grid: Grid) -> Iterator[Shape]:
    """Prefill tokens of a step, by number of prompts, cached tokens before them, and spread of lengths."""
    most = limits.max_num_batched_tokens
    for seqs in grid.prefill_seqs:
        for tokens in spaced(
            min(CONTEXT_TOKENS, most), min(most, seqs * longest_context_tokens(limits)), grid.prefill_tokens
        ):
            if tokens < seqs:
                continue
            new = shares(tokens, seqs)
            room = min(
                longest_context_tokens(limits) - max(new),
                limits.num_kv_blocks // seqs * limits.block_size - max(new),
            )
            pasts = [0]
            if room > 2 * limits.block_size:
                pasts += spaced(2 * limits.block_size, room, grid.pasts - 1)
            for past in pasts:
                whole = past // limits.block_size * limits.block_size
                yield Shape("prefill", prefills=tuple((count, whole) for count in new))
            if seqs > 1:
                yield Shape("prefill", prefills=tuple((count, 0) for count in halves(tokens, seqs)))


def mixed(limits: ShapeLimits, grid: Grid, seed: int) -> Iterator[Shape]:
    """Prompts beside decodes, from a scrambled Sobol sequence over the possible compositions."""
    points = torch.quasirandom.SobolEngine(6, scramble=True, seed=seed).draw(4 * grid.mixed).tolist()
    count = 0
    for point in points:
        if count < grid.mixed:
            shape = _mixture(point, limits)
            if fits(shape, limits):
                count += 1
                yield shape


def _mixture(point: Sequence[float], limits: ShapeLimits) -> Shape:
    """The step at a point of the unit cube: decodes, context, its spread, prompts, their tokens and past."""
    u, v, spread, w, x, y = point
    batch = _between(u, 1, max(limits.max_num_seqs - 1, 1))
    budget_tokens = limits.max_num_batched_tokens - batch
    prompts = _between(w, 1, max(min(_MAX_PROMPTS, limits.max_num_seqs - batch, budget_tokens), 1))
    longest = longest_context_tokens(limits)
    room = limits.num_kv_blocks // (batch + prompts) * limits.block_size
    mean = _between(v, CONTEXT_TOKENS, max(min(longest, room) * 2 // 3, CONTEXT_TOKENS))
    width = min(int(spread * mean), mean - 1, longest - mean)
    step = 2 * width / max(batch - 1, 1)
    decodes = tuple(mean - (width if batch > 1 else 0) + int(i * step) for i in range(batch))
    tokens = _between(x, prompts, max(min(budget_tokens, prompts * longest // 2), prompts))
    new = (halves if spread > 0.5 else shares)(tokens, prompts)
    past = int(max(y - 0.4, 0) / 0.6 * (longest - max(new))) // limits.block_size * limits.block_size
    return Shape("mixed", decodes, tuple((count, past) for count in new))


def experts(limits: ShapeLimits, grid: Grid) -> Iterator[Shape]:
    """Mixture of experts: equal tokens, spread over few experts or many."""
    if not limits.experts:
        return
    for tokens in (1, 8, 32, 128, 512):
        most = min(limits.experts, tokens * limits.top_k)
        for active in spaced(limits.top_k, most, grid.experts):
            if tokens <= 128:
                contexts = _around(4 * CONTEXT_TOKENS, tokens, limits.block_size)
                yield Shape("experts", contexts, steps=grid.decode_steps, experts=active)
            else:
                yield Shape("experts", prefills=((tokens, 0),), experts=active)


# -- numbers -------------------------------------------------------------------------------------------


def _batches(limits: ShapeLimits, grid: Grid) -> list[int]:
    """Captured sizes, some of them plus one; without graphs 1, 2, 3, 4, 6, 8, 12, 16, 24 … and the most."""
    most = limits.max_num_seqs
    if limits.buckets:
        captured = _captured([size for size in limits.buckets if size <= most], grid.buckets)
        sizes: Iterable[int] = {*captured, *(size + 1 for size in captured[1::3]), 1, most}
    else:
        powers = [2**power for power in range(most.bit_length() + 1)]
        sizes = {*powers, *(3 * power // 2 for power in powers[1:]), most}
    chosen = [size for size in sorted(sizes) if size <= most]
    if grid.batches is None or len(chosen) <= grid.batches:
        return chosen
    return [chosen[bisect_right(chosen, size) - 1] for size in spaced(1, most, grid.batches)]


def _captured(buckets: Sequence[int], count: int) -> list[int]:
    """About `count` of the captured sizes, from the least to the largest, at a common ratio."""
    sizes = spaced(buckets[0], buckets[-1], count) if buckets else []
    return sorted({min(buckets, key=lambda size: abs(size - each)) for each in sizes})


def longest_context_tokens(limits: ShapeLimits) -> int:
    """The longest context that leaves room for the steps of a visit, a page boundary and a spread."""
    return limits.max_model_len - 2 * SLACK_STEPS - limits.block_size


def _around(context_tokens: int, batch: int, block_size: int) -> tuple[int, ...]:
    """Contexts spread over a block about their mean, so that new pages fall due in turn, as in service."""
    if batch == 1:
        return (context_tokens,)
    low = max(context_tokens - block_size // 2, 1)
    return tuple(low + i * block_size // batch for i in range(batch))


def shares(total: int, parts: int) -> tuple[int, ...]:
    """`total` in whole parts, as equal as possible."""
    return tuple(total * (i + 1) // parts - total * i // parts for i in range(parts))


def halves(total: int, parts: int) -> tuple[int, ...]:
    """`total` in whole parts of at least 1, each about half of the one before it.

    >>> halves(100, 4)
    (51, 26, 15, 8)
    """
    rest, parts_before = total - parts, []
    for _ in range(parts - 1):
        parts_before.append(rest - rest // 2 + 1)
        rest //= 2
    return (*parts_before, rest + 1)


def spaced(low: int, high: int, count: int) -> list[int]:
    """At most `count` whole numbers from `low` to `high`, each about the same multiple of the one before."""
    if high < low or count < 1:
        return []
    if count == 1 or low == high:
        return [high]
    ratio = (high / low) ** (1 / (count - 1))
    return sorted({round(low * ratio**i) for i in range(count)})


def _between(unit: float, low: int, high: int) -> int:
    """A number from `low` to `high`, even on a logarithmic scale, for `unit` from 0 to 1."""
    return round(low * (high / low) ** unit)
