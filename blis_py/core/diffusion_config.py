"""Execution settings of block diffusion, and their checks."""

from __future__ import annotations

from dataclasses import dataclass

from blis_py.core.checks import check_scheduler_config
from blis_py.core.config import SchedulerConfig
from blis_py.core.policies import CACHE_AWARE, SCHEDULERS
from blis_py.errors import InputError


@dataclass(frozen=True, slots=True)
class DiffusionConfig:
    """Execution of blocks, independent of the algorithm that fills them."""

    block_tokens: int = 32
    """Positions of a diffusion block; `SchedulerConfig.block_size` (the page) is a multiple of it."""
    fdfo: bool = True
    """Whether finished blocks leave at once; if not, a batch runs until all its blocks are final."""
    reuse_in_place: bool = True
    """Whether an unfinished block keeps its request slot and KV blocks between rounds."""
    reloop: bool = True
    """Whether another round runs on the same batch while no block is final and no request could be
    admitted."""

    def describe(self) -> str:
        """A one-line summary."""
        off = [
            name for name, on in (("in-place reuse", self.reuse_in_place), ("re-loop", self.reloop)) if not on
        ]
        mode = "first done first out" if self.fdfo else "synchronous"
        return f"block diffusion in blocks of {self.block_tokens}, {mode}" + "".join(f", no {o}" for o in off)


def check_diffusion_config(config: SchedulerConfig, diffusion: DiffusionConfig) -> None:
    """Check the settings of block diffusion.

    Raises:
        InputError: for the first invalid setting.
    """
    check_scheduler_config(config)
    if config.scheduler in CACHE_AWARE:
        fix = f"use one of {', '.join(name for name in SCHEDULERS if name not in CACHE_AWARE)}"
        raise InputError("not there for block diffusion", key="scheduler", value=config.scheduler, fix=fix)
    block = diffusion.block_tokens
    if block < 1:
        raise InputError("must be at least 1", key="block_diffusion.block_size", value=block)
    if config.block_size % block:
        fix = f"use a multiple of the diffusion block of {block} tokens"
        problem = "a page must hold whole diffusion blocks"
        raise InputError(problem, key="block_size", value=config.block_size, fix=fix)
    needed = config.max_num_seqs * block
    if config.max_num_batched_tokens < needed:
        raise InputError(
            f"{config.max_num_seqs} requests of one {block}-token block each need {needed} tokens in a round",
            key="max_num_batched_tokens",
            value=config.max_num_batched_tokens,
            fix=f"raise it to {needed}, or lower max_num_seqs to {config.max_num_batched_tokens // block}",
        )
    for key in ("max_model_len", "long_prefill_token_threshold"):
        value = getattr(config, key)
        if 0 < value < block:
            raise InputError(f"is less than a diffusion block of {block} tokens", key=key, value=value)
