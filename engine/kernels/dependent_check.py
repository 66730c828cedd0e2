"""Check on the device, at first use, that kernels launched early compute what they compute otherwise."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from engine.kernels.activation import swiglu
from engine.kernels.attention import AttentionMetadata, paged_attention
from engine.kernels.dependent import MIN_ARCH, launching_dependents
from engine.kernels.gpu import gpu_of
from engine.kernels.norm import rms_norm
from engine.kernels.qkv import qk_norm_rope_store

LAYERS, ROUNDS = 6, 8
SEQS, CONTEXT_TOKENS, WIDTH = 24, 192, 512
_PAGE = 64


def dependent_launch_works(sizes: Any, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether it does, on this GPU; warns if not.

    Args:
        sizes: the `ModelConfig`, whose heads the check has.
    """
    problem = ""
    if device.type == "cuda" and gpu_of(device).arch < MIN_ARCH:
        problem = f"needs compute capability {MIN_ARCH / 10}"
    elif not _equal(sizes, dtype, device):
        problem = "computes something else on this GPU"
    if problem:
        warnings.warn(
            f"dependent_launch {problem}: kernels are launched as usual", RuntimeWarning, stacklevel=2
        )
    return not problem


@torch.inference_mode()
def _equal(sizes: Any, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether layers back to back, whose kernels are all short of work, give the same numbers bit by bit."""
    chain = _Chain(sizes, dtype, device)
    expected = [chain.run(number) for number in range(ROUNDS)]
    with launching_dependents():
        outputs = [chain.run(number) for number in range(ROUNDS)]  # no waiting in between
    return all(torch.equal(there, here) for there, here in zip(expected, outputs, strict=True))


class _Chain:
    """Layers of attention and feed-forward over random weights, inputs and pages."""

    def __init__(self, sizes: Any, dtype: torch.dtype, device: torch.device) -> None:
        self._heads, self._kv_heads, self._dim = sizes.num_heads, sizes.num_kv_heads, sizes.head_dim
        generator = torch.Generator(device).manual_seed(0)

        def random(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, device=device).mul_(shape[-1] ** -0.5).to(dtype)

        rows = (self._heads + 2 * self._kv_heads) * self._dim
        self._qkv, self._out = random(rows, WIDTH), random(WIDTH, self._heads * self._dim)
        self._gate_up, self._down = random(4 * WIDTH, WIDTH), random(WIDTH, 2 * WIDTH)
        self._gain = torch.ones(WIDTH, dtype=dtype, device=device)
        self._inputs = [random(SEQS, WIDTH) for _ in range(ROUNDS)]
        pages = -(-CONTEXT_TOKENS // _PAGE)
        shape = (SEQS * pages, self._kv_heads, _PAGE, self._dim)
        self._kv = random(*shape), random(*shape)
        self._angles = torch.rand(CONTEXT_TOKENS, self._dim, generator=generator, device=device)
        lengths = torch.arange(CONTEXT_TOKENS, CONTEXT_TOKENS - SEQS, -1, dtype=torch.int32, device=device)
        tables = torch.arange(SEQS * pages, dtype=torch.int32, device=device).view(SEQS, pages)
        starts = torch.arange(SEQS + 1, dtype=torch.int32, device=device)
        self._meta = AttentionMetadata(starts, lengths, tables, 1, CONTEXT_TOKENS, SEQS)
        self._positions = lengths.long() - 1
        page = tables.gather(1, (self._positions // _PAGE)[:, None])[:, 0].long()
        self._slots = page * _PAGE + self._positions % _PAGE

    def run(self, number: int) -> Tensor:
        """Hidden states `[S, width]` behind the layers."""
        k_cache, v_cache = self._kv
        hidden, residual = self._inputs[number], self._inputs[number - 1]
        for _ in range(LAYERS):
            hidden, residual = rms_norm(hidden, self._gain, 1e-6, residual)
            q = qk_norm_rope_store(
                hidden @ self._qkv.t(), self._angles, self._positions, self._slots, k_cache, v_cache, None
            )
            attended = paged_attention(q, k_cache, v_cache, self._meta, self._dim**-0.5)
            hidden = attended.flatten(1) @ self._out.t()
            hidden, residual = rms_norm(hidden, self._gain, 1e-6, residual)
            hidden = swiglu(hidden @ self._gate_up.t()) @ self._down.t()
        return hidden + residual
