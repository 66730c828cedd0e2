"""Memory of a rank beyond weights and KV cache, by engine.

vLLM measures it at start: a forward pass of `max_num_batched_tokens` tokens, then the sampling of
`max_num_seqs` sequences; the larger of the two peaks is kept free of KV. In bytes, on one rank, with e bytes
per activation, H the hidden size, I the width of a feed-forward, k experts per token:

    forward   tokens*e*(hidden_vectors*H + 3*I/tp)                          dense layer
              tokens*e*(hidden_vectors*H + k*(max(2*I/tp, H) + I/tp))       sparse layer, experts fused
    sampling  sequences*vocabulary*sampling_bytes_per_logit + 2*tokens*e*H

Sampling goes over the whole vocabulary on every rank (logits in 16 and 32 bits, sorted values and their
indices, probabilities), while what the forward pass returned is still held. CUDA graphs are captured after
the pool has been sized, out of what the utilisation leaves free.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from blis_py.core.light_dataclass import dataclass
from blis_py.models.model_shape import ModelShape
from blis_py.models.weights import MXFP4_BYTES

_WIDTH_TILE, _HIDDEN_TILE = 128, 256
"""Multiples to which vLLM rounds the width of an expert on a rank, and the hidden size."""


class Activations(NamedTuple):
    """Memory that a rank reserves for activations."""

    bytes: float
    basis: str
    """Reason for the reservation, for the line with the capacity; empty for a constant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOverheads:
    """See the formulas above. A constant adds to them; parts that are 0 are left out."""

    activation_gib: float = 0.0
    """Constant, dense model, shared by the ranks."""
    sparse_activation_gib: float = 0.0
    """The same of a model with experts."""
    hidden_vectors: float = 0.0
    """Vectors of the hidden size that one token of a forward pass occupies at once; 0 = no profiling."""
    sampling_bytes_per_logit: float = 0.0
    rope_tables: int = 0
    """Tables of rotary embeddings loaded with the weights, as long as the model's longest sequence."""
    single_gpu_gib: float = 0.0
    """Memory outside the allocator, on one GPU: context and libraries."""
    rank_gib: float = 0.0
    """The same per rank with several ranks: includes communication buffers."""
    visible_memory: bool = False
    """Whether the utilisation is a share of the memory reported by CUDA, not of the datasheet's."""
    share_of_free: bool = False
    """Whether the utilisation is a share of the memory that is free after loading and profiling."""
    share_of_started: bool = False
    """Whether the utilisation is a share of the memory that is free before loading."""
    windows_apart: bool = False
    """Whether windowed layers keep no more than their window."""
    window_share: float = 0.0
    """Tokens in the pool of windowed layers for each in that of the others; 0 = as many as windows hold."""
    state_share: float = 0.0
    """Share of the pool set aside for states of linear attention; 0 = of as many sequences as may run."""
    states_reserved: bool = False
    """Whether states of `max_num_seqs` sequences are allocated at start, or the engine does not start."""
    image_encoders: bool = False
    """Whether encoders of images are loaded, divided among ranks as other weights are."""
    optional_encoders: bool = False
    """The same of a model that some engines serve for its text alone."""
    padded_mxfp4: bool = False
    """Whether experts in MXFP4 are loaded with both sizes of their matrices rounded up for the kernels."""
    graph_gib: float = 0.0
    """CUDA graphs, where they are counted before the pool is sized."""
    source: str = ""
    """Source of the figures."""

    def padded_experts(self, shape: ModelShape, gpus: int) -> float:
        """Loaded over stored size of the routed experts: gpt-oss-120b comes to 65.9 GiB on one GPU
        (logs: 64.4 to 66.0), and its file has 60.7."""
        if not self.padded_mxfp4 or shape.weights.experts != MXFP4_BYTES or not shape.moe_layers:
            return 1.0
        width = shape.moe_intermediate / gpus
        padded = ceil(width / _WIDTH_TILE) * _WIDTH_TILE * ceil(shape.hidden / _HIDDEN_TILE) * _HIDDEN_TILE
        return padded / (width * shape.hidden)

    def encoder_bytes(self, shape: ModelShape) -> float:
        """Weights of the encoder of images, on all ranks of a model together."""
        encoder = shape.image_encoder
        if encoder is None or not (self.optional_encoders if encoder.optional else self.image_encoders):
            return 0.0
        return encoder.parameters * shape.dtype_bytes

    def activations(self, shape: ModelShape, tp: int, tokens: int, seqs: int) -> Activations:
        """Memory the engine reserves, on one rank.

        Args:
            tokens: `max_num_batched_tokens`.
            seqs: `max_num_seqs`.
        """
        constant = (self.sparse_activation_gib if shape.is_moe else self.activation_gib) * (1 << 30) / tp
        if not self.hidden_vectors:
            return Activations(constant, "")
        seqs = min(seqs, tokens)
        vector = tokens * shape.dtype_bytes * shape.hidden
        forward = vector * self.hidden_vectors + tokens * shape.dtype_bytes * _widest(shape, tp)
        sampling = seqs * shape.vocab * self.sampling_bytes_per_logit + 2 * vector
        if forward > sampling:
            return Activations(constant + forward, f"a forward pass of {tokens:,} tokens")
        return Activations(constant + sampling, f"sampling {seqs:,} sequences")

    def rope_bytes(self, shape: ModelShape) -> float:
        """Cosines and sines, on every rank."""
        return self.rope_tables * shape.max_position_embeddings * shape.head_dim * shape.dtype_bytes


