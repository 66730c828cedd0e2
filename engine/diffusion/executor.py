"""Runs the model and the algorithm on a planned batch of blocks and prompt chunks."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Ordered

import numpy as np
import torch

from blis_py.core.diffusion_request import Batch, DiffusionRequest
from engine.diffusion.blocks import Blocks, Logits, Tensor
from engine.diffusion.graphs import BlockGraphs
from engine.diffusion.slots import BlockSlots
from engine.executor import Model
from engine.forward_context import ForwardContext, KVCache
from engine.kernels.attention import AttentionMetadata

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

    def begin(self, batch: Batch, tokens_of: TokensOf) -> RunningBatch:
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

    def __init__(self, executor: DiffusionExecutor, batch: Batch, tokens_of: TokensOf) -> None:
        self.batch, self._executor = batch, executor
        self._slots_of, self._algorithm = executor.slots, executor.slots.algorithm
        self.block_tokens = block = self._slots_of.block_tokens
        denoise = batch.denoise
        tails = [tokens_of(r, r.computed, r.computed + r.known_tokens) for r in denoise]
        self._slots, self._blocks, self._state = self._slots_of.begin(denoise, tails)
        self.done = [False] * len(denoise)
        self._wanted = [int(self._slots_of.wanted_rows[request.slot]) for request in denoise]
        self._rounds = [request.block_rounds for request in denoise]
        self._hidden: Tensor | None = None
        graphs = executor.graphs
        self._bucket = graphs.bucket(len(denoise)) if graphs is not None and not batch.prefills else 0
        work = [(request, block) for request in denoise] + batch.prefills
        prompts = [token for r, n in batch.prefills for token in tokens_of(r, r.computed, r.computed + n)]
        self._lay_out(work, prompts)

    @property
    def has_prompts(self) -> bool:
        return bool(self.batch.prefills)

    @property
    def rows_wanted(self) -> list[int]:
        """Rows of logits that each block still at work needs in the next round; 0 = it is final already."""
        return [rows for rows, over in zip(self._wanted, self.done, strict=True) if not over]

    @property
    def on_cuda(self) -> bool:
        return self._slots_of.device.type == "cuda"

    @property
    def bucket(self) -> int:
        """Blocks of the CUDA graph that runs the rounds; 0 = there is none."""
        return self._bucket

    def _lay_out(self, work: list[tuple[DiffusionRequest, int]], prompts: list[int]) -> None:
        executor, device = self._executor, self._slots_of.device
        spans = [(request.computed, new, request.block_table) for request, new in work]
        self._context = lay_out(spans, executor.page_tokens, self.block_tokens, executor.kv, device)
        if self._bucket:
            assert executor.graphs is not None
            executor.graphs.load(self._bucket, self._context)
            return
        self._prompts = torch.tensor(prompts, dtype=torch.int64).to(device)

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
        """The algorithm on the blocks that are not done; one small copy tells the host how it went.

        Raises:
            RuntimeError: a block has used up its rounds, so the algorithm makes no progress.
        """
        active = [index for index, over in enumerate(self.done) if not over]
        for index in active:
            self._rounds[index] += 1
        if not any(self._wanted[index] for index in active):
            for index in active:  # they wanted no logits: what the forward saw was final
                self.done[index] = True
            return list(self.done)
        flags = self._step(active)
        for index, flag in zip(active, flags, strict=True):
            self.done[index], self._wanted[index] = flag < 0, max(flag, 0)
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
        everybody = len(active) == len(self.done)
        blocks, state, which = self._blocks, self._state, None
        if not everybody:
            which = torch.tensor(active, dtype=torch.int64).to(self._slots_of.device)
            blocks = Blocks(blocks.ids[which], blocks.answer[which], blocks.mask_id)
            state = {name: rows[which] for name, rows in state.items()}
        algorithm, size = self._algorithm, self.block_tokens
        wanted = algorithm.wanted(blocks, state)
        rows = flat_rows(wanted, sum(self._wanted[index] for index in active))
        places = rows if which is None else which[rows // size] * size + rows % size
        logits = self._executor.model.logits(self._hidden.index_select(0, places))
        done = algorithm.step(blocks, Logits(logits, rows), state)
        flags = torch.where(done, -1, algorithm.wanted(blocks, state).sum(dim=1))
        if which is not None:
            self._blocks.ids.index_copy_(0, which, blocks.ids)
            for name, values in state.items():
                self._state[name].index_copy_(0, which, values)
        self.launched()
        copied: list[int] = flags.tolist()
        return copied

    def end(self, in_place: bool) -> list[list[int]]:
        """The batch is over: blocks go back to their slots.

        Returns:
            Token ids of each finished block, nothing for the others.
        """
        denoise = self.batch.denoise
        if not denoise:
            return []
        for request, rows in zip(denoise, self._wanted, strict=True):
            self._slots_of.wanted_rows[request.slot] = rows
        self._slots_of.end(denoise, self._slots, self._blocks, self._state, self.done, in_place)
        if not any(self.done):
            return [[] for _ in denoise]
        ids = self._blocks.ids.tolist()
        return [row if over else [] for row, over in zip(ids, self.done, strict=True)]


Span = tuple[int, int, Ordered[int]]
"""New tokens of a sequence: position of the first, how many, and the pages of the sequence."""


def lay_out(
    spans: Ordered[Span], page_tokens: int, mask_block: int, kv: KVCache, device: torch.device
) -> ForwardContext:
    """What a forward over the new tokens of these sequences reads, on the device."""
    counts = [new for _, new, _ in spans]
    positions = np.concatenate([np.arange(first, first + new) for first, new, _ in spans])
    tables = np.zeros((len(spans), max(len(pages) for _, _, pages in spans)), dtype=np.int32)
    for row, (_, _, pages) in enumerate(spans):
        tables[row, : len(pages)] = pages
    owner = np.repeat(np.arange(len(spans)), counts)
    places = tables[owner, positions // page_tokens].astype(np.int64) * page_tokens + positions % page_tokens
    lengths = np.array([first + new for first, new, _ in spans], dtype=np.int32)
    starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    # Each in memory of its own, so each at an address that is a multiple of 16 whatever the batch.
    on_device = [torch.from_numpy(array).to(device) for array in (positions, places, starts, lengths, tables)]
    meta = AttentionMetadata(
        query_start=on_device[2],
        seq_lens=on_device[3],
        block_tables=on_device[4],
        max_query_len=max(counts),
        max_seq_len=int(lengths.max()),
        num_decodes=0,
        mask_block=mask_block,
    )
    return ForwardContext(on_device[0], on_device[1], meta, kv)


def flat_rows(wanted: Tensor, count: int) -> Tensor:
    """Indices of the `count` true entries, flat; the count being known, nothing waits for the device."""
    return torch.nonzero_static(wanted.view(-1), size=count).view(-1)
