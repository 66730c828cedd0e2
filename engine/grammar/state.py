"""Where one output stands in its grammar."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


class Grammar:
    """The grammar of one request and the tokens it has taken: a state that follows the emitted tokens.

    It knows nothing of steps, so preemption, chunks and cached prefixes do not touch it.

    Args:
        matcher: xgrammar's, at the beginning.
        ends: whether there are tokens by which the output may end, where the grammar may.
        words: int32 words in a row of a bitmask.
        held_back: tokens that end the output, and may not before `min_tokens`.
    """

    __slots__ = ("_ends", "_held_back", "_min_tokens", "_scratch", "matcher", "taken")

    def __init__(
        self, matcher: Any, *, ends: bool, words: int, min_tokens: int = 0, held_back: Iterable[int] = ()
    ) -> None:
        self.matcher = matcher
        self.taken = 0
        """Tokens accepted so far."""
        self._ends = ends
        self._scratch = None if ends else torch.zeros((1, words), dtype=torch.int32)
        self._min_tokens, self._held_back = min_tokens, tuple(held_back)

    def accept(self, token: int) -> bool:
        """Goes on by a token; False, and nothing has changed, if it does not belong there.

        -1 is what sampling yields where nothing is allowed.
        """
        accepted = token >= 0 and bool(self.matcher.accept_token(token))
        self.taken += accepted
        return accepted

    def rollback(self, tokens: int = 1) -> None:
        """As before the latest tokens: those that have been sampled and then discarded."""
        self.matcher.rollback(tokens)
        self.taken -= tokens

    @property
    def complete(self) -> bool:
        """Whether the output is whole, can only end, and has no token to end by."""
        if self._scratch is None or not self.matcher.is_completed():
            return False
        self.matcher.fill_next_token_bitmask(self._scratch, 0)
        return not bool(self._scratch.any())

    @property
    def holding_back(self) -> bool:
        """Whether it is too early for the tokens that end an output."""
        return self.taken < self._min_tokens

    def hold_back(self, words: Any) -> None:
        """Forbids those in a row of a bitmask, given as numpy array."""
        for token in self._held_back:
            words[token >> 5] &= ~(1 << (token & 31)) if token & 31 != 31 else 0x7FFFFFFF

    def allowed(self, bitmask: torch.Tensor, row: int) -> None:
        """The tokens that may come next, as a row of an int32 bitmask on the host."""
        self.matcher.fill_next_token_bitmask(bitmask, row)
        if self.holding_back:
            self.hold_back(bitmask[row].numpy())

    def stuck(self) -> str:
        """Why it goes no further, for whoever sent the request."""
        where = f"the grammar allows no token after {self.taken}"
        if self.holding_back and self.matcher.is_completed():
            return f"{where}: the output may end there, but min_tokens = {self._min_tokens}"
        return f"{where}: the model has no token that would go on as the grammar demands"
