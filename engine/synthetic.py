"""Prompts of token ids for a workload that only tells lengths and what is shared."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from blis_py.workload.streams import stream
from blis_py.workload.table import RequestTable

_SEGMENTS, _OWN = "segment", "own"


def synthetic_prompts(table: RequestTable, vocab_size: int, seed: int) -> list[list[int]]:
    """One prompt per request. Prompts share tokens exactly where the table says that they do.

    Each segment is a random stream of tokens of its own, of which a prompt takes the beginning; what no
    segment covers is random and the request's own.
    """
    segments: dict[str | int, NDArray[np.int64]] = {}
    longest: dict[str | int, int] = {}
    for content in table.contents:
        for segment, tokens in content:
            longest[segment] = max(longest.get(segment, 0), tokens)
    prompts = []
    for row in range(len(table)):
        length = int(table.prompt_tokens[row])
        parts: list[NDArray[np.int64]] = []
        for segment, tokens in table.contents[table.content[row]] if table.content[row] >= 0 else ():
            if segment not in segments:
                random = stream(seed, _SEGMENTS, str(segment))
                segments[segment] = random.integers(vocab_size, size=longest[segment])
            parts.append(segments[segment][:tokens])
        missing = length - sum(map(len, parts))
        if missing > 0:
            parts.append(stream(seed, _OWN, str(row)).integers(vocab_size, size=missing))
        prompts.append(np.concatenate(parts)[:length].tolist())
    return prompts
