"""Warm-up batches that launch every kernel in every variant that serving can need.

An engine on a GPU runs them before it serves, so that no request waits for compilation or autotuning. A
variant follows from the model, which is fixed, and from a few choices that launches make by batch size. Of
all possible batches, those that lead to a new choice are run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from engine.batch import BatchBuilder
from engine.config import EngineConfig
from engine.executor import Forward
from engine.kernels.gpu import Gpu

_LONG = 8192
"""Context length in tokens that triggers every long-context choice of a launch."""


@dataclass(frozen=True, slots=True)
class MadeUp:
    """A synthetic batch: decodes, or other sequences."""

    decodes: int = 0
    chunks: tuple[tuple[int, int], ...] = ()
    """For each non-decode sequence its cached tokens, and its new ones."""

    @property
    def tokens(self) -> int:
        """Tokens computed in all."""
        return self.decodes + sum(new for _, new in self.chunks)

    @property
    def longest(self) -> int:
        """Length of the longest sequence after the step."""
        return max((cached + new for cached, new in self.chunks), default=1)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Upper bounds of an engine's batches."""

    seqs: int
    tokens: int
    chunk: int
    """New tokens of one sequence."""
    length: int
    """Tokens of one sequence."""
    block: int = 1
    """Granularity of the new tokens of a sequence that does not decode."""

    @classmethod
    def of(cls, config: EngineConfig, max_model_len: int, block: int = 1) -> Bounds:
        """Those of an engine; `block` is that of answers in blocks."""
        tokens, length = (n // block * block for n in (config.max_num_batched_tokens, max_model_len))
        chunk = (config.long_prefill_token_threshold or tokens) // block * block
        return cls(config.max_num_seqs, tokens, max(block, min(chunk, tokens, length)), length, block)


def batches(model: Any, bounds: Bounds, gpu: Gpu) -> list[MadeUp]:
    """Batches within the bounds that together cover every launch choice.

    Args:
        model: the `ModelConfig`, whose heads and experts determine the choices.
    """
    covered, chosen = set[Any](), []
    for batch in _candidates(bounds):
        new = choices(model, batch, gpu) - covered
        if new:
            covered |= new
            chosen.append(batch)
    return chosen


def choices(model: Any, batch: MadeUp, gpu: Gpu) -> set[Any]:
    """Size-dependent launch choices for which kernels are specialised."""
    from engine.kernels.triton import decode_attention, moe, prefill_attention

    chosen = set[Any]()
    if batch.decodes:
        chosen.add(("decode", decode_attention.block_s(batch.decodes)))
    if batch.chunks:
        choice = prefill_attention.choose(
            tokens=sum(new for _, new in batch.chunks),
            num_seqs=len(batch.chunks),
            max_query_len=max(new for _, new in batch.chunks),
            max_seq_len=batch.longest,
            num_heads=model.num_heads,
            num_kv_heads=model.num_kv_heads,
            head_dim=model.head_dim,
            multiprocessors=gpu.multiprocessors,
        )
        chosen.add(("prefill", choice.shape, choice.splits > 1))
    if model.router is not None:
        chosen.add(("experts", moe.block_m(batch.tokens * model.router.top_k, model.experts)))
    return chosen


def _candidates(bounds: Bounds) -> Iterator[MadeUp]:
    """Candidate batches: the largest first, and decodes, whose tokens are all equal, last, since
    configurations are timed on the first batch that needs them.
    """
    block, long = bounds.block, min(bounds.length, _LONG // bounds.block * bounds.block)
    if block > 1:
        context_tokens = (long - block) // 2 // block * block
        for n in _down(bounds.tokens // block, bounds.seqs):
            yield MadeUp(chunks=((context_tokens, block),) * n)
    for tokens in range(bounds.tokens, 0, -block):
        full, rest = divmod(tokens, bounds.chunk)
        chunks = ((0, bounds.chunk),) * full + ((0, rest),) * (rest > 0)
        if len(chunks) <= bounds.seqs:
            yield MadeUp(chunks=chunks)
    for new in range(min(bounds.chunk, long), 0, -block):
        yield MadeUp(chunks=((long - new, new),))
    if block == 1:
        for n in _down(bounds.tokens, bounds.seqs):
            yield MadeUp(decodes=n)


def _down(*limits: int) -> Iterable[int]:
    return range(min(limits), 0, -1)


@torch.inference_mode()
def warm_up(forward: Forward, builder: BatchBuilder, bounds: Bounds, gpu: Gpu) -> None:
    """Run the batches through the model, with different tokens for different experts.

    They store nothing, and the pages they read are zero.
    """
    model, rng = forward.model.config, np.random.default_rng(0)
    for batch in batches(model, bounds, gpu):
        if batch.decodes:
            inputs = builder.padding(batch.decodes)
            emitting = inputs.emit_rows
        else:
            builder.begin(np.zeros(0, dtype=np.int64))
            tokens = [rng.integers(model.vocab_size, size=new) for _, new in batch.chunks]
            slots, starts = range(len(tokens)), [cached for cached, _ in batch.chunks]
            layout = builder.mixed(slots, starts, tokens, [True] * len(tokens))
            layout.host.tokens[2] = -1
            inputs = builder.send(layout)
            emitting = inputs.emit
        meta = builder.metadata(
            inputs,
            num_decodes=batch.decodes,
            max_query_len=max((new for _, new in batch.chunks), default=1),
            max_seq_len=batch.longest,
        )
        hidden = forward.hidden(inputs, meta)
        forward.logits(hidden[: len(emitting)])
