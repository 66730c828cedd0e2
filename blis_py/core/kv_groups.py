"""Groups of layers that share one pool of KV blocks, and what a sequence holds in each.

Every group has a block table of its own; a block of any of them is a block of the pool. Layers of one group
keep the same tokens: all, those of a window, those of a chunk, or a state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

FULL: Final = "full"
WINDOW: Final = "window"
CHUNKED: Final = "chunked"
STATE: Final = "state"
ALIGNED: Final = "aligned"
_NO_LIMIT: Final = 1 << 40
"""More tokens than any sequence has."""


class KVGroup(NamedTuple):
    """A group of alike layers.

    Attributes:
        kind: `full` (all tokens are kept), `window` (the last ones), `chunked` (those of the present chunk),
            `state` (one block, whatever the length), or `aligned` (a state, copies of which at the end of
            blocks the prefix cache keeps).
        tokens: of the window, or of a chunk; of `aligned`, the number of which a copy that is made inside a
            chunk has a multiple, 0 = copies are made at the end of chunks alone.
        span: times the tokens of a block that a block of the group holds, where its layers keep less of each.
    """

    kind: str
    tokens: int = 0
    span: int = 1

    def skipped_tokens(self, computed: int) -> int:
        """Leading tokens that the next one does not attend to, of `computed` ones."""
        if self.kind == WINDOW:
            return max(0, computed - self.tokens + 1)
        if self.kind == CHUNKED:
            return computed // self.tokens * self.tokens
        if self.kind == ALIGNED:
            return max(0, computed - 1)
        return 0

    def taken(self, missing: int, copied: bool = False) -> int:
        """Blocks that a request takes at once for so many further entries of its table: of those for a state
        that is kept at the end of blocks only the last, and the one before for a copy."""
        return min(missing, 1 + copied) if self.kind == ALIGNED else missing

    def blocks_of(self, tokens: int, block_size: int) -> int:
        """Blocks that this many tokens fill or begin, if none is dropped."""
        return 1 if self.kind == STATE else -(-tokens // (block_size * self.span))

    def most_blocks(self, flight_tokens: int, max_model_len: int, block_size: int) -> int:
        """Most blocks that a request holds at once; 0 = no limit but its length.

        Args:
            flight_tokens: most tokens of steps whose outcome is not known, the one being planned included.
        """
        block_size *= self.span
        if self.kind == WINDOW:
            # The window may begin inside a block.
            return -(-min(self.tokens - 1 + flight_tokens, max_model_len) // block_size) + 1
        if self.kind == CHUNKED:
            return -(-min(self.tokens + flight_tokens, max_model_len) // block_size)
        if self.kind == ALIGNED:
            return 3 if self.tokens else 2
        return 0

    def hit_blocks(self, block_size: int) -> int:
        """Blocks at the end of a prefix of which a window makes use, or a state."""
        if self.kind == ALIGNED:
            return 1
        return -(-(self.tokens - 1) // (block_size * self.span))


def copies_inside(groups: Sequence[KVGroup]) -> int:
    """Tokens that a state which is copied inside a chunk has a multiple of; 0 = none is."""
    return max((group.tokens for group in groups if group.kind == ALIGNED), default=0)


def is_copied(start: int, state_end: int, block_size: int, multiple: int) -> bool:
    """Whether the state behind so many tokens can be copied inside a chunk that begins with `start`."""
    if not multiple or start % block_size:
        return False
    return start + block_size <= state_end and (state_end - start) % multiple == 0


class FlightSettings(Protocol):
    """Settings that decide what a window holds besides itself."""

    @property
    def max_num_batched_tokens(self) -> int: ...

    @property
    def async_scheduling(self) -> bool: ...

    @property
    def windows_await_outcome(self) -> bool: ...

    @property
    def windows_cap_prompts(self) -> bool: ...

    @property
    def scheduler_reserve_full_isl(self) -> bool: ...


def flight_tokens(settings: FlightSettings) -> int:
    """Most tokens of steps whose outcome is not known, the one being planned included, as far as windows keep
    them."""
    steps = 2 if settings.windows_await_outcome and settings.async_scheduling else 1
    return steps * settings.max_num_batched_tokens


def admitted_tokens(settings: FlightSettings) -> int:
    """The same for the longest admitted sequence; no limit where windows count with a whole prompt."""
    if settings.scheduler_reserve_full_isl and not settings.windows_cap_prompts:
        return _NO_LIMIT
    return flight_tokens(settings)


def longest_that_fits(groups: Sequence[KVGroup], blocks: int, block_size: int, flight_tokens: int) -> int:
    """Tokens of the longest sequence that the pool can hold."""

    def needed(tokens: int) -> int:
        total = 0
        for group in groups:
            own, most = (
                group.blocks_of(tokens, block_size),
                group.most_blocks(flight_tokens, tokens, block_size),
            )
            total += min(own, most) if most else own
        return total

    low, high = 0, blocks * block_size * max(group.span for group in groups)
    if needed(high) <= blocks:
        # Without full attention a sequence of any length fits.
        return high if any(group.kind == FULL for group in groups) else _NO_LIMIT
    while low < high:
        middle = (low + high + 1) // 2
        if needed(middle) <= blocks:
            low = middle
        else:
            high = middle - 1
    return low
