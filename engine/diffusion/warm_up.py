"""The same as `engine.warm_up` for rounds of block diffusion."""

from __future__ import annotations

from dataclasses import replace

import torch

from blis_py.core.blocks import block_count
from engine.diffusion.blocks import Algorithm, Blocks, Logits
from engine.diffusion.executor import lay_out
from engine.executor import Model
from engine.forward_context import KVCache
from engine.kernels.gpu import Gpu
from engine.warm_up import Bounds, batches


@torch.inference_mode()
def warm_up_rounds(
    model: Model,
    kv: KVCache,
    page_tokens: int,
    algorithm: Algorithm,
    mask_id: int,
    bounds: Bounds,
    gpu: Gpu,
) -> None:
    """Runs batches of blocks and prompt chunks through the model, and the algorithm on one block.

    They store nothing, and the pages they read are zeros.
    """
    device, vocabulary, size = kv[0][0].device, model.config.vocab_size, bounds.block
    for batch in batches(model.config, bounds, gpu):
        spans = [(cached, new, [0] * block_count(cached + new, page_tokens)) for cached, new in batch.chunks]
        context = lay_out(spans, page_tokens, size, kv, device)
        ids = torch.arange(batch.tokens, device=device) % vocabulary
        hidden = model(ids, replace(context, slots=torch.full_like(context.slots, -1)))
        rows = torch.arange(size, device=device)
        logits = model.logits(hidden.index_select(0, rows))
    masks = torch.full((1, size), mask_id, dtype=torch.int64, device=device)
    blocks = Blocks(masks, torch.ones_like(masks, dtype=torch.bool), mask_id)
    algorithm.step(blocks, Logits(logits, rows), algorithm.init_step_state(blocks))
