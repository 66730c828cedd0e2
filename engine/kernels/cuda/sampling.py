"""Sampling by the CUDA C++ kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from engine.kernels.cuda import library

if TYPE_CHECKING:
    from engine.kernels.sampling import SamplingTensors

Tensor = torch.Tensor


def sample(logits: Tensor, params: SamplingTensors) -> Tensor:
    """See `engine.kernels.sampling.sample`."""
    logits = logits.float().contiguous()
    rows, vocabulary = logits.shape
    bitmask = None if params.bitmask is None else params.bitmask.contiguous()
    columns = (
        (params.temperature, torch.float32),
        (params.top_k, torch.int32),
        (params.top_p, torch.float32),
        (params.min_p, torch.float32),
        (params.seeds, torch.int64),
        (params.positions, torch.int64),
    )
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    scratch = torch.empty(
        rows * library.load().blis_sample_scratch_bytes(), dtype=torch.uint8, device=logits.device
    )
    if rows:
        library.launch(
            "blis_sample",
            logits.device,
            logits.data_ptr(),
            None if bitmask is None else library.pointer(bitmask, torch.int32),
            rows,
            vocabulary,
            *(library.pointer(column, dtype) for column, dtype in columns),
            scratch.data_ptr(),
            tokens.data_ptr(),
        )
    return tokens