BLIS_OVERHEADS = MemoryOverheads(
    activation_gib=5.5,
    sparse_activation_gib=8.0,
    single_gpu_gib=0.15,
    rank_gib=0.6,
    source="the constants that BLIS publishes",
)
VLLM_OVERHEADS = MemoryOverheads(
    hidden_vectors=3.4,
    sampling_bytes_per_logit=35.5,
    rope_tables=1,
    single_gpu_gib=0.07,
    rank_gib=0.69,
    visible_memory=True,
    windows_apart=True,
    image_encoders=True,
    optional_encoders=True,
    padded_mxfp4=True,
    source="learned on KV pools that vLLM 0.9 to 0.31 reported (benchmarks/accuracy/kv_pools.py)",
)
SGLANG_OVERHEADS = MemoryOverheads(
    single_gpu_gib=0.7,
    rank_gib=2.0,
    visible_memory=True,
    share_of_started=True,
    windows_apart=True,
    window_share=0.8,
    state_share=0.9 / 1.9,
    image_encoders=True,
    source="mem_fraction_static, swa_full_tokens_ratio 0.8, mamba_full_memory_ratio 0.9 "
    "(sglang/srt/model_executor, profile_max_num_token); free before loading, by logs: 78.4 to 78.8 "
    "GiB on one H100, 77.3 to 77.5 on each of eight, 177.6 on one B200, 137.3 to 138.1 on several H200",
)
TRTLLM_OVERHEADS = MemoryOverheads(
    hidden_vectors=3.4,
    sampling_bytes_per_logit=4.0,
    single_gpu_gib=1.0,
    rank_gib=1.7,
    visible_memory=True,
    share_of_free=True,
    windows_apart=True,
    states_reserved=True,
    source="free_gpu_memory_fraction of what is left (tensorrt_llm/_torch/pyexecutor/_util.py); "
    "forward pass as vLLM; states of max_batch_size sequences (pyexecutor/mamba_cache_manager.py)",
)
OVERHEADS = {
    "blis": BLIS_OVERHEADS,
    "vllm": VLLM_OVERHEADS,
    "sglang": SGLANG_OVERHEADS,
    "trtllm": TRTLLM_OVERHEADS,
}
"""Overheads by the name used in configurations."""


GRAPHS_COUNTED = (0, 20)
"""First release of vLLM that counts CUDA graphs before it sizes the pool."""
UNCERTAIN_POOLS = (0, 26)
"""First release whose estimate is known to be far off for experts with DP or EP and for linear attention."""
GRAPH_GIB, GRAPH_RANGE_GIB = 0.3, (0.2, 6.2)
"""Typical and extreme CUDA graphs in logs of vLLM."""


def _widest(shape: ModelShape, tp: int) -> float:
    """Elements per token inside the widest feed-forward of the model."""
    dense = shape.ffn_matrices * shape.intermediate / tp if shape.plain_layers else 0.0
    if not shape.moe_layers:
        return dense
    expert = shape.moe_intermediate / tp
    sparse = shape.experts_per_token * (max(2 * expert, shape.hidden) + expert)
    return max(dense, sparse + 3 * shape.shared_intermediate / tp)
