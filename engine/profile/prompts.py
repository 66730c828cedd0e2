"""Distinct prompts."""

from __future__ import annotations

import random

import numpy as np
from numpy.typing import NDArray

from engine.models.tokenizer import Tokenizer
from engine.tiny.tasks import make

_STREAM_TOKENS = 1 << 16
_OWN_TOKENS = 4
"""Number of leading random tokens, which make prompts differ from their first block on."""


class ProfilePrompts:
    """Endless supply of token ids: text of the tiny tasks, or random tokens without a tokenizer.

    Args:
        tokenizer: `None` = random tokens.
    """

    def __init__(self, vocab_size: int, tokenizer: Tokenizer | None, seed: int) -> None:
        self._rng = random.Random(seed)
        self._vocab_size = vocab_size
        self._stream = self._text(tokenizer) if tokenizer is not None else self._random(_STREAM_TOKENS)
        self._array: NDArray[np.int64] = np.array(self._stream, dtype=np.int64)

    def take(self, length: int) -> list[int]:
        """A prompt of `length` tokens."""
        own = min(length, _OWN_TOKENS)
        tokens = self._random(own)
        while len(tokens) < length:
            start = self._rng.randrange(len(self._stream))
            tokens += self._stream[start : start + length - len(tokens)]
        return tokens

    def some(self, length: int) -> NDArray[np.int64]:
        """`[length]` tokens, not distinct from those of other calls."""
        if length > len(self._array):
            self._array = np.resize(self._array, 2 * length)
        start = self._rng.randrange(len(self._array) - length + 1)
        return self._array[start : start + length]

    def _random(self, count: int) -> list[int]:
        return [self._rng.randrange(self._vocab_size) for _ in range(count)]

    def _text(self, tokenizer: Tokenizer) -> list[int]:
        tokens: list[int] = []
        while len(tokens) < _STREAM_TOKENS:
            tokens += tokenizer.encode("".join(map("".join, (make(self._rng) for _ in range(256)))))
        return [token for token in tokens if token < self._vocab_size]
