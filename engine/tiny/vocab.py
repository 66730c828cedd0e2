"""Byte-level tokens: ids 0..255 are UTF-8 bytes, a few specials follow."""

from __future__ import annotations

from collections.abc import Iterable

PAD, EOS, MASK = 256, 257, 258
VOCAB_SIZE = 264  # padded to a multiple of 8; ids 259..263 are never used


def encode(text: str) -> list[int]:
    return list(text.encode())


def decode(ids: Iterable[int]) -> str:
    """The text before the first EOS; other specials are left out."""
    kept = bytearray()
    for token in ids:
        if token == EOS:
            break
        if token < 256:
            kept.append(token)
    return kept.decode(errors="replace")
