"""Nested shared prefixes: one system prompt, then one of many documents, and so on.

A request draws one member of each level's pool; two requests share the tokens of all leading levels on which
they agree. A level depends on those above it: document 3 after one system prompt and document 3 after another
are different prefixes, as for a prefix cache.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blis_py.requests.streams import stream
from blis_py.requests.table import Content, Ints
from blis_py.workload.lengths import Lengths, sample


@dataclass(frozen=True, slots=True)
class PrefixLevel:
    """A pool of texts, one of which occupies this level of a prompt.

    Attributes:
        name: of the pool. Clients with pools of the same name share its texts.
        tokens: length distribution; every text of the pool has a fixed length, equal for all clients.
        pool: number of texts.
        zipf: exponent of their popularity, text k having probability proportional to k**-zipf; 0 = uniform.
        in_turn: whether requests take the texts one after the other, and not at random.
    """

    name: str
    tokens: Lengths
    pool: int = 1
    zipf: float = 0.0
    in_turn: bool = False


def text_tokens(level: PrefixLevel, seed: int) -> Ints:
    """Length of each text of a level."""
    return sample(level.tokens, stream(seed, "prefix", level.name, "tokens"), level.pool)


def draw(level: PrefixLevel, rng: np.random.Generator, count: int) -> Ints:
    """Text index of each of `count` requests at this level; a longer draw extends a shorter one."""
    if level.pool == 1:
        return np.zeros(count, dtype=np.int64)
    if level.in_turn:
        return np.arange(count, dtype=np.int64) % level.pool
    cumulated = np.cumsum(np.arange(1, level.pool + 1, dtype=np.float64) ** -level.zipf)
    drawn = np.searchsorted(cumulated, rng.random(count) * cumulated[-1], side="right")
    return np.asarray(np.minimum(drawn, level.pool - 1), dtype=np.int64)


def beginnings(
    levels: tuple[PrefixLevel, ...], client: str, seed: int, count: int
) -> tuple[list[Content], NDArray[np.intp]]:
    """The distinct prefixes of `count` requests of a client, and the index of each request's prefix."""
    contents: list[Content] = [()]
    which = np.zeros(count, dtype=np.intp)
    for level in levels:
        chosen = draw(level, stream(seed, "client", client, "prefix", level.name), count)
        paths, which = np.unique(which * level.pool + chosen, return_inverse=True)
        tokens = text_tokens(level, seed).tolist()
        contents = [
            (*contents[above], (f"{level.name}/{text}", tokens[text]))
            for above, text in (divmod(path, level.pool) for path in paths.tolist())
        ]
    return contents, which
