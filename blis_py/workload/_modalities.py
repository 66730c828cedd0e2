"""Prompts of text, images, audio and video: tokens of each, which together are the unshared prompt.

An image, a clip and a video have the number of tokens that the model's encoder produces; the encoder's time
is not modelled.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from blis_py.core.bounds import MAX_TOKENS
from blis_py.requests.streams import stream
from blis_py.requests.table import MODALITIES, Ints
from blis_py.workload.lengths import Lengths, sample

OTHERS = MODALITIES[1:]
"""Modalities with pieces."""


class Multimodal(NamedTuple):
    """Prompt composition of a client.

    Attributes:
        text: tokens of text; None = no text.
        pieces: by modality, the number of pieces in a prompt, and the tokens of a piece.
    """

    text: Lengths | None
    pieces: dict[str, tuple[Lengths, Lengths]]


def own_tokens(
    client: str, lengths: Lengths, multimodal: Multimodal | None, seed: int, count: int
) -> tuple[Ints, Ints | None]:
    """Unshared tokens of `count` prompts, and their composition with a column for each modality.

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
    return np.clip(tokens.sum(axis=1), 1, MAX_TOKENS), tokens
