"""The two ways to run a batch of blocks, side by side: forward -> step again and again, but until when?

The same algorithm runs under either, and does not know which.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from blis_py.core.diffusion_request import BatchOutcome


class Rounds(Protocol):
    """A batch on the device."""

    block_tokens: int

    @property
    def has_prompts(self) -> bool:
        """Whether the batch computes prompt chunks, which take one round."""
        ...

    def forward(self) -> None:
        """The model on the blocks as they are; writes their keys and values."""
        ...

    def step(self) -> list[bool]:
        """The algorithm on the blocks still at work; returns for every block whether it is done."""
        ...


def run_sync(batch: Rounds) -> BatchOutcome:
    """Run rounds until every block is done; completed ones stay in the forwards of the others."""
    rounds, done_after = 0, dict[int, int]()
    while True:
        batch.forward()
        done = batch.step()
        rounds += 1
        for index, over in enumerate(done):
            if over:
                done_after.setdefault(index, rounds)
        if all(done):
            spent = [done_after[index] for index in range(len(done))]
            return BatchOutcome([batch.block_tokens] * len(done), rounds, spent)


def run_fdfo(batch: Rounds, must_yield: Callable[[], bool]) -> BatchOutcome:
    """Run rounds until the first block is done, or a request could join; the others go to another batch."""
    rounds = 0
    while True:
        batch.forward()
        done = batch.step()
        rounds += 1
        if any(done) or batch.has_prompts or must_yield():
            return BatchOutcome([batch.block_tokens if over else 0 for over in done], rounds)
