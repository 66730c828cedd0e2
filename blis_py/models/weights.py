"""Storage formats of a model's weights and of its KV cache."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

from blis_py.core.light_dataclass import dataclass

MXFP4_BYTES = 0.53125
"""4 bits and one 8-bit scale per 32 weights."""
MXFP8_BYTES = 1.03125
"""8 bits and one 8-bit scale per 32 weights."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes per weight of each kind of matrix: 2 unquantised, 1 FP8 or INT8. If layers differ, the mean.

    Embeddings, norms and routers are never quantised.
    """

    attention: float = 2.0
    dense: float = 2.0
    """Feed-forward of the dense layers."""
    shared: float = 2.0
    """Shared experts."""
    experts: float = 2.0
    """Routed experts."""
    head: float = 2.0
    """LM head."""
    arithmetic: str = "fp16"
    """Format in which quantised weights are multiplied: fp8, int8, fp4; fp16 if they are expanded first."""
    linear: float = 2.0
    """Projections of linear attention."""
    output: float = 0.0
    """Attention's output projection, where it differs from the mean `attention`; 0 = it does not."""
    block_scales: bool = False
    """FP8 with a scale per block of weights instead of one per tensor or channel: other kernels."""
    wide_arithmetic: str = ""
    """Format in which weights of 8 bits are multiplied, where narrower ones have `arithmetic`; empty = the
    same."""

    @classmethod
    def of(cls, size: float, arithmetic: str = "fp16", head: float = 2.0) -> Weights:
        """The same size for all linear layers."""
        return cls(size, size, size, size, head, arithmetic)

    def at_most(self, size: float) -> Weights:
        """The linear layers quantised to `size`, if they are larger; the LM head unchanged."""
        attention, dense = min(self.attention, size), min(self.dense, size)
        shared, experts = min(self.shared, size), min(self.experts, size)
        return replace(self, attention=attention, dense=dense, shared=shared, experts=experts, output=0.0)

    def format_of(self, size: float) -> str:
        """The format in which weights of this size are multiplied."""
        if size >= 2:
            return "fp16"
        return self.wide_arithmetic if size >= 1 and self.wide_arithmetic else self.arithmetic


@dataclass(frozen=True, slots=True)
class LayerCounts:
    """The layers of a model, as far as their weights may be stored differently."""

    count: int
    sparse: Collection[int]
    """Layers with routed experts."""
    dense: Collection[int]
    """Layers with a feed-forward of their own."""
    cached: Collection[int]
    """Layers of attention with a KV cache."""
    heads: int
    kv_heads: int
    dtype_bytes: int
    linear: Collection[int] = ()
    """Layers of linear attention."""
    indexed: Collection[int] = ()
    """Layers with an indexer of sparse attention."""
    latent_weights: Sequence[int] = ()
    """Weights of latent attention: of the projections down and of queries, of the expansion, of the
    output."""
    linear_kind: str = "gdn"
    """Kind of the layers `linear`; see `linear_attention`."""
    beside: bool = False
    """Whether experts stand beside a dense feed-forward, which then takes the place of shared ones."""
    gated: bool = True
    """Whether feed-forward layers have three matrices."""


class Quantisation(NamedTuple):
    """Storage of weights and KV cache."""

    weights: Weights
    kv_dtype_bytes: int
    notes: tuple[str, ...] = ()
    """Assumptions."""
    indexer: float = 2.0
    """Bytes per weight of the queries of sparse attention's indexer."""


def unquantised(layers: LayerCounts) -> Quantisation:
    """All weights in the format of the activations."""
    plain = float(layers.dtype_bytes)
    weights = Weights.of(plain, head=plain)
    weights = replace(weights, linear=plain) if layers.linear else weights
    return Quantisation(weights, layers.dtype_bytes, indexer=plain)
