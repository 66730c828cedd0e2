"""Content keys of blocks of real tokens, for an engine; a simulator has `KeySpace`."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

_KEY_BYTES = 16


def token_keys(token_ids: Sequence[int], block_size: int, parent: bytes = b"") -> list[bytes]:
    """Keys of the full blocks of `token_ids`, in order.

    Each is a 128-bit BLAKE2b hash of the key before it and the block's tokens, so it names the whole
    sequence up to the block's end.

    Args:
        parent: key of the block before the first one; empty at the beginning of a sequence.
    """
    data = array("i", token_ids).tobytes()
    width = len(data) // len(token_ids) * block_size if token_ids else 0
    keys = []
    for start in range(0, len(token_ids) // block_size * width, width or 1):
        parent = blake2b(parent + data[start : start + width], digest_size=_KEY_BYTES).digest()
        keys.append(parent)
    return keys
