"""Shared prefixes of actual texts, as the runs of a request table."""

from __future__ import annotations

from collections.abc import Sequence

from blis_py.core.token_keys import token_keys
from blis_py.requests.table import Content

_Runs = tuple[tuple[str | int, int], ...]


class PrefixBook:
    """Blocks of tokens seen so far, and the runs that hold them.

    A prompt is described by the runs of its longest known prefix, and a new segment for the rest. Equal
    blocks behind equal prefixes thus have equal runs, as `Content` requires.

    Args:
        most: blocks that are remembered; the oldest are forgotten first.
    """

    def __init__(self, block_size: int, most: int) -> None:
        self._block_size, self._most = block_size, most
        self._known: dict[bytes, _Runs] = {}
        self._segments = 0

    def content(self, ids: Sequence[int]) -> Content:
        """The runs of a sequence, up to its last full block."""
        size, known = self._block_size, self._known
        keys = token_keys(ids, size)
        matched = len(keys)
        while matched and keys[matched - 1] not in known:
            matched -= 1
        runs = known[keys[matched - 1]] if matched else ()
        rest = (len(keys) - matched) * size
        if rest:
            self._segments += 1
            for number, key in enumerate(keys[matched:], 1):
                known[key] = (*runs, (self._segments, number * size))
            runs = known[keys[-1]]
            self._forget()
        return runs

    def _forget(self) -> None:
        while len(self._known) > self._most:
            del self._known[next(iter(self._known))]
