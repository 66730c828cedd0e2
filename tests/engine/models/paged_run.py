"""Drives a decoder through a paged KV cache as an executor would, only slowly and plainly."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.forward_context import ForwardContext
from engine.kernels.attention import AttentionMetadata
from engine.models.decoder import Decoder


class PagedRun:
    """Sequences named by a number; their pages are scattered over the pool in a shuffled order."""

    def __init__(self, decoder: Decoder, page_size: int, num_pages: int = 64, mask_block: int = 1) -> None:
        config = decoder.config
        shape = (num_pages, config.num_kv_heads, page_size, config.head_dim)
        # A slot that was never written holds what would ruin every logit it got into.
        unwritten = torch.full(shape, 1e4, dtype=decoder.embedding.dtype)
        self.kv = [(unwritten.clone(), unwritten.clone()) for _ in decoder.layers]
        order = torch.randperm(num_pages, generator=torch.Generator().manual_seed(7))
        self.free: list[int] = order.tolist()
        self.decoder, self.page_size, self.mask_block = decoder, page_size, mask_block
        self.pages: dict[int, list[int]] = {}
        self.lengths: dict[int, int] = {}

    def step(self, work: Sequence[tuple[int, Sequence[int]]]) -> list[Tensor]:
        """Compute the new tokens of some sequences in one forward.

        Returns:
            Logits `[new tokens, vocab]` per sequence.
        """
        work = sorted(work, key=lambda item: len(item[1]) > 1)
        ids = [token for _, tokens in work for token in tokens]
        positions: list[int] = []
        slots: list[int] = []
        for sequence, tokens in work:
            start = self.lengths.get(sequence, 0)
            self._grow(sequence, start + len(tokens))
            positions += range(start, start + len(tokens))
            slots += (self._slot(sequence, position) for position in range(start, start + len(tokens)))
        context = ForwardContext(torch.tensor(positions), torch.tensor(slots), self._meta(work), self.kv)
        hidden = self.decoder(torch.tensor(ids), context)
        logits = self.decoder.logits(hidden).split([len(tokens) for _, tokens in work])
        by_sequence = {sequence: rows for (sequence, _), rows in zip(work, logits, strict=True)}
        return [by_sequence[sequence] for sequence in sorted(by_sequence)]

    def _grow(self, sequence: int, length: int) -> None:
        pages = self.pages.setdefault(sequence, [])
        while len(pages) * self.page_size < length:
            pages.append(self.free.pop())
        self.lengths[sequence] = length

    def _slot(self, sequence: int, position: int) -> int:
        page, offset = divmod(position, self.page_size)
        return self.pages[sequence][page] * self.page_size + offset

    def _meta(self, work: Sequence[tuple[int, Sequence[int]]]) -> AttentionMetadata:
        counts = [len(tokens) for _, tokens in work]
        lengths = [self.lengths[sequence] for sequence, _ in work]
        tables = [self.pages[sequence] for sequence, _ in work]
        widest = max(map(len, tables))
        padded = [table + [0] * (widest - len(table)) for table in tables]
        starts = [sum(counts[:index]) for index in range(len(counts) + 1)]
        return AttentionMetadata(
            query_start=torch.tensor(starts, dtype=torch.int32),
            seq_lens=torch.tensor(lengths, dtype=torch.int32),
            block_tables=torch.tensor(padded, dtype=torch.int32),
            max_query_len=max(counts),
            max_seq_len=max(lengths),
            num_decodes=sum(count == 1 for count in counts),
            mask_block=self.mask_block,
        )
