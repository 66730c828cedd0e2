"""Where one output stands in its grammar."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from engine.grammar.vocabulary import Words


class Grammar:
    """The grammar of one request and the tokens it has taken: a state that follows the emitted tokens.

    It knows nothing of steps, so preemption, chunks and cached prefixes do not touch it.

    Args:
        matcher: xgrammar's, at the beginning.
        ends: whether there are tokens by which the output may end, where the grammar may.
        words: int32 words in a row of a bitmask.
        followers: by tokens that end within a character, a row of the tokens that may follow.
        held_back: tokens that end the output, and may not before `min_tokens`.
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
        """Those accepted so far."""
        self._followers = followers
        self._scratch = None if ends else torch.zeros((1, words), dtype=torch.int32)
        self._min_tokens, self._held_back = min_tokens, tuple(held_back)

    def accept(self, token: int) -> bool:
        """Go on by a token; False, and nothing has changed, if it does not belong there.

        -1 is what sampling yields where nothing is allowed.
        """
        if token < 0 or not self._matcher.accept_token(token):
            return False
        self.tokens.append(token)
        return True

    def rollback(self, tokens: int = 1) -> None:
        """As before the latest tokens: those that have been sampled and then discarded."""
        if tokens:
            self._matcher.rollback(tokens)
            del self.tokens[-tokens:]

    @property
    def complete(self) -> bool:
        """Whether the output is whole, can only end, and has no token to end by."""
        if self._scratch is None or not self._matcher.is_completed():
            return False
        self._matcher.fill_next_token_bitmask(self._scratch, 0)
        return not bool(self._scratch.any())

    @property
    def holding_back(self) -> bool:
        """Whether it is too early for the tokens that end an output."""
        return len(self.tokens) < self._min_tokens

    def _restrict(self, words: Words) -> None:
        """Take from a row of a bitmask what the matcher allows and the output may not have."""
        follow = self._followers.get(self.tokens[-1]) if self.tokens else None
        if follow is not None:
            words &= follow
        for token in self._held_back if self.holding_back else ():
            words[token >> 5] &= ~(1 << (token & 31)) if token & 31 != 31 else 0x7FFFFFFF

    def stuck(self) -> str:
        """Why it goes no further, for whoever sent the request."""
        where = f"the grammar allows no token after {len(self.tokens)}"
        if self.holding_back and self._matcher.is_completed():
            return f"{where}: the output may end there, but min_tokens = {self._min_tokens}"
        return f"{where}: the model has no token that would go on as the grammar demands"


def allowed(grammars: list[Grammar], bitmask: torch.Tensor, rows: list[int], batch: Any) -> None:
    """Fill rows of an int32 bitmask on the host with the tokens that may come next, one row a grammar.

    Args:
        batch: xgrammar's matcher of batches.
    """
    if not grammars:
        return
    batch.batch_fill_next_token_bitmask([grammar._matcher for grammar in grammars], bitmask, rows)
    words: NDArray[np.int32] = bitmask.numpy()
    for grammar, row in zip(grammars, rows, strict=True):
        grammar._restrict(words[row])
