"""The physical basis of a fitted step time: the quantities a step is charged for, each with a price in ns.

The terms are written once, for numbers and for arrays: a fit evaluates them on columns of measured steps, the
latency model on a single step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Point = Any
"""A step, or columns of steps: the attributes of `StepPoint`, as numbers or as arrays of one length."""


FEW_TOKENS, FIRST_TOKENS = 4, 16
"""Up to about these sizes a further row of a CPU's matrix product costs more than one of a larger product."""


class StepPoint:
    """Inputs of the terms: the features of a step, and values derived from them."""

    __slots__ = (
        "active_experts",
        "attended",
        "begins_batch",
        "decode_kv_tokens",
        "emitted_rows",
        "knee",
        "max_context",
        "prefill_kv_tokens",
        "prefill_pairs",
        "prefill_seqs",
        "prefill_tokens",
        "seqs",
        "tokens",
    )

    tokens: Any
    """Tokens through the dense layers, padding of a captured graph included."""
    seqs: Any
    attended: Any
    """Sequences that read their whole context with one or few queries: decodes and denoised blocks."""
    begins_batch: Any
    """1 in the first round of a batch of denoising rounds."""
    decode_kv_tokens: Any
    max_context: Any
    """Not negative: 0 if it is not tracked."""
    prefill_seqs: Any
    """Prompts; blocks being denoised are none."""
    prefill_tokens: Any
    prefill_pairs: Any
    prefill_kv_tokens: Any
    emitted_rows: Any
    active_experts: Any
    """Experts read, summed over the sparse layers."""
    knee: int
    """Number of tokens from which matrix products are compute-bound."""


TERMS: dict[str, Callable[[Point], Any]] = {
    "step": lambda x: 1.0,
    "tokens": lambda x: x.tokens,
    "tokens_beyond_knee": lambda x: (x.tokens > x.knee) * (x.tokens - x.knee),
    "decode_kv_tokens": lambda x: x.decode_kv_tokens,
    "max_context": lambda x: x.max_context,  # the longest sequence of a split-KV kernel is its tail
    "padded_kv_tokens": lambda x: x.attended * x.max_context,  # batched attention padded to the longest
    "first_tokens": lambda x: x.tokens - (x.tokens > FIRST_TOKENS) * (x.tokens - FIRST_TOKENS),
    "few_tokens": lambda x: x.tokens - (x.tokens > FEW_TOKENS) * (x.tokens - FEW_TOKENS),
    "any_decode": lambda x: (x.attended > 0) * 1.0,  # the attention call of all decodes together
    "any_prefill": lambda x: (x.prefill_seqs > 0) * 1.0,  # the host creates a batch of another kind
    "seqs": lambda x: x.seqs,
    "prefill_seqs": lambda x: x.prefill_seqs,
    "prefill_tokens": lambda x: x.prefill_tokens,
    "prefill_pairs": lambda x: x.prefill_pairs,
    "prefill_kv_tokens": lambda x: x.prefill_kv_tokens,
    "emitted_rows": lambda x: x.emitted_rows,
    "active_experts": lambda x: x.active_experts,
    "begins_batch": lambda x: x.begins_batch,  # the scheduler runs between two batches of rounds
}
"""Name -> amount of it in a step. No term shrinks when a feature grows, so non-negative prices give a
monotone model."""

SURFACE = ("step", "tokens", "tokens_beyond_knee", "decode_kv_tokens")
"""The terms that depend on tokens and decode KV only: the part corrected by a table."""
GROWING = ("decode_kv_tokens", "max_context", "padded_kv_tokens")
"""The terms that change from one decode step to the next."""
RARE = ("first_tokens", "few_tokens", "any_decode", "max_context", "padded_kv_tokens")
"""The terms that only some devices have."""
TRACKED = ("max_context", "padded_kv_tokens")
"""The terms that need `StepFeatures.max_context`."""

_COMMON = (
    "step",
    "tokens",
    "tokens_beyond_knee",
    "decode_kv_tokens",
    "seqs",
    "prefill_seqs",
    "prefill_pairs",
    "prefill_kv_tokens",
    "emitted_rows",
    "active_experts",
)
GPU_TERMS: dict[str, tuple[str, ...]] = {
    "cuda": (*_COMMON, "max_context"),
    "cpu": (*_COMMON, "first_tokens", "few_tokens", "any_decode", "padded_kv_tokens"),
}
"""Kind of device -> terms of the forward pass. On the CPU, decodes are attended in one call, padded to the
longest, and each prefill in another."""
HOST_TERMS = (
    "step",
    "begins_batch",
    "any_prefill",
    "seqs",
    "prefill_seqs",
    "prefill_tokens",
    "emitted_rows",
)
