"""JointThreshold: fill masks with a lower threshold, and correct what turns out wrong."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.diffusion.blocks import Blocks, Logits, State, Tensor
from engine.kernels.denoise import Rule, denoise


@dataclass(frozen=True, slots=True)
class JointThreshold:
    """Mask to token: positions above `threshold`, at least the most confident one. Token to token: any
    position of the answer whose best token is another one, with a probability above `edit_threshold`; also
    while masks remain, and for at most `max_post_edit_steps` rounds after the last of them.

    A round that changes nothing ends the block: its forward had the final tokens as input. `penalty_lambda`
    is subtracted from each position's logit of the token before it, against repetitions.
    """

    threshold: float = 0.5
    edit_threshold: float = 0.0
    max_post_edit_steps: int = 16
    penalty_lambda: float = 0.0

    def max_rounds(self, block_tokens: int) -> int:
        return block_tokens + self.max_post_edit_steps + 1

    def init_step_state(self, blocks: Blocks) -> State:
        return {"post_edit_steps": torch.zeros(len(blocks.ids), dtype=torch.int32, device=blocks.ids.device)}

    def needs_logits(self, blocks: Blocks, state: State) -> Tensor:
        """See `Algorithm.needs_logits`."""
        return blocks.answer

    def step(self, blocks: Blocks, logits: Logits, state: State) -> Tensor:
        """See `Algorithm.step`."""
        rule = Rule(
            self.threshold,
            edit_threshold=self.edit_threshold,
            max_edit_rounds=self.max_post_edit_steps,
            penalty=self.penalty_lambda,
        )
        edit_rounds = state["post_edit_steps"]
        return denoise(
            blocks.ids, blocks.answer, logits.values, logits.rows, blocks.mask_id, rule, edit_rounds
        )
