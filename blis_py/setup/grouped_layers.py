"""Groups of a model's layers that share one pool of KV blocks, by the rules of a release of vLLM."""

from __future__ import annotations

import re
from typing import NamedTuple

from blis_py.config.engine import load_engine
from blis_py.config.models import RunConfig
from blis_py.hardware.gpu import GpuSpec
from blis_py.models.kv_pages import KVPages, StateRules, kv_pages
from blis_py.models.model_shape import ModelShape
from blis_py.setup._capacity import layout_of

_COMPARED = (0, 15)
"""First release of vLLM whose groups were compared."""
_MORE_PADDING = (0, 18)
"""First release of vLLM whose groups may be as large as kinds with up to half as many layers again."""
_LESS_PADDING, _PADDING = 1.25, 1.5
_SPANS = (0, 24)
"""First release whose blocks of several sizes were compared."""
_STATES_CACHED = (0, 26)
"""First release whose prefix cache keeps states in the way that is simulated."""
_USERS_MULTIPLE, _MULTIPLE = (0, 24), 16
"""First release whose blocks with states are multiples of the block size that a user gives, and the number of
tokens of which those of others are."""
_WIDE_LATENT, _LATENT_MULTIPLE, _EARLIER_MULTIPLE = (0, 27), 128, 64
"""First release whose blocks of a latent cache beside states hold a multiple of 128 tokens, that number, and
the one before."""
_COPIES_SINCE = {"kda": (0, 29), "mamba2": (0, 32), "gdn": (0, 33)}
"""First releases whose kernels copy states inside a chunk, by kind of layer."""
_KERNEL_TOKENS = 64
"""Tokens of which FlashInfer's kernel for the gated delta rule copies the state behind a multiple."""
_FLASHINFER = re.compile(r"(GH?|HGX )?(H20|H100|H200|B200|B300)\b|G[BH]\d|RTX PRO|RTX 50", re.IGNORECASE)
"""GPUs with that kernel: Hopper's and, under CUDA 13, Blackwell's."""


def grouped_layers(config: RunConfig, shape: ModelShape, gpu: GpuSpec | None = None) -> KVPages | None:
    """Groups of layers that share the pool block by block, as vLLM's hybrid KV cache manager has them; None =
    one group."""
    settings = config.scheduler
    hashed = settings.prefix_cache in ("hash", "none") and settings.batch_former == "running-first"
    if config.memory != "vllm" or not (settings.hybrid_kv_cache and hashed):
        return None
    caches = settings.enable_prefix_caching and settings.prefix_cache != "none"
    server = PoolOfRelease(load_engine(config.engine).release, gpu, caches, settings.block_size)
    return server.pages(shape, layout_of(config).attention_tp)


class PoolOfRelease(NamedTuple):
    """Settings of a server that decide its groups of layers.

    Attributes:
        release: of vLLM.
        caches: whether it has a prefix cache.
        block_size: tokens that a user gives.
    """

    release: tuple[int, ...]
    gpu: GpuSpec | None
    caches: bool
    block_size: int = 16

    def pages(self, shape: ModelShape, attention_tp: int) -> KVPages | None:
        """The groups of a model; None = one."""
        if self.release < _COMPARED and shape.linear is None:
            return None
        padding = _PADDING if self.release >= _MORE_PADDING else _LESS_PADDING
        rules = None if shape.linear is None else self._state_rules(shape)
        return kv_pages(shape, attention_tp, padding, rules, spans=self.release >= _SPANS)

    def _state_rules(self, shape: ModelShape) -> StateRules | None:
        """Sizes of blocks that hold states; None for a prefix cache that keeps them in a way that is not
        simulated."""
        if self.caches and self.release < _STATES_CACHED:
            return None
        copied = self.caches and _copies(shape, self.gpu, self.release)
        multiple = self.block_size if self.release >= _USERS_MULTIPLE else _MULTIPLE
        if copied and shape.linear is not None and shape.linear.kind == "gdn":
            multiple = max(multiple, _KERNEL_TOKENS)
        latent = _LATENT_MULTIPLE if self.release >= _WIDE_LATENT else _EARLIER_MULTIPLE
        return StateRules(self.block_size, multiple, latent, self.caches, copied)


def _copies(shape: ModelShape, gpu: GpuSpec | None, release: tuple[int, ...]) -> bool:
    """Whether kernels write a state at the end of a block inside a chunk: those of Mamba-2, FlashInfer's for
    the gated delta rule, and FlashKDA, which needs a bounded gate."""
    linear = shape.linear
    if linear is None or release < _COPIES_SINCE[linear.kind]:
        return False
    if linear.kind == "mamba2":
        return True
    if linear.kind == "kda" and not linear.bounded:
        return False
    return gpu is not None and _FLASHINFER.match(gpu.name) is not None
