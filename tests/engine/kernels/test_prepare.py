"""Decode inputs made on the device: what they are, and that both implementations agree."""

from __future__ import annotations

import pytest
import torch

from engine.kernels import backend
from engine.kernels.prepare import DecodeInputs, DecodeState, prepare_decodes

interpreted = pytest.mark.skipif(
    torch.cuda.is_available(), reason="tests/gpu runs these kernels on the device"
)


def state(slots: int, width: int, page_size: int, seed: int = 0) -> DecodeState:
    """Sequences of random lengths with tables of distinct pages, and one entry of padding."""
    rng = torch.Generator().manual_seed(seed)
    positions = torch.randint(0, width * page_size, (slots + 1,), generator=rng)
    positions[-1] = -1
    tokens = torch.randint(0, 1000, (slots + 1,), generator=rng)
    tables = torch.randperm((slots + 1) * width, generator=rng).view(slots + 1, width).int()
    return DecodeState(tokens, positions, tables)


def empty(rows: int, width: int) -> DecodeInputs:
    wide = [torch.full((rows,), -7) for _ in range(3)]
    return DecodeInputs(*wide, torch.full((rows,), -7).int(), torch.zeros(rows, width).int())


def test_inputs_are_those_of_each_sequence_and_padding_stores_nothing() -> None:
    known = DecodeState(
        torch.tensor([50, 51, 52]), torch.tensor([15, 16, -1]), torch.tensor([[3, 4], [5, 6], [0, 0]]).int()
    )
    made = empty(3, 2)
    prepare_decodes(torch.tensor([1, 0, 2]), known, 16, made)
    assert made.input_ids.tolist() == [51, 50, 0]
    assert made.positions.tolist() == [16, 15, 0]
    assert made.slots.tolist() == [6 * 16, 3 * 16 + 15, -1]
    assert made.seq_lens.tolist() == [17, 16, 0]
    assert made.block_tables[0].tolist() == [5, 6]
    assert made.block_tables[1, 0] == 3
    assert known.positions.tolist() == [16, 17, -1], "each moves on, padding never"


@interpreted
@pytest.mark.parametrize(("rows", "width", "page"), [(1, 1, 16), (5, 3, 16), (9, 300, 32), (4, 2, 256)])
def test_the_triton_kernel_agrees_with_the_reference(rows: int, width: int, page: int) -> None:
    slots = torch.cat([torch.randperm(12)[: rows - 1], torch.tensor([12])])
    ours, theirs = state(12, width, page), state(12, width, page)
    expected, found = empty(rows, width), empty(rows, width)
    for _ in range(2):
        prepare_decodes(slots, ours, page, expected)
        with backend.force("triton"):
            prepare_decodes(slots, theirs, page, found)
        for name in ("input_ids", "positions", "slots", "seq_lens"):
            assert torch.equal(getattr(found, name), getattr(expected, name)), name
        for row, length in enumerate(expected.seq_lens.tolist()):
            used = -(-length // page)
            assert torch.equal(found.block_tables[row, :used], expected.block_tables[row, :used])
        assert torch.equal(ours.positions, theirs.positions)
        for known in (ours, theirs):
            known.positions.clamp_(max=width * page - 1)
