"""The bytes of each token of a vocabulary."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blis_py.errors import InputError
from engine.models.tokenizer import ByteTokenizer, JsonTokenizer, Tokenizer

SPECIAL = b""
"""Marks a token without text, such as an end of sequence: no grammar allows it within an output."""

Words = NDArray[np.int32]
"""One bitmask row."""

_SECOND_BYTES = {0xE0: (0xA0, 0xBF), 0xED: (0x80, 0x9F), 0xF0: (0x90, 0xBF), 0xF4: (0x80, 0x8F)}
"""First bytes of characters that do not accept every continuation byte."""
_NO_CHARACTER = re.compile(rb"\xe0[\x80-\x9f]|\xed[\xa0-\xbf]|\xf0[\x80-\x8f]|\xf4[\x90-\xbf]")
_WORD_START = "\u2581"
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def token_bytes(tokenizer: Tokenizer, vocab_size: int) -> list[bytes]:
    """Bytes added to a text by every token id below `vocab_size`; `SPECIAL` if none.

    Raises:
        InputError: a tokenizer whose tokens do not decode independently.
    """
    if isinstance(tokenizer, ByteTokenizer):
        return [bytes([token]) if token < 256 else SPECIAL for token in range(vocab_size)]
    if not isinstance(tokenizer, JsonTokenizer):
        raise _unknown(type(tokenizer).__name__)
    described = json.loads(tokenizer.described())
    decode = _decoder(described)
    texts = [SPECIAL] * vocab_size
    added = {token["id"]: token for token in described.get("added_tokens") or ()}
    for text, token in tokenizer.vocabulary().items():
        if token < vocab_size and token not in added:
            texts[token] = decode(text)
    for token, about in added.items():
        if token < vocab_size and not about["special"]:
            texts[token] = about["content"].encode()
    return [SPECIAL if _NO_CHARACTER.search(text) else text for text in texts]


def followers(bytes_of: list[bytes]) -> dict[int, Words]:
    """Tokens that may follow one ending behind the first byte of a character, by that token.

    The matcher alone would allow invalid UTF-8 (surrogates, overlong forms).
    """
    words_of: dict[int, Words] = {}
    tables: dict[int, Words] = {}
    for token, text in enumerate(bytes_of):
        if text and text[-1] in _SECOND_BYTES:
            first = text[-1]
            if first not in tables:
                tables[first] = _beginning_with(bytes_of, *_SECOND_BYTES[first])
            words_of[token] = tables[first]
    return words_of


def _beginning_with(bytes_of: list[bytes], least: int, most: int) -> Words:
    allowed = np.zeros(-(-len(bytes_of) // 32) * 32, dtype=np.uint8)
    allowed[[token for token, text in enumerate(bytes_of) if text and least <= text[0] <= most]] = 1
    return np.packbits(allowed, bitorder="little").view(np.int32)


def _decoder(described: dict[str, Any]) -> Any:
    """Decoder of token names in a vocabulary to bytes."""
    decoder = described.get("decoder") or {}
    steps = decoder.get("decoders", [decoder])
    kinds = [step.get("type") for step in steps]
    if "ByteLevel" in kinds:
        return lambda text: bytes(_BYTE_OF[char] for char in text if char in _BYTE_OF)
    if "ByteFallback" in kinds or "Metaspace" in kinds:
        return _with_word_starts
    raise _unknown(" + ".join(map(str, kinds)))


def _with_word_starts(text: str) -> bytes:
    byte = _BYTE.fullmatch(text)
    return bytes([int(byte[1], 16)]) if byte else text.replace(_WORD_START, " ").encode()


def _byte_level() -> dict[str, int]:
    """The alphabet of byte-level BPE: printable bytes as themselves, others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_OF = _byte_level()


def _unknown(kind: str) -> InputError:
    fix = "use a model whose tokenizer is byte-level, has byte fallback, or is none but bytes"
    return InputError(
        "cannot be used with a tokenizer of this kind", key="structured_outputs", value=kind, fix=fix
    )
