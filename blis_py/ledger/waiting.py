"""Why a request that waits was not let into a step.

The question is asked as if it had stood first in line. If it would not have come in even then, what it lacked
is the cause: a slot, KV blocks, token budget. If it would have, those ahead of it are, and what they took or
lacked is told.
"""

from __future__ import annotations

from dataclasses import dataclass

from blis_py.ledger.lines import Line


@dataclass(frozen=True, slots=True)
class Door:
    """What a step had to give to whoever waited, before and after it let some of them in."""

    slots: int
    slots_left: int
    budget: int
    """Tokens that those who run left."""
    budget_left: int
    whole_budget: int
    """Of a step."""
    least_tokens: int
    """Less budget than this is none."""
    longest_chunk: int
    whole_prompts: bool
    """A prompt comes whole or not at all, unless it is longer than any step."""
    free_blocks: int
    block_size: int
    closed: bool
    """Somebody was preempted in the step, so nobody is let in."""
    held_back: bool
    """Everybody who waits shares a prefix with somebody who computes it."""

    def refuses(self, tokens: int) -> Line:
        """Why a request that lacks so many tokens, as if nothing of them were cached, is not in the step."""
        if self.slots <= 0:
            return Line.NO_SLOT
        if self.closed:
            return Line.NO_KV
        if self._too_little(tokens, self.budget):
            return Line.NO_BUDGET
        first = max(min(tokens, self.longest_chunk, self.budget), 1)
        if -(-first // self.block_size) > self.free_blocks:
            return Line.NO_KV
        return self._line_ahead(tokens)

    def _line_ahead(self, tokens: int) -> Line:
        if self.slots_left <= 0:
            return Line.BEHIND_SLOT
        if self.held_back:
            return Line.HELD_BACK
        return Line.BEHIND_BUDGET if self._too_little(tokens, self.budget_left) else Line.BEHIND_KV

    def _too_little(self, tokens: int, budget: int) -> bool:
        cut = self.whole_prompts and min(tokens, self.longest_chunk) > budget
        return budget < self.least_tokens or (cut and budget < self.whole_budget)
