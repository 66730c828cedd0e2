"""Page copies by the CUDA C++ kernel."""

from __future__ import annotations

import torch

from engine.kernels.cuda.library import launch, pointer
from engine.kernels.pages import copy_pages as op

Tensor = torch.Tensor
VECTOR_BYTES = 16
MAX_PAGES = 65535  # the limit of a grid's second dimension


def copy_pages(k_cache: Tensor, v_cache: Tensor, sources: Tensor, targets: Tensor) -> None:
    """See `engine.kernels.pages.copy_pages`."""
    page_bytes = k_cache[0].numel() * k_cache.element_size()
    if page_bytes % VECTOR_BYTES or not (k_cache.is_contiguous() and v_cache.is_contiguous()):
        op.reference(k_cache, v_cache, sources, targets)
        return
    for start in range(0, len(sources), MAX_PAGES):
        some_sources, some_targets = sources[start : start + MAX_PAGES], targets[start : start + MAX_PAGES]
        launch(
            "blis_copy_pages",
            k_cache.device,
            k_cache.data_ptr(),
            v_cache.data_ptr(),
            pointer(some_sources, torch.int64),
            pointer(some_targets, torch.int64),
            len(some_sources),
            page_bytes,
        )
