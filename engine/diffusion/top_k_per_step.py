"""TopKPerStep: a fixed number of positions per round, whatever their confidence."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.diffusion.blocks import Blocks, Logits, State, Tensor
from engine.kernels.denoise import best_tokens, most_confident


@dataclass(frozen=True, slots=True)
class TopKPerStep:
    """Algorithm that unmasks the `tokens_per_step` most confident positions of each block, in plain torch."""

    tokens_per_step: int = 4

    def max_rounds(self, block_tokens: int) -> int:
        return -(-block_tokens // self.tokens_per_step) + 1

    def init_step_state(self, blocks: Blocks) -> State:
        return {}

    def needs_logits(self, blocks: Blocks, state: State) -> Tensor:
        """See `Algorithm.needs_logits`."""
        return blocks.masked

    def step(self, blocks: Blocks, logits: Logits, state: State) -> Tensor:
        """See `Algorithm.step`."""
        masked = blocks.masked
        tokens, confidence = best_tokens(blocks.ids, logits.values, logits.rows, blocks.mask_id)
        chosen = masked & most_confident(confidence.masked_fill(~masked, -torch.inf), self.tokens_per_step)
        blocks.ids.copy_(torch.where(chosen, tokens, blocks.ids))
        return ~masked.any(dim=1)
