"""The engine's ops: plain functions that pick the implementation by the tensors' device.

CPU tensors run the torch references, CUDA tensors the Triton and CUDA C++ kernels;
`backend.force` overrides the choice.
"""

from engine.kernels.activation import geglu, swiglu
from engine.kernels.attention import AttentionMetadata, paged_attention
from engine.kernels.denoise import denoise
from engine.kernels.moe import align_experts, fused_moe, route_grouped_sigmoid, route_softmax
from engine.kernels.norm import rms_norm
from engine.kernels.pages import copy_pages
from engine.kernels.qkv import QkNorm, qk_norm_rope_store
from engine.kernels.sampling import SamplingTensors, apply_penalties, logprobs, sample

__all__ = [
    "AttentionMetadata",
    "QkNorm",
    "SamplingTensors",
    "align_experts",
    "apply_penalties",
    "copy_pages",
    "denoise",
    "fused_moe",
    "geglu",
    "logprobs",
    "paged_attention",
    "qk_norm_rope_store",
    "rms_norm",
    "route_grouped_sigmoid",
    "route_softmax",
    "sample",
    "swiglu",
]
