"""Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3").

A number is a pure function of a key and a counter. The sampler's key is a request's seed, its counter the
token's position in the sequence and the vocabulary id: the same request draws the same numbers in any batch,
on any backend.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

Tensor = torch.Tensor
Array = TypeVar("Array", torch.Tensor, npt.NDArray[Any])

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF
_CACHED_BLOCKS = 16384  # as many as keep the arrays of a round in a core's cache


def philox(
    counter: tuple[Array, Array, Array, Array], key: tuple[Array, Array]
) -> tuple[Array, Array, Array, Array]:
    """Four 32-bit words for each counter; arrays broadcast together.

    Words lie in the low halves of 64-bit integers: torch's int64 or numpy's uint64.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for number in range(ROUNDS):
        if number:
            k0, k1 = (k0 + KEY_STEPS[0]) & _MASK, (k1 + KEY_STEPS[1]) & _MASK
        # A signed product wraps into the sign bit; the masks restore its unsigned halves.
        p0, p1 = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c2 = ((p1 >> 32) ^ c1 ^ k0) & _MASK, ((p0 >> 32) ^ c3 ^ k1) & _MASK
        c1, c3 = p1 & _MASK, p0 & _MASK
    return c0, c1, c2, c3


def random_words(seeds: Tensor, positions: Tensor, ids: Tensor) -> Tensor:
    """The sampler's words for vocabulary ids, int64 in 0 .. 2^32 - 1.

    seeds, positions: `[B]` int64; ids: `[B, n]` or `[n]` int64; returns `[B, n]`. Word w of the block with
    counter (position low, position high, q, 0) and key (seed low, seed high) belongs to id 4 q + w.
    """
    words = _blocks(seeds, positions, ids // 4)
    return words.gather(0, (ids % 4).expand(words.shape[1:]).unsqueeze(0)).squeeze(0)


def all_random_words(seeds: Tensor, positions: Tensor, vocabulary: int) -> Tensor:
    """`random_words` of ids 0 .. vocabulary - 1 at a quarter of the work, `[B, vocabulary]`."""
    quads = torch.arange((vocabulary + 3) // 4, device=seeds.device)
    return _blocks(seeds, positions, quads).permute(1, 2, 0).flatten(1)[:, :vocabulary]


def _blocks(seeds: Tensor, positions: Tensor, quads: Tensor) -> Tensor:
    """`[4, B, n]` words of the blocks `quads`, `[n]` or `[B, n]`."""
    if seeds.is_cuda:
        low, high = (positions & _MASK).unsqueeze(1), ((positions >> 32) & _MASK).unsqueeze(1)
        key = (seeds & _MASK).unsqueeze(1), ((seeds >> 32) & _MASK).unsqueeze(1)
        return torch.stack(philox((low, high, quads, torch.zeros_like(low)), key))
    rows, length = len(seeds), quads.shape[-1]
    words = np.empty((4, rows, length), dtype=np.uint64)
    seed, position = (column.numpy().view(np.uint64)[:, None] for column in (seeds, positions))
    quad = np.broadcast_to(quads.numpy().view(np.uint64), (rows, length))
    step = max(1, _CACHED_BLOCKS // max(1, length))
    for start in range(0, rows, step):
        part = slice(start, start + step)
        s, p = seed[part], position[part]
        counter = (p & _MASK, p >> 32, quad[part], np.zeros_like(p))
        for place, word in zip(words[:, part], philox(counter, (s & _MASK, s >> 32)), strict=True):
            place[:] = word
    return torch.from_numpy(words.view(np.int64))


def gumbel(words: Tensor) -> Tensor:
    """Standard Gumbel noise in float32 from 32-bit words, of the same shape.

    With v = (word + 1/2) / 2^32, `-log1p(-v)` is exponential and minus its logarithm Gumbel. Small v give
    the large values that win, and there a float32 resolves all 32 bits.
    """
    v = (words.to(torch.float32) * 2.0**-32 + 2.0**-33).clamp_max(1 - 2.0**-24)
    return -torch.log(-torch.log1p(-v))
