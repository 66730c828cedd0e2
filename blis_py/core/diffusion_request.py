"""A block-diffusion request as seen by the scheduler, and the data exchanged with the driver."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from blis_py.core.counters import Counters
from blis_py.core.diffusion_features import DiffusionFeatures
from blis_py.core.request import Request

NO_SLOT = -1


class DiffusionRequest(Request):
    """A request whose output comes in blocks, each denoised over several rounds.

    `computed` counts tokens whose final keys and values are in the cache, always whole blocks. Its
    `DECODING` status means that it denoises the block that starts there.
    """

    __slots__ = ("block_rounds", "dllm_algo_state", "dllm_incomplete_ids", "rounds_per_block", "slot")

    def __init__(
        self,
        id: str,
        arrival_ns: int,
        prompt_tokens: int,
        output_tokens: int | None = None,
        max_tokens: int = 0,
        priority: int = 1,
        deadline_ns: int = -1,
        block_keys: Sequence[Hashable] = (),
        row: int = -1,
        extra_key: Hashable = None,
        ends_by_eos: bool = False,
        constrained: bool = False,
    ) -> None:
        # Argument by argument, since mypyc does not hand `*args` on to a native base.
        super().__init__(
            id,
            arrival_ns,
            prompt_tokens,
            output_tokens,
            max_tokens,
            priority,
            deadline_ns,
            block_keys,
            row,
            extra_key,
            ends_by_eos,
            constrained,
        )
        self.slot = NO_SLOT
        """The request slot it holds."""
        self.dllm_incomplete_ids: Any = None
        """Unfinished token ids of its block, carried verbatim; None if no block has been begun."""
        self.dllm_algo_state: Any = None
        """State of the algorithm for that block, carried verbatim."""
        self.block_rounds = 0
        """Rounds spent on that block."""
        self.rounds_per_block: list[int] = []
        """Rounds (forward passes) of each committed block."""

    @property
    def known_tokens(self) -> int:
        """Leading positions of its block that are filled from the prompt; above 0 in the first block only."""
        return self.num_tokens - self.computed


@dataclass(slots=True)
class DenoiseBatch:
    """The work until the next call of the scheduler: one round, or as many as its mode allows."""

    prefills: list[tuple[DiffusionRequest, int]] = field(default_factory=list)
    """Requests computing (part of) a prompt, with the number of tokens: a multiple of the block."""
    denoise: list[DiffusionRequest] = field(default_factory=list)
    """Requests whose current block takes part, in running order."""
    admitted: list[DiffusionRequest] = field(default_factory=list)
    preempted: list[DiffusionRequest] = field(default_factory=list)
    features: DiffusionFeatures = field(default_factory=DiffusionFeatures)
    """The features, except those known only to the driver; see `round_features`."""

    def round_features(self, lm_head_rows: int, commit_blocks: int, is_first: bool) -> DiffusionFeatures:
        """The features of one round of the batch, possibly its first: always the same object, for speed."""
        features = self.features
        features.emitted_rows, features.commit_blocks = lm_head_rows, commit_blocks
        features.begins_batch = 1 if is_first else 0
        return features


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """The outcome of a batch. Sequences are parallel to `DenoiseBatch.denoise`."""

    accept_lengths: Sequence[int] = ()
    """0 = the block goes on, block size = it is final and its keys and values are in the cache."""
    rounds: int = 1
    """Number of forward passes."""
    spent: Sequence[int] | None = None
    """For each block, the number of rounds in which it was active; None = all."""
    stopped: Mapping[Request, int] = field(default_factory=dict)
    """Requests whose committed block contains an end of sequence, with the tokens up to and including it."""
    keys: Mapping[Request, Sequence[Hashable]] = field(default_factory=dict)
    """Content keys of the pages that a commit completes, under which other requests can find them."""


@dataclass(frozen=True, slots=True)
class Commit:
    """A block that became final."""

    request: DiffusionRequest
    emitted_tokens: int
    """Tokens of the block that the client receives."""
    wasted_tokens: int
    """Tokens past the end of the output."""
    finished: bool


@dataclass(slots=True)
class DiffusionCounters(Counters):
    """Totals over the life of a scheduler of diffusion blocks."""

    batches: int = 0
    rounds: int = 0
    block_rounds: int = 0
    """Sum over rounds of the blocks active in them."""
    idle_block_rounds: int = 0
    """Sum over rounds of the blocks that were finished and rode along (synchronous mode)."""
    committed_blocks: int = 0
    emitted_tokens: int = 0
    wasted_tokens: int = 0
    """Committed positions past the end of an output."""
    allocator_calls: int = 0
    """Calls that allocate or free slots or KV blocks."""
    unfinished_allocator_calls: int = 0
    """Calls made for a block that goes on: none with reuse in place."""

    @property
    def steps_per_block(self) -> float:
        """Mean rounds that a committed block took (vLLM's "steps per block"); commits included."""
        return self.block_rounds / self.committed_blocks if self.committed_blocks else 0.0

    @property
    def committed_tokens_per_step(self) -> float:
        """Mean output tokens per block and round ("tokens per forward")."""
        return self.emitted_tokens / self.block_rounds if self.block_rounds else 0.0
