"""Prompts that recur as a whole, by the numbers of a log."""

from __future__ import annotations

import numpy as np

from blis_py.requests.table import Content, Ints


def same_prompts(number: Ints, prompt_tokens: Ints) -> tuple[Ints, tuple[Content, ...]]:
    """The index of each request's text, and the texts: one for each number and length."""
    kinds, content = np.unique(np.stack([number, prompt_tokens], axis=1), axis=0, return_inverse=True)
    contents = tuple(((f"prompt {slot}", int(tokens)),) for slot, tokens in kinds.tolist())
    return content.astype(np.int64), contents
