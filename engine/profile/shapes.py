"""Shapes, and whether an engine can run them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from blis_py.core.blocks import block_count

if TYPE_CHECKING:
    from engine.diffusion.engine import DiffusionEngine
    from engine.engine import LLMEngine
    from engine.profile.experts import ForcedExperts

SLACK_STEPS = 4
"""Steps of a visit besides the measured ones, rounded up: one before them, one after."""


@dataclass(frozen=True, slots=True)
class ShapeLimits:
    """Limits of an engine."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    num_kv_blocks: int
    block_size: int
    chunk: int = 0
    """Longest chunk of one prompt in a step; 0 = no limit."""
    buckets: tuple[int, ...] = ()
    """Batch sizes of captured graphs."""
    mixed_buckets: tuple[int, ...] = ()
    """Tokens of captured graphs with prompts."""
    mixed_prompts: int = 0
    """Most prompts in such a graph."""
    experts: int = 0
    """Routed experts of a sparse layer; 0 = the model has none."""
    top_k: int = 0
    """Experts per token."""
    shares: bool = False
    """Whether sequences with a common prefix share pages."""


def limits_of(engine: LLMEngine | DiffusionEngine, experts: ForcedExperts | None = None) -> ShapeLimits:
    """Limits of an engine, without those of autoregressive engines alone."""
    config, graphs = engine.scheduler.config, engine.executor.graphs
    return ShapeLimits(
        config.max_num_seqs,
        config.max_num_batched_tokens,
        config.max_model_len,
        config.num_kv_blocks,
        config.block_size,
        config.long_prefill_token_threshold,
        tuple(graphs.buckets) if graphs is not None else (),
        experts=experts.experts if experts is not None else 0,
        top_k=experts.top_k if experts is not None else 0,
    )


@dataclass(frozen=True, slots=True)
class Shape:
    """One batch composition to be measured."""

    source: str
    decodes: tuple[int, ...] = ()
    """Context of each decoding sequence in the first measured step."""
    prefills: tuple[tuple[int, int], ...] = ()
    """For each prompt: its new tokens, and the cached tokens before them, whole blocks."""
    steps: int = 1
    """Consecutive measured steps; from one to the next every context grows by 1."""
    experts: int = 0
    """Active experts of a sparse layer; 0 = as chosen by the router."""
    shared: int = 0
    """Leading tokens common to all decodes, whole blocks."""

    @property
    def contexts(self) -> list[int]:
        """Tokens of every sequence, prompt included, at the start of the measured steps."""
        return [*self.decodes, *(past + new for new, past in self.prefills)]


@dataclass(frozen=True, slots=True)
class Grid:
    """Resolution of the plan."""

    batches: int | None = None
    """Decode batch sizes without graphs; `None` = every power of two, and between."""
    buckets: int = 20
    """Captured sizes among the decode batches, spaced by a common ratio; and one above every third."""
    contexts: int = 5
    skewed_batches: tuple[int, ...] = (4, 16, 64)
    prefill_tokens: int = 6
    prefill_seqs: tuple[int, ...] = (1, 4, 16)
    pasts: int = 3
    """Cached tokens of a prompt: none, and the longest minus each of these."""
    mixed: int = 48
    experts: int = 5
    shared: int = 3
    """Common prefix of decodes: none, and up to all but their last blocks."""
    decode_steps: int = 3
    """Consecutive measured steps."""


GRIDS = {
    "full": Grid(),
    "quick": Grid(
        batches=2,
        buckets=2,
        contexts=2,
        skewed_batches=(2,),
        prefill_tokens=2,
        prefill_seqs=(1, 2),
        pasts=2,
        mixed=2,
        experts=2,
        shared=2,
        decode_steps=2,
    ),
}


def fits(shape: Shape, limits: ShapeLimits) -> bool:
    """Whether an engine can run exactly this shape."""
    decodes, budget_tokens = len(shape.decodes), limits.max_num_batched_tokens
    if decodes + len(shape.prefills) > limits.max_num_seqs or decodes + 1 > budget_tokens:
        return False
    if shape.prefills and decodes + sum(new for new, _ in shape.prefills) > budget_tokens:
        return False
    if limits.chunk and any(new > limits.chunk for new, _ in shape.prefills):
        return False
    contexts, more = shape.contexts, shape.steps + SLACK_STEPS
    if min(contexts) < 1 or min(shape.decodes, default=2) < 2 or max(contexts) + more > limits.max_model_len:
        return False
    return sum(block_count(context + more, limits.block_size) for context in contexts) <= limits.num_kv_blocks
