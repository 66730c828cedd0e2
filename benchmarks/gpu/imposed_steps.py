"""ImposedSteps: as many rounds per block as a distribution says, for measuring with weights of no meaning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from engine.diffusion.blocks import Blocks, Logits, State, Tensor
from engine.kernels.denoise import Rule, denoise


class ImposedDenoiseSteps(Protocol):
    """A distribution of denoise rounds per block, each at least 1."""

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.int64]: ...


@dataclass(frozen=True)
class ImposedSteps:
    """Algorithm that fills each block evenly from the left, in a drawn number of rounds.

    Every round runs the step kernel as `LowConfidence` would, and leaves its tokens aside.
    """

    steps: ImposedDenoiseSteps
    rng: np.random.Generator

    def max_rounds(self, block_tokens: int) -> int:
        return block_tokens + 1

    def init_step_state(self, blocks: Blocks) -> State:
        drawn = self.steps.draw(self.rng, len(blocks.ids))
        return {"left": torch.from_numpy(drawn).to(blocks.ids.device)}

    def needs_logits(self, blocks: Blocks, state: State) -> Tensor:
        """See `Algorithm.needs_logits`."""
        return blocks.masked

    def step(self, blocks: Blocks, logits: Logits, state: State) -> Tensor:
        """See `Algorithm.step`."""
        masked, left = blocks.masked, state["left"].clamp_min(1)
        take = (masked.sum(dim=1) + left - 1) // left
        chosen = masked & (masked.cumsum(dim=1) <= take.unsqueeze(1))
        denoise(blocks.ids.clone(), blocks.answer, logits.values, logits.rows, blocks.mask_id, Rule(0.95))
        blocks.ids.masked_fill_(chosen, 1 if blocks.mask_id == 0 else 0)
        state["left"] -= 1
        return ~masked.any(dim=1)
