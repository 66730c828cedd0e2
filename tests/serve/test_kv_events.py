"""KV events by ZMQ."""

from __future__ import annotations

import asyncio
import struct
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("zmq")
pytest.importorskip("fastapi")
pytest.importorskip("prometheus_client")

import zmq
from serving import FAST, HANGS_S, client_of, config

from blis_py.serve.fleet.build import build_fleet
from blis_py.serve.fleet.kv_events import BlockHashes, cbor, msgpack


def unpack(data: bytes, at: int = 0) -> tuple[Any, int]:
    """A value of msgpack, and where the next one begins."""
    first = data[at]
    if first < 0x80:
        return first, at + 1
    if 0x90 <= first < 0xA0 or first == 0xDD:
        count, at = (
            (first & 15, at + 1) if first != 0xDD else (struct.unpack_from(">I", data, at + 1)[0], at + 5)
        )
        items = []
        for _ in range(count):
            item, at = unpack(data, at)
            items.append(item)
        return items, at
    if 0xA0 <= first < 0xC0:
        end = at + 1 + (first & 31)
        return data[at + 1 : end].decode(), end
    if first == 0xC0:
        return None, at + 1
    form = {0xCB: ">d", 0xCF: ">Q"}[first]
    return struct.unpack_from(form, data, at + 1)[0], at + 9


def test_values_survive_their_encoding() -> None:
    value = [1, 127, 128, 2**64 - 1, 1.5, "BlockStored", None, list(range(20))]
    assert unpack(msgpack(value))[0] == value


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (0, "00"),
        (23, "17"),
        (24, "1818"),
        (1000, "1903e8"),
        (1000000, "1a000f4240"),
        ((1, (2, 3), None), "83"),
        ("a", "6161"),
        (b"\x01", "4101"),
    ],
)
def test_numbers_are_encoded_as_the_standard_says(value: object, code: str) -> None:
    if isinstance(value, tuple):
        assert cbor(value).hex() == "8301820203f6"
    else:
        assert cbor(value).hex() == code


def test_equal_blocks_behind_equal_prefixes_have_equal_hashes() -> None:
    hashes = BlockHashes(2, "0")
    hashes.note(["a", "b"], [1, 2, 3, 4])
    hashes.note(["c", "d"], [1, 2, 3, 5])
    own, before, tokens = hashes.of_key["d"]
    assert hashes.of_key["a"][0] == hashes.of_key["c"][0] == before
    assert own != hashes.of_key["b"][0]
    assert tokens == (3, 5)


def test_stored_blocks_are_published_with_their_tokens() -> None:
    endpoint = "inproc://kv-events"
    fleet = build_fleet(config(), replace(FAST, kv_events=endpoint))
    reader = zmq.Context.instance().socket(zmq.SUB)
    reader.connect(endpoint)
    reader.setsockopt(zmq.SUBSCRIBE, b"kv-events")
    prompt = "one two three four " * 20

    async def use() -> list[int]:
        await fleet.backend.start()
        async with client_of(fleet.backend) as client:
            ids = (await client.post("/tokenize", json={"prompt": prompt})).json()["tokens"]
            await client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 4})
            await client.post("/reset_prefix_cache")
        await fleet.backend.stop()
        return list(ids)

    ids = asyncio.run(use())
    messages: list[Any] = []
    while not any(event == ["AllBlocksCleared"] for _, batch, _ in messages for event in batch):
        assert reader.poll(1000 * HANGS_S)
        topic, number, batch = reader.recv_multipart()
        assert topic == b"kv-events"
        assert struct.unpack(">Q", number)[0] == len(messages)
        messages.append(unpack(batch)[0])
    assert not reader.poll(0)
    reader.close(linger=0)
    events = [event for _, batch, _ in messages for event in batch]
    stored = [event for event in events if event[0] == "BlockStored"]
    tokens = [token for event in stored for token in event[3]]
    assert tokens[: len(ids) // 16 * 16] == ids[: len(ids) // 16 * 16]
    assert stored[0][2] is None
    assert events[-1] == ["AllBlocksCleared"]
