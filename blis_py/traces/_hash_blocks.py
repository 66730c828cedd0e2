"""Prompts by hash ids: one id per block of so many tokens, equal leading ids for equal leading tokens."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from blis_py.errors import InputError
from blis_py.requests.table import Content, Ints

FLAG = "--hash-block-size"
_USUAL_SIZES = (16, 32, 64, 128, 256, 512, 1024, 2048)


def check_ids(
    ids: Any,
    tokens: int,
    block_tokens: int,
    where: str,
    *,
    whole_only: bool = False,
    leading_only: bool = False,
) -> None:
    """
    Args:
        whole_only: whether a last block that is not full may be without an id.
        leading_only: whether any number of last blocks may be.

    Raises:
        InputError: not a list of numbers, or not one for each block.
    """
    if not isinstance(ids, list) or not all(type(block) is int and abs(block) < 2**63 for block in ids):
        raise InputError("must be a list of whole numbers of 64 bits", file=where, key="hash_ids")
    blocks = -(-tokens // block_tokens)
    least = 0 if leading_only else tokens // block_tokens if whole_only else blocks
    if least <= len(ids) <= blocks:
        return
    sizes = [size for size in _USUAL_SIZES if len(ids) == -(-tokens // size)]
    other = f", or say how many tokens an id stands for: {FLAG} {sizes[0] if sizes else 'N'}"
    raise InputError(
        f"{len(ids)} ids for {tokens} tokens",
        file=where,
        key="hash_ids",
        fix=f"give one per {block_tokens} tokens: {blocks}{other}",
    )


def runs_of_ids(ids: Sequence[int | str], tokens: int, block_tokens: int) -> Content:
    """The runs of a prompt; the last block may be shorter."""
    return tuple((id, min(block_tokens, tokens - at * block_tokens)) for at, id in enumerate(ids))


def contents_of(
    ids: Sequence[Sequence[int | str]],
    prompts: Sequence[int],
    block_tokens: int,
    known: Sequence[Content | None],
) -> tuple[Ints, list[Content]]:
    """Content of each prompt: as known, else its blocks up to the last one that another prompt has, too.

    The rest of a prompt is its own.
    """
    shared = _occurring_again(ids)
    contents: dict[Content, int] = {}
    content = np.full(len(prompts), -1, dtype=np.int64)
    for row, (own, prompt, runs) in enumerate(zip(ids, prompts, known, strict=True)):
        if runs is None:
            last = next((at for at in range(len(own), 0, -1) if own[at - 1] in shared), 0)
            runs = runs_of_ids(own[:last], prompt, block_tokens)
        if runs:
            content[row] = contents.setdefault(runs, len(contents))
    return content, list(contents)


def _occurring_again(ids: Sequence[Sequence[int | str]]) -> set[int | str]:
    once: set[int | str] = set()
    again: set[int | str] = set()
    for id in chain.from_iterable(ids):
        (again if id in once else once).add(id)
    return again
