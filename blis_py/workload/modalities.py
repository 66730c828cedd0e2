"""Prompts of text, images, audio and video: how many tokens of each, which together are the prompt's own.

An image, a clip and a video are so many tokens each, as the model's encoder makes them; what the encoder
takes for that is not priced.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from blis_py.core.bounds import MOST_TOKENS
from blis_py.requests.streams import stream
from blis_py.requests.table import MODALITIES, Ints
from blis_py.workload.lengths import Lengths, sample

OTHERS = MODALITIES[1:]
"""Modalities that come in pieces."""


class Multimodal(NamedTuple):
    """What the prompts of a client consist of.

    Attributes:
        text: tokens of text; None = no text.
        pieces: by modality, how many pieces a prompt has, and how many tokens a piece.
    """

    text: Lengths | None
    pieces: dict[str, tuple[Lengths, Lengths]]


def own_tokens(
    client: str, lengths: Lengths, multimodal: Multimodal | None, seed: int, count: int
) -> tuple[Ints, Ints | None]:
    """What so many prompts of a client add to what they share, and of which modalities it is, a column each.

    A longer draw extends a shorter one. A prompt has at least one token.
    """
    if multimodal is None:
        return sample(lengths, stream(seed, "client", client, "input"), count), None
    tokens = np.zeros((count, len(MODALITIES)), dtype=np.int64)
    if multimodal.text is not None:
        tokens[:, 0] = sample(multimodal.text, stream(seed, "client", client, "input"), count)
    for name, (pieces, lengths_of_one) in multimodal.pieces.items():
        draws = (stream(seed, "client", client, name, what) for what in ("pieces", "tokens"))
        how_many = sample(pieces, next(draws), count, least=0)
        ends = np.concatenate(([0], np.cumsum(sample(lengths_of_one, next(draws), int(how_many.sum())))))
        last = np.cumsum(how_many)
        tokens[:, MODALITIES.index(name)] = ends[last] - ends[last - how_many]
    return np.clip(tokens.sum(axis=1), 1, MOST_TOKENS), tokens
