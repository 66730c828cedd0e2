"""Execution of the model and the algorithm on a planned batch of blocks and prompt chunks."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Ordered
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from blis_py.core.diffusion_request import DenoiseBatch, DiffusionRequest
from engine.diffusion.blocks import Blocks, Logits, Tensor
from engine.diffusion.graphs import BlockGraphs
from engine.diffusion.slots import BlockSlots
from engine.executor import Model
from engine.forward_context import ForwardContext, KVCache
from engine.kernels.attention import AttentionMetadata
from engine.upload import upload

TokensOf = Callable[[DiffusionRequest, int, int], list[int]]
"""Tokens of a request from one position to before another."""


class DiffusionExecutor:
    """The model, its KV cache, and the blocks in progress; `graphs`: captured rounds, None = all eager."""

    def __init__(
        self,
        model: Model,
        kv: KVCache,
        slots: BlockSlots,
        page_tokens: int,
        graphs: BlockGraphs | None = None,
    ) -> None:
        self.model, self.kv, self.slots, self.page_tokens = model, kv, slots, page_tokens
        self.graphs = graphs

    def begin(self, batch: DenoiseBatch, tokens_of: TokensOf) -> RunningBatch:
        """The batch on the device, ready for its first round."""
        return RunningBatch(self, batch, tokens_of)


class RunningBatch:
    """A batch between two calls of the scheduler; see `engine.diffusion.loops.Rounds`.

    The blocks come first in the forward, then the prompt chunks. All tensors but the ids of the blocks stay
    the same from round to round.

    Attributes:
        launched: called when a round has been launched to the end, before the host waits for it.
    """

    launched: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, executor: DiffusionExecutor, batch: DenoiseBatch, tokens_of: TokensOf) -> None:
        self.batch, self._executor = batch, executor
        self._slots_of, self._algorithm = executor.slots, executor.slots.algorithm
        self.block_tokens = block = self._slots_of.block_tokens
        denoise = batch.denoise
        tails = [tokens_of(r, r.computed, r.computed + r.known_tokens) for r in denoise]
        work = [(request, block) for request in denoise] + batch.prefills
        prompts = [token for r, n in batch.prefills for token in tokens_of(r, r.computed, r.computed + n)]
        self._send(tails, work, prompts)
        self.done = [False] * len(denoise)
        self._logit_rows = [int(self._slots_of.logit_rows[request.slot]) for request in denoise]
        self._rounds = [request.block_rounds for request in denoise]
        self._hidden: Tensor | None = None
        graphs = executor.graphs
        self._bucket = graphs.bucket(len(denoise)) if graphs is not None and not batch.prefills else 0
        if self._bucket:
            assert graphs is not None
            graphs.load(self._bucket, self._context)

    @property
    def has_prompts(self) -> bool:
        return bool(self.batch.prefills)

    @property
    def rows_of_logits(self) -> list[int]:
        """Rows of logits that each block still at work needs in the next round; 0 = it is final already."""
        return [rows for rows, over in zip(self._logit_rows, self.done, strict=True) if not over]

    @property
    def on_cuda(self) -> bool:
        return self._slots_of.device.type == "cuda"

    @property
    def bucket(self) -> int:
        """Blocks of the CUDA graph that runs the rounds; 0 = there is none."""
        return self._bucket

    def _send(
        self, tails: list[list[int]], work: list[tuple[DiffusionRequest, int]], prompts: list[int]
    ) -> None:
        """Send the host's whole state of the batch to the device in one copy."""
        executor, slots_of, denoise = self._executor, self._slots_of, self.batch.denoise
        beginning = slots_of.beginning(denoise, tails)
        layout = HostLayout.of(
            [(request.computed, new, request.block_table) for request, new in work], executor.page_tokens
        )
        there = upload(slots_of.device, *beginning, *layout, np.array(prompts, dtype=np.int64))
        self._slots, *_, self._prompts = there
        self._blocks, self._state = slots_of.begin(denoise, *there[: len(beginning)])
        self._context = layout.context(there[len(beginning) : -1], self.block_tokens, executor.kv)

    def forward(self) -> None:
        """One forward of blocks and prompt chunks."""
        executor = self._executor
        if self._bucket:
            assert executor.graphs is not None
            self._hidden = executor.graphs.replay(self._bucket, self._blocks.ids)
            return
        ids = torch.cat((self._blocks.ids.view(-1), self._prompts))
        self._hidden = executor.model(ids, self._context)

    def step(self) -> list[bool]:
        """Run the algorithm on the blocks that are not done; one small copy reports the outcome to the host.

        Raises:
            RuntimeError: a block has used up its rounds, so the algorithm makes no progress.
        """
        active = [index for index, over in enumerate(self.done) if not over]
        for index in active:
            self._rounds[index] += 1
        if not any(self._logit_rows[index] for index in active):
            for index in active:  # they wanted no logits: what the forward saw was final
                self.done[index] = True
            return list(self.done)
        flags = self._step(active)
        for index, flag in zip(active, flags, strict=True):
            self.done[index], self._logit_rows[index] = flag < 0, max(flag, 0)
        limit = self._algorithm.max_rounds(self.block_tokens)
        for index in active:
            if not self.done[index] and self._rounds[index] >= limit:
                raise RuntimeError(
                    f"a block is not done after {limit} rounds: no progress in {self.batch.denoise[index]}"
                )
        return list(self.done)

    def _step(self, active: list[int]) -> list[int]:
        """For each active block -1 if it is done, else the rows of logits its next round needs."""
        assert self._hidden is not None
        all_active = len(active) == len(self.done)
        blocks, state, which = self._blocks, self._state, None
        if not all_active:
            (which,) = upload(self._slots_of.device, np.array(active, dtype=np.int64))
            blocks = Blocks(blocks.ids[which], blocks.answer[which], blocks.mask_id)
            state = {name: rows[which] for name, rows in state.items()}
        algorithm, size = self._algorithm, self.block_tokens
        logit_rows = algorithm.needs_logits(blocks, state)
        rows = flat_rows(logit_rows, sum(self._logit_rows[index] for index in active))
        places = rows if which is None else which[rows // size] * size + rows % size
        logits = self._executor.model.logits(self._hidden.index_select(0, places))
        done = algorithm.step(blocks, Logits(logits, rows), state)
        flags = torch.where(done, -1, algorithm.needs_logits(blocks, state).sum(dim=1))
        if which is not None:
            self._blocks.ids.index_copy_(0, which, blocks.ids)
            for name, values in state.items():
                self._state[name].index_copy_(0, which, values)
        self.launched()
        copied: list[int] = flags.tolist()
        return copied

    def end(self, in_place: bool) -> list[list[int]]:
        """End the batch: write blocks back to their slots.

        Returns:
            Token ids of each finished block, nothing for the others.
        """
        denoise = self.batch.denoise
        if not denoise:
            return []
        for request, rows in zip(denoise, self._logit_rows, strict=True):
            self._slots_of.logit_rows[request.slot] = rows
        self._slots_of.end(denoise, self._slots, self._blocks, self._state, self.done, in_place)
        if not any(self.done):
            return [[] for _ in denoise]
        ids = self._blocks.ids.tolist()
        return [row if over else [] for row, over in zip(ids, self.done, strict=True)]


Span = tuple[int, int, Ordered[int]]
"""New tokens of a sequence: position of the first, how many, and the pages of the sequence."""


class HostLayout(NamedTuple):
    """A forward over S sequences with T new tokens, on the host."""

    positions: NDArray[np.int64]
    """`[T]`"""
    slots: NDArray[np.int64]
    """`[T]`"""
    query_start: NDArray[np.int32]
    """`[S + 1]`"""
    seq_lens: NDArray[np.int32]
    """`[S]`"""
    block_tables: NDArray[np.int32]
    """`[S, max_pages]`"""

    @classmethod
    def of(cls, spans: Ordered[Span], page_tokens: int) -> HostLayout:
        """The forward of these new tokens."""
        counts = [new for _, new, _ in spans]
        positions = np.concatenate([np.arange(first, first + new) for first, new, _ in spans])
        tables = np.zeros((len(spans), max(len(pages) for _, _, pages in spans)), dtype=np.int32)
        for row, (_, _, pages) in enumerate(spans):
            tables[row, : len(pages)] = pages
        pages = tables[np.repeat(np.arange(len(spans)), counts), positions // page_tokens]
        slots = pages.astype(np.int64) * page_tokens + positions % page_tokens
        lengths = np.array([first + new for first, new, _ in spans], dtype=np.int32)
        starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
        return cls(positions, slots, starts, lengths, tables)

    def context(self, there: Ordered[Tensor], mask_block: int, kv: KVCache) -> ForwardContext:
        """The context of the forward.

        Args:
            there: these arrays on the device, with the same shapes.
        """
        positions, slots, query_start, seq_lens, block_tables = there
        meta = AttentionMetadata(
            query_start=query_start,
            seq_lens=seq_lens,
            block_tables=block_tables,
            max_query_len=int(np.diff(self.query_start).max()),
            max_seq_len=int(self.seq_lens.max()),
            num_decodes=0,
            mask_block=mask_block,
        )
        return ForwardContext(positions, slots, meta, kv)


def lay_out(
    spans: Ordered[Span], page_tokens: int, mask_block: int, kv: KVCache, device: torch.device
) -> ForwardContext:
    """Inputs of a forward over these new tokens, on the device."""
    layout = HostLayout.of(spans, page_tokens)
    return layout.context(upload(device, *layout), mask_block, kv)


def flat_rows(rows: Tensor, count: int) -> Tensor:
    """Flat indices `[count]` of the true entries of `rows` `[B, L]`.

    The count is known, so nothing waits for the device.
    """
    return torch.nonzero_static(rows.view(-1), size=count).view(-1)
