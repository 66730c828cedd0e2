"""Synthetic prompts of token ids for a workload that gives only lengths and shared prefixes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from blis_py.requests.streams import stream
from blis_py.requests.table import Content, RequestTable

_SEGMENTS, _OWN = "segment", "own"


def as_prompted(table: RequestTable) -> RequestTable:
    """The table restricted to the sharing that synthetic prompts reproduce.

    In a table an answer can be part of a shared text (the next turn of a conversation repeats it). Synthetic
    prompts cannot contain the model's future answers, so sharing ends with the prompt.
    """
    contents: dict[Content, int] = {}
    places = []
    for row, place in enumerate(table.content.tolist()):
        runs = _beginning(table.contents[place], int(table.prompt_tokens[row])) if place >= 0 else ()
        places.append(contents.setdefault(runs, len(contents)) if runs else -1)
    return replace(table, content=np.array(places, dtype=np.int64), contents=tuple(contents))


def _beginning(runs: Content, tokens: int) -> Content:
    """The first `tokens` tokens of shared runs."""
    kept = []
    for segment, length in runs:
        if tokens > 0:
            kept.append((segment, min(length, tokens)))
        tokens -= length
    return tuple(kept)


def synthetic_prompts(table: RequestTable, vocab_size: int, seed: int) -> list[list[int]]:
    """One prompt per request, with exactly the shared tokens that the table describes.

    Each segment is a random token stream of its own, of which a prompt takes a prefix; tokens outside of
    segments are random and unique to the request.
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
