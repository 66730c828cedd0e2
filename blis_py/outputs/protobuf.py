"""The wire format of protocol buffers: fields of a message as bytes."""

from __future__ import annotations

import struct

_VARINT, _FIXED64, _BYTES = 0, 1, 2
_SMALL = tuple(bytes((value,)) for value in range(128))


def varint(value: int) -> bytes:
    """An unsigned number, seven bits a byte; negative ones as 64 bits in two's complement."""
    if 0 <= value < 128:
        return _SMALL[value]
    value &= (1 << 64) - 1
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def number(field: int, value: int) -> bytes:
    """A field with a whole number."""
    return varint(field << 3 | _VARINT) + varint(value)


def fixed64(field: int, value: int) -> bytes:
    """A field with 64 bits."""
    return varint(field << 3 | _FIXED64) + struct.pack("<Q", value & (1 << 64) - 1)


def double(field: int, value: float) -> bytes:
    """A field with a floating-point number."""
    return varint(field << 3 | _FIXED64) + struct.pack("<d", value)


def data(field: int, value: bytes) -> bytes:
    """A field with a message or bytes."""
    return varint(field << 3 | _BYTES) + varint(len(value)) + value


def text(field: int, value: str) -> bytes:
    """A field with text."""
    return data(field, value.encode())
