"""KV events of simulated instances by ZMQ, as vLLM publishes them.

A message has three frames: topic, sequence number (8 bytes, big-endian), and a batch in msgpack,
`[timestamp, [event, ...], rank]`. Events are `BlockStored`, `BlockRemoved` and `AllBlocksCleared`. Block
hashes are vLLM's `sha256_cbor`, of which the lower 64 bits are published, as it does by default.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Hashable, Sequence
from hashlib import sha256
from typing import Any

from blis_py.core.blocks import CacheChanges
from blis_py.errors import InputError

_MASK = (1 << 64) - 1


def cbor(value: Any) -> bytes:
    """Canonical CBOR of whole numbers, texts, bytes, sequences and None."""
    if value is None:
        return b"\xf6"
    if isinstance(value, int):
        return _head(0, value)
    if isinstance(value, bytes):
        return _head(2, len(value)) + value
    if isinstance(value, str):
        return _head(3, len(value.encode())) + value.encode()
    return _head(4, len(value)) + b"".join(map(cbor, value))


def _head(kind: int, number: int) -> bytes:
    for size, form, code in ((24, "", 0), (1 << 8, ">B", 24), (1 << 16, ">H", 25), (1 << 32, ">I", 26)):
        if number < size:
            first = kind << 5 | (code or number)
            return bytes([first]) + (struct.pack(form, number) if code else b"")
    return bytes([kind << 5 | 27]) + struct.pack(">Q", number)


def msgpack(value: Any) -> bytes:
    """Msgpack of whole numbers, fractions, texts, sequences and None."""
    if value is None:
        return b"\xc0"
    if isinstance(value, float):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, int):
        return bytes([value]) if 0 <= value < 128 else b"\xcf" + struct.pack(">Q", value)
    if isinstance(value, str):
        data = value.encode()
        return (
            bytes([0xA0 | len(data)]) if len(data) < 32 else b"\xdb" + struct.pack(">I", len(data))
        ) + data
    head = bytes([0x90 | len(value)]) if len(value) < 16 else b"\xdd" + struct.pack(">I", len(value))
    return head + b"".join(map(msgpack, value))


class BlockHashes:
    """vLLM's hashes of blocks of tokens.

    Args:
        seed: PYTHONHASHSEED of the servers to be imitated.
    """

    def __init__(self, block_size: int, seed: str) -> None:
        self._block_size, self._none = block_size, sha256(cbor(seed)).digest()
        self.of_key: dict[Hashable, tuple[int, int | None, tuple[int, ...]]] = {}
        """Hash, hash of the block before, and tokens of each block, by its key in the simulation."""

    def note(self, keys: Sequence[Hashable], ids: Sequence[int]) -> None:
        """Note the blocks of a sequence."""
        size, parent, before = self._block_size, self._none, None
        for number, key in enumerate(keys):
            tokens = tuple(ids[number * size : (number + 1) * size])
            parent = sha256(cbor((parent, tokens, None))).digest()
            own = int.from_bytes(parent, "big") & _MASK
            self.of_key.setdefault(key, (own, before, tokens))
            before = own


class KVEvents:
    """Publisher of the KV events of all instances of a fleet.

    Args:
        endpoint: where it listens, as `tcp://127.0.0.1:5557`; instance i publishes as rank i.
        topic: first frame of every message.

    Raises:
        InputError: an endpoint that cannot be bound, or pyzmq is missing.
    """

    def __init__(self, endpoint: str, topic: str, hashes: BlockHashes) -> None:
        self.hashes, self._topic = hashes, topic.encode()
        self._logs: list[CacheChanges] = []
        self._number, self._waits = 0, False
        try:
            import zmq

            self._socket: Any = zmq.Context.instance().socket(zmq.PUB)
            self._socket.bind(endpoint)
        except ImportError:
            raise InputError("needs the package pyzmq", key="--kv-events", fix="pip install pyzmq") from None
        except zmq.ZMQError as error:
            fix = "write tcp://127.0.0.1:5557"
            raise InputError(f"cannot listen: {error}", key="--kv-events", value=endpoint, fix=fix) from None

    def follow(self, log: CacheChanges) -> None:
        """Publish the changes of one more instance."""
        self._logs.append(log)

    def changed(self, tokens: int) -> None:
        """Publish soon, once for all steps of this turn of the event loop."""
        if not self._waits:
            self._waits = True
            asyncio.get_running_loop().call_soon(self.publish)

    def publish(self) -> None:
        """Publish what has changed."""
        self._waits = False
        for rank, log in enumerate(self._logs):
            if log:
                changes, log[:] = list(log), []
                self._send(self._events(changes), rank)

    def cleared(self) -> None:
        """All caches have been reset."""
        for rank, log in enumerate(self._logs):
            log.clear()
            self._send([["AllBlocksCleared"]], rank)

    def _send(self, events: list[list[Any]], rank: int) -> None:
        if events:
            batch = msgpack([time.time(), events, rank])
            self._socket.send_multipart((self._topic, struct.pack(">Q", self._number), batch))
            self._number += 1

    def _events(self, changes: CacheChanges) -> list[list[Any]]:
        known, events = self.hashes.of_key, list[list[Any]]()
        for begins, keys in changes:
            blocks = [known[key] for key in keys if key in known]
            if not blocks:
                continue
            hashes = [own for own, _, _ in blocks]
            if begins:
                tokens = [token for _, _, own in blocks for token in own]
                size = len(blocks[0][2])
                events.append(["BlockStored", hashes, blocks[0][1], tokens, size, None, "GPU"])
            else:
                events.append(["BlockRemoved", hashes, "GPU"])
        return events

    def close(self) -> None:
        self._socket.close(linger=0)
