"""Interface of a denoising algorithm: the blocks it fills, and its methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

Tensor = torch.Tensor

State = dict[str, Tensor]
"""An algorithm's own notes, tensors `[B, ...]` with a row for each block; empty where it needs none."""


@dataclass(slots=True)
class Blocks:
    """B blocks of L positions on the device."""

    ids: Tensor
    """`[B, L]` int64, mask id where nothing is decided; the algorithm changes it in place."""
    answer: Tensor
    """`[B, L]` bool, false at positions that belong to the prompt: they never change."""
    mask_id: int

    @property
    def masked(self) -> Tensor:
        """`[B, L]` bool: positions to be filled. A mask token in a prompt is a token like any other."""
        return (self.ids == self.mask_id) & self.answer


@dataclass(slots=True)
class Logits:
    """Logits of the requested positions."""

    values: Tensor
    """`[R, V]` float32; may be overwritten."""
    rows: Tensor
    """`[R]` int64, block * L + position of each."""


class Algorithm(Protocol):
    """Denoising of blocks in a round, independent of batches, modes and requests.

    A block may be reported done only if its ids were final when the forward began: that forward has then
    written the keys and values that later blocks see.
    """

    def max_rounds(self, block_tokens: int) -> int:
        """A bound on the rounds of a block, the commit included."""
        ...

    def init_step_state(self, blocks: Blocks) -> State:
        """Initialise blocks that begin: prompt positions given, all others masked."""
        ...

    def needs_logits(self, blocks: Blocks, state: State) -> Tensor:
        """`[B, L]` bool: positions whose logits the next round needs; a block that needs none is final."""
        ...

    def step(self, blocks: Blocks, logits: Logits, state: State) -> Tensor:
        """One round: changes ids and state in place, returns `[B]` bool, who is done."""
        ...
