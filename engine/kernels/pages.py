"""Copying whole pages of the KV cache."""

from __future__ import annotations

import torch

from engine.kernels import backend
from engine.kernels.reference import pages as reference

Tensor = torch.Tensor


def copy_pages(k_cache: Tensor, v_cache: Tensor, sources: Tensor, targets: Tensor) -> None:
    """Copy page `sources[i]` onto page `targets[i]` in both caches, in place.

    k_cache, v_cache: `[num_pages, ...]` contiguous; sources, targets: `[n]` int64. The targets are distinct,
    and no page is both source and target: the copies happen in no particular order.
    """
    if sources.shape != targets.shape:
        raise ValueError(f"{len(sources)} source pages and {len(targets)} target pages: give as many of each")
    if backend.choose_cuda(k_cache) == "reference":
        reference.copy_pages(k_cache, v_cache, sources, targets)
    else:
        from engine.kernels.cuda import pages

        pages.copy_pages(k_cache, v_cache, sources, targets)
