"""Upload of small arrays to the device: side by side in one pinned buffer and one copy.

The host does not wait for it. A copy from pageable memory, even a non-blocking one, may have to wait for all
earlier work in the stream.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

_ALIGNMENT = 16
"""Alignment in bytes; see `engine.staging_buffer`."""


def upload(device: torch.device, *arrays: NDArray[Any]) -> tuple[torch.Tensor, ...]:
    """The arrays as tensors of their shapes on the device, each aligned to 16 bytes; on the CPU they share
    its memory.

    The pinned buffer may be dropped at once: PyTorch does not reuse it before this copy is over.
    """
    if device.type == "cpu":
        return tuple(torch.from_numpy(array) for array in arrays)
    sizes = [-(-array.nbytes // _ALIGNMENT) * _ALIGNMENT for array in arrays]
    *starts, nbytes = accumulate(sizes, initial=0)
    staged = torch.empty(nbytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
    host = staged.numpy()
    for array, start in zip(arrays, starts, strict=True):
        host[start : start + array.nbytes].view(array.dtype)[:] = array.reshape(-1)
    there = staged.to(device, non_blocking=True)
    return tuple(
        there[start : start + array.nbytes].view(_torch_dtype(array)).view(array.shape)
        for array, start in zip(arrays, starts, strict=True)
    )


def _torch_dtype(array: NDArray[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype=array.dtype)).dtype
