"""Ends of chunks of prompts where the prefix cache keeps states (vLLM's `mamba_cache_mode: align`).

A state is written where a chunk ends. A chunk that ends with a block leaves a state that later requests with
the same prefix can begin from. Some kernels also write the state at the end of the last full block inside the
chunk that completes a prompt.
"""

from __future__ import annotations

from blis_py.core.config import SchedulerConfig
from blis_py.core.kv import KVCache
from blis_py.core.kv_groups import ALIGNED, copies_inside, is_copied
from blis_py.core.request import Request


class StateChunks:
    """Lengths of chunks of prompts.

    Args:
        kv: has what a request shares with others.
    """

    def __init__(self, config: SchedulerConfig, kv: KVCache) -> None:
        self._kv = kv
        self._size = config.block_size
        self._whole_prompt = config.state_chunks_align_prompts
        self._before_last = config.states_precede_last_token
        self._multiple = copies_inside(config.kv_groups)
        self._most_tokens = config.max_num_batched_tokens
        if config.long_prefill_token_threshold:
            self._most_tokens = min(self._most_tokens, config.long_prefill_token_threshold)

    def tokens(self, request: Request, start: int, tokens: int) -> int:
        """Tokens of a chunk that may have so many, cut where a state has to be kept; 0 = none now.

        Args:
            start: computed tokens.
        """
        length, size = request.num_tokens, self._size
        prompt_end = max(request.prompt_tokens, length - 1)
        if start >= prompt_end:
            return tokens
        last_state = (length - 1 if self._before_last else length) // size * size
        end = start + tokens
        copied = end >= prompt_end and is_copied(start, (prompt_end - 1) // size * size, size, self._multiple)
        stops = [] if copied else [last_state]
        if self._whole_prompt:
            aligned = end // size * size
            if end < prompt_end and (aligned > start or size <= self._most_tokens):
                end = aligned
        elif end < last_state:
            end = end // size * size
        following = (start // size + 1) * size
        if start % size and (self._whole_prompt or following <= last_state):
            stops.append(following)
        shared = self._kv.boundary(request)
        if start < shared < end:
            stops.append(start + (shared - start) // size * size)
        return max(min((stop for stop in stops if start < stop < end), default=end) - start, 0)


def state_chunks(config: SchedulerConfig, kv: KVCache) -> StateChunks | None:
    """None where chunks may end anywhere."""
    aligned = any(group.kind == ALIGNED for group in config.kv_groups)
    return StateChunks(config, kv) if aligned and kv.prefix_caching else None
