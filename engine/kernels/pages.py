"""Copying whole pages of the KV cache."""

from __future__ import annotations

import torch

from engine.kernels.op import op

Tensor = torch.Tensor


def _check(k_cache: Tensor, v_cache: Tensor, sources: Tensor, targets: Tensor) -> None:
    if sources.shape != targets.shape:
        raise ValueError(f"{len(sources)} source pages and {len(targets)} target pages: give as many of each")


@op("cuda", check=_check)
def copy_pages(k_cache: Tensor, v_cache: Tensor, sources: Tensor, targets: Tensor) -> None:
    """Copy page `sources[i]` onto page `targets[i]` in both caches, in place.

    k_cache, v_cache: `[num_pages, ...]` contiguous; sources, targets: `[n]` int64. The targets are distinct,
    and no page is both source and target: the copies happen in no particular order.
    """
    k_cache.index_copy_(0, targets, k_cache.index_select(0, sources))
    v_cache.index_copy_(0, targets, v_cache.index_select(0, sources))
