"""Several examples side by side in one row: on a CPU padding costs as much as learning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from engine.tiny.vocab import PAD

IGNORE = -100


class Example(NamedTuple):
    """Input tokens and, for each, the token to predict there or `IGNORE`."""

    ids: list[int]
    labels: list[int]


@dataclass(frozen=True)
class Batch:
    """Examples packed into rows; all tensors are [rows, width] int64."""

    ids: Tensor
    labels: Tensor
    positions: Tensor  # within the example
    documents: Tensor  # index of the example, -1 in the empty rest of a row


def pack(examples: list[Example], width: int) -> Batch:
    """First-fit decreasing: longest first, each into the first row with room."""
    rows: list[list[int]] = []
    room: list[int] = []
    for index in sorted(range(len(examples)), key=lambda i: -len(examples[i].ids)):
        length = len(examples[index].ids)
        row = next((i for i, free in enumerate(room) if free >= length), len(rows))
        if row == len(rows):
            rows.append([])
            room.append(width)
        rows[row].append(index)
        room[row] -= length
    shape = (len(rows), width)
    ids, labels = torch.full(shape, PAD), torch.full(shape, IGNORE)
    positions, documents = torch.zeros(shape, dtype=torch.int64), torch.full(shape, -1)
    for row, members in enumerate(rows):
        start = 0
        for index in members:
            here = slice(start, start := start + len(examples[index].ids))
            ids[row, here] = torch.tensor(examples[index].ids)
            labels[row, here] = torch.tensor(examples[index].labels)
            positions[row, here] = torch.arange(len(examples[index].ids))
            documents[row, here] = index
    return Batch(ids, labels, positions, documents)
