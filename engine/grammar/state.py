"""The state of one output in its grammar."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from engine.grammar.vocabulary import Words


class Grammar:
    """Grammar of one request, and its state after the emitted tokens.

    It is independent of steps, so preemption, chunks and cached prefixes do not affect it.

    Args:
        matcher: xgrammar's, in its initial state.
        ends: whether the output has end tokens, allowed where the grammar may end.
        words: int32 words in a bitmask row.
        followers: by tokens that end within a character, a bitmask row of the tokens that may follow.
        held_back: end tokens not allowed before `min_tokens`.
    """

    __slots__ = ("_followers", "_held_back", "_matcher", "_min_tokens", "_scratch", "tokens")

    def __init__(
        self,
        matcher: Any,
        *,
        ends: bool,
        words: int,
        followers: Mapping[int, Words],
        min_tokens: int = 0,
        held_back: Iterable[int] = (),
    ) -> None:
        self._matcher = matcher
        self.tokens: list[int] = []
        """Number of accepted tokens."""
        self._followers = followers
        self._scratch = None if ends else torch.zeros((1, words), dtype=torch.int32)
        self._min_tokens, self._held_back = min_tokens, tuple(held_back)

    def accept(self, token: int) -> bool:
        """Advance by a token; False, with the state unchanged, if the grammar does not allow it.

        -1 is sampled where no token is allowed.
        """
        if token < 0 or not self._matcher.accept_token(token):
            return False
        self.tokens.append(token)
        return True

    def rollback(self, tokens: int = 1) -> None:
        """Undo the latest tokens, which were sampled and then discarded."""
        if tokens:
            self._matcher.rollback(tokens)
            del self.tokens[-tokens:]

    @property
    def complete(self) -> bool:
        """Whether the output is complete, can only end, and has no token to end with."""
        if self._scratch is None or not self._matcher.is_completed():
            return False
        self._matcher.fill_next_token_bitmask(self._scratch, 0)
        return not bool(self._scratch.any())

    @property
    def holding_back(self) -> bool:
        """Whether end tokens are still held back."""
        return len(self.tokens) < self._min_tokens

    def _restrict(self, words: Words) -> None:
        """Intersect a bitmask row with the matcher's tokens and the output's own restrictions."""
        follow = self._followers.get(self.tokens[-1]) if self.tokens else None
        if follow is not None:
            words &= follow
        for token in self._held_back if self.holding_back else ():
            words[token >> 5] &= ~(1 << (token & 31)) if token & 31 != 31 else 0x7FFFFFFF

    def stuck(self) -> str:
        """Message for the client on a grammar without an allowed token."""
        where = f"the grammar allows no token after {len(self.tokens)}"
        if self.holding_back and self._matcher.is_completed():
            return f"{where}: the output may end there, but min_tokens = {self._min_tokens}"
        return f"{where}: the model has no token that would go on as the grammar demands"


def allowed(grammars: list[Grammar], bitmask: torch.Tensor, rows: list[int], batch: Any) -> None:
    """Fill rows of an int32 bitmask `[B, ceil(V / 32)]` on the host with the allowed next tokens, one row a
    grammar.

    Args:
        batch: xgrammar's matcher of batches.
    """
    if not grammars:
        return
    batch.batch_fill_next_token_bitmask([grammar._matcher for grammar in grammars], bitmask, rows)
    words: NDArray[np.int32] = bitmask.numpy()
    for grammar, row in zip(grammars, rows, strict=True):
        grammar._restrict(words[row])
