"""CUDA graphs of denoise rounds, by the number of blocks."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import partial

import torch

from blis_py.core.blocks import block_count
from engine.executor import Model
from engine.forward_context import ForwardContext, KVCache
from engine.graphs import Capture, Replay
from engine.kernels.attention import AttentionMetadata

Tensor = torch.Tensor


class BlockGraphs:
    """One graph per bucket, from token ids to hidden states; rounds with prompt chunks run without.

    All buckets use the beginning of the same buffers. Padded blocks have length 0 and slot -1: they read and
    store nothing. Attention gets the longest length there can be, as a graph cannot depend on the lengths.

    Args:
        buckets: numbers of blocks to capture.
        capture: how; another one stands in for CUDA in tests.
    """

    def __init__(
        self,
        model: Model,
        kv: KVCache,
        *,
        block_tokens: int,
        page_tokens: int,
        max_model_len: int,
        buckets: Sequence[int],
        device: torch.device,
        capture: Capture,
    ) -> None:
        self.buckets = sorted(set(buckets))
        self._model, self._kv, self._block, self._max_len = model, kv, block_tokens, max_model_len
        most = self.buckets[-1]
        self._tokens = torch.zeros((3, most * block_tokens), dtype=torch.int64, device=device)
        """Ids, positions, slot mapping."""
        self._seq_lens = torch.zeros(most, dtype=torch.int32, device=device)
        self._tables = torch.zeros(
            (most, block_count(max_model_len, page_tokens)), dtype=torch.int32, device=device
        )
        self._starts = torch.arange(most + 1, dtype=torch.int32, device=device) * block_tokens
        self._graphs: dict[int, tuple[Replay, Tensor]] = {}
        self._pad(0, most)
        for size in reversed(self.buckets):  # the largest first: the others fit into its memory
            self._graphs[size] = capture(partial(self._run, size))

    def bucket(self, blocks: int) -> int:
        """The smallest captured number of blocks that holds so many; 0 if none does."""
        index = bisect_left(self.buckets, blocks)
        return self.buckets[index] if blocks > 0 and index < len(self.buckets) else 0

    def load(self, bucket: int, context: ForwardContext) -> None:
        """Inputs that stay the same over the rounds of a batch of blocks."""
        meta, rows = context.attention, len(context.positions)
        blocks, tables = meta.num_seqs, meta.block_tables
        self._pad(blocks, bucket)
        self._tokens[1, :rows].copy_(context.positions)
        self._tokens[2, :rows].copy_(context.slots)
        self._seq_lens[:blocks].copy_(meta.seq_lens)
        self._tables[:blocks, : tables.shape[1]].copy_(tables)

    def replay(self, bucket: int, ids: Tensor) -> Tensor:
        """Hidden states `[B * L, d]` of blocks `[B, L]`. Overwritten by the next replay."""
        count = ids.numel()
        self._tokens[0, :count].copy_(ids.view(-1))
        replay, hidden = self._graphs[bucket]
        replay()
        return hidden[:count]

    def _pad(self, first: int, end: int) -> None:
        self._tokens[:2, first * self._block : end * self._block] = 0
        self._tokens[2, first * self._block : end * self._block] = -1
        self._seq_lens[first:end] = 0

    def _run(self, size: int) -> Tensor:
        ids, positions, slots = self._tokens[:, : size * self._block].unbind(0)
        meta = AttentionMetadata(
            query_start=self._starts[: size + 1],
            seq_lens=self._seq_lens[:size],
            block_tables=self._tables[:size],
            max_query_len=self._block,
            max_seq_len=self._max_len,
            num_decodes=0,
            mask_block=self._block,
        )
        return self._model(ids, ForwardContext(positions, slots, meta, self._kv))
