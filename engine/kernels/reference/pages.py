"""Page copies in torch."""

from __future__ import annotations

import torch

Tensor = torch.Tensor


def copy_pages(k_cache: Tensor, v_cache: Tensor, sources: Tensor, targets: Tensor) -> None:
    """See `engine.kernels.pages.copy_pages`."""
    k_cache.index_copy_(0, targets, k_cache.index_select(0, sources))
    v_cache.index_copy_(0, targets, v_cache.index_select(0, sources))
