"""LowConfidence: take what is certain, and at least the best of what is not."""

from __future__ import annotations

from dataclasses import dataclass

from engine.diffusion.blocks import Blocks, Logits, State, Tensor
from engine.kernels.denoise import Rule, denoise


@dataclass(frozen=True, slots=True)
class LowConfidence:
    """Unmasks every position whose best token has a probability above `threshold`, at least the most
    confident one. What is unmasked stays. A block of d such rounds takes d + 1 forwards.
    """

    threshold: float = 0.95

    def max_rounds(self, block_tokens: int) -> int:
        return block_tokens + 1

    def init_step_state(self, blocks: Blocks) -> State:
        return {}

    def needs_logits(self, blocks: Blocks, state: State) -> Tensor:
        """See `Algorithm.needs_logits`."""
        return blocks.masked

    def step(self, blocks: Blocks, logits: Logits, state: State) -> Tensor:
        """See `Algorithm.step`."""
        rule = Rule(self.threshold)
        return denoise(blocks.ids, blocks.answer, logits.values, logits.rows, blocks.mask_id, rule)
