"""Reasons why a waiting request was not admitted to a step.

The check assumes that the request is at the head of the queue. If it would not have been admitted even then,
the cause is what it lacked: a slot, KV blocks, token budget. Otherwise the cause is the requests ahead of it,
and what they took or lacked is reported.
"""

from __future__ import annotations

from dataclasses import dataclass

from blis_py.core.blocks import block_count
from blis_py.ledger.lines import LedgerLine


@dataclass(frozen=True, slots=True)
class AdmissionState:
    """The resources of a step for waiting requests, before and after its admissions."""

    slots: int
    slots_left: int
    budget_tokens: int
    """Tokens left by the running requests."""
    budget_left_tokens: int
    whole_budget_tokens: int
    """Token budget of a whole step."""
    least_tokens: int
    """A budget below this counts as none."""
    longest_chunk: int
    whole_prompts: bool
    """Whether a prompt is computed whole or not at all, unless it is longer than any step."""
    free_blocks: int
    block_size: int
    closed: bool
    """Whether a request was preempted in the step, so that none is admitted."""
    held_back: bool
    """Whether all waiting requests share a prefix with a prompt being computed."""
    whole_sequence: bool = False
    """Whether the KV of a whole prompt must fit, not only that of its first chunk."""
    no_prompts: bool = False
    """Whether the step computes no prompts, as only some steps do."""

    def refuses(self, tokens: int) -> LedgerLine:
        """The reason why a request that lacks so many tokens, assuming no cache hits, is not in the step."""
        if self.slots <= 0:
            return LedgerLine.NO_SLOT
        if self.closed:
            return LedgerLine.NO_KV
        if self.no_prompts:
            return LedgerLine.NO_PROMPTS
        if self._too_little(tokens, self.budget_tokens):
            return LedgerLine.NO_BUDGET
        first = tokens if self.whole_sequence else max(min(tokens, self.longest_chunk, self.budget_tokens), 1)
        if block_count(first, self.block_size) > self.free_blocks:
            return LedgerLine.NO_KV
        return self._line_ahead(tokens)

    def _line_ahead(self, tokens: int) -> LedgerLine:
        if self.slots_left <= 0:
            return LedgerLine.BEHIND_SLOT
        if self.held_back:
            return LedgerLine.HELD_BACK
        return (
            LedgerLine.BEHIND_BUDGET
            if self._too_little(tokens, self.budget_left_tokens)
            else LedgerLine.BEHIND_KV
        )

    def _too_little(self, tokens: int, budget_tokens: int) -> bool:
        cut = self.whole_prompts and min(tokens, self.longest_chunk) > budget_tokens
        return budget_tokens < self.least_tokens or (cut and budget_tokens < self.whole_budget_tokens)
