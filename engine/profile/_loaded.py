"""A model as profiles are measured with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from engine.config import EngineConfig
from engine.graphs import default_buckets
from engine.models import Decoder, Tokenizer, build_model, load_model_config, load_tokenizer
from engine.profile.experts import ForcedExperts, has_experts
from engine.profile.prompts import ProfilePrompts


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model, ready to be built into engines."""

    config: EngineConfig
    model: Decoder
    tokenizer: Tokenizer
    experts: ForcedExperts | None
    mask_id: int | None

    @classmethod
    def of(cls, config: EngineConfig, device: torch.device, mask_token: Callable[[str], int]) -> Loaded:
        architecture = load_model_config(config.model)
        block = architecture.mask_block
        model = build_model(
            architecture,
            device=device,
            dtype=getattr(torch, config.dtype_on(device.type)),
            load_format=config.load_format,
            path=config.model,
            seed=config.seed,
            max_positions=config.max_model_len,
        )
        experts = None
        if has_experts(model):
            buckets = config.cudagraph_capture_sizes or default_buckets(config.max_num_seqs)
            rows = max(config.max_num_batched_tokens, max(*buckets, config.max_num_seqs) * block)
            experts = ForcedExperts(model, rows, config.seed)
        mask_id = mask_token(config.model) if block > 1 else None
        return cls(config, model, load_tokenizer(config.tokenizer or config.model), experts, mask_id)

    @property
    def in_blocks(self) -> bool:
        """Whether its answers come in blocks."""
        return self.mask_id is not None

    def prompts(self) -> ProfilePrompts:
        """Prompts of the tiny tasks where the weights mean something."""
        config = self.config
        readable = self.tokenizer if config.load_format == "safetensors" else None
        return ProfilePrompts(self.model.config.vocab_size, readable, config.seed)

    def facts(self) -> dict[str, Any]:
        """Metadata of its samples."""
        dtype = str(self.model.embedding.dtype).removeprefix("torch.")
        forced = {"routing": "forced"} if self.experts is not None else {}
        return {"dtype": dtype, "tp": 1, **forced}
