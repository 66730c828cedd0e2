"""Attention of prompts with nothing cached by other libraries' kernels, chosen by `attention_backend`.

All keys and values of such a prompt are its own new tokens, so no block table is followed: they are gathered
from the cache once a layer. Decodes, chunks behind a prefix, sliding windows, sinks and captured steps stay
with `paged_attention`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from blis_py.errors import InputError
from engine.config import PAGED
from engine.kernels.attention import AttentionMetadata, paged_attention


@dataclass(frozen=True, slots=True)
class Prompts:
    """Prompts one after another, in a tensor of T tokens."""

    lengths: Sequence[int]
    starts: Tensor
    """`[P + 1]` int32, on the device: their first tokens, and T."""


Attend = Callable[[Tensor, Tensor, Tensor, Prompts, float], Tensor]
"""Causal attention: q `[T, H, D]`, k and v `[T, Hk, D]`, the prompts, the scale -> `[T, H, D]`."""

_PACKAGES = {"flash-attn": "flash_attn", "flashinfer": "flashinfer"}


def prompt_attention(name: str, device: torch.device) -> Attend | None:
    """The kernels of this name; None = no others than the engine's.

    Raises:
        InputError: they are not available here.
    """
    if name == PAGED:
        return None
    if name != "math" and device.type != "cuda":
        raise _unavailable(name, "it needs a GPU")
    if name == "cudnn" and not torch.backends.cudnn.is_available():
        raise _unavailable(name, "this torch has no cuDNN")
    package = _PACKAGES.get(name)
    if package is not None and find_spec(package) is None:
        raise _unavailable(name, f"the package {package} is not installed")
    return _MAKERS[name]()


def _unavailable(name: str, why: str) -> InputError:
    return InputError(f"not available: {why}", key="attention_backend", value=name, fix=f"use {PAGED}")


def _by_torch(backend: SDPBackend) -> Attend:
    return partial(_one_by_one, partial(_torch_prompt, backend))


def _torch_prompt(backend: SDPBackend, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    queries, keys, values = (part.transpose(0, 1).unsqueeze(0) for part in (q, k, v))
    with sdpa_kernel(backend):
        out = F.scaled_dot_product_attention(
            queries, keys, values, is_causal=True, scale=scale, enable_gqa=True
        )
    return out[0].transpose(0, 1)


def _flashinfer() -> Attend:
    single = import_module("flashinfer").single_prefill_with_kv_cache

    def attend(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        out: Tensor = single(q, k, v, causal=True, sm_scale=scale)
        return out

    return partial(_one_by_one, attend)


def _one_by_one(
    attend: Callable[[Tensor, Tensor, Tensor, float], Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    prompts: Prompts,
    scale: float,
) -> Tensor:
    queries, keys, values = (part.split(list(prompts.lengths)) for part in (q, k, v))
    parts = zip(queries, keys, values, strict=True)
    return torch.cat([attend(*part, scale) for part in parts])


def _flash_attention() -> Attend:
    varlen = import_module("flash_attn").flash_attn_varlen_func

    def attend(q: Tensor, k: Tensor, v: Tensor, prompts: Prompts, scale: float) -> Tensor:
        starts, longest = prompts.starts, max(prompts.lengths)
        out: Tensor = varlen(q, k, v, starts, starts, longest, longest, softmax_scale=scale, causal=True)
        return out

    return attend


_MAKERS: dict[str, Callable[[], Attend]] = {
    "cudnn": partial(_by_torch, SDPBackend.CUDNN_ATTENTION),
    "math": partial(_by_torch, SDPBackend.MATH),
    "flashinfer": _flashinfer,
    "flash-attn": _flash_attention,
}


@dataclass(frozen=True, slots=True)
class FreshPrompts:
    """The prompts of a step of which none has anything cached.

    Args:
        decodes: metadata of the sequences before them; None if there are none.
    """

    attend: Attend
    prompts: Prompts
    decodes: AttentionMetadata | None

    @classmethod
    def of(cls, attend: Attend, lengths: Sequence[int], meta: AttentionMetadata) -> FreshPrompts:
        """Those of a step behind whose decodes are prompts of these lengths."""
        count = meta.num_decodes
        if not count:
            return cls(attend, Prompts(lengths, meta.query_start), None)
        decodes = replace(
            meta,
            query_start=meta.query_start[: count + 1],
            seq_lens=meta.seq_lens[:count],
            block_tables=meta.block_tables[:count],
            max_query_len=1,
            plans={},
        )
        starts = meta.query_start[count:] - count
        return cls(attend, Prompts(lengths, starts), decodes)

    def attention(self, q: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor, scale: float) -> Tensor:
        """`[T, H, D]` for the queries `[T, H, D]` of the step.

        Args:
            slots: `[T]`, where keys and values of the tokens have just been stored.
        """
        before = len(q) - sum(self.prompts.lengths)
        own = slots[before:]
        keys, values = (_stored(cache, own).to(q.dtype) for cache in (k_cache, v_cache))
        out = self.attend(q[before:], keys, values, self.prompts, scale)
        if self.decodes is None:
            return out
        decoded = paged_attention(q[:before], k_cache, v_cache, self.decodes, scale)
        return torch.cat((decoded, out))


def _stored(cache: Tensor, slots: Tensor) -> Tensor:
    """`[T, Hk, D]` of a cache `[pages, Hk, page, D]`."""
    page_size = cache.shape[2]
    return cache[slots // page_size, :, slots % page_size]
