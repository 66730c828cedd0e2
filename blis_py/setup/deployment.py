"""A model on its GPUs, from a configuration."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from blis_py.config.models import RunConfig
from blis_py.core.bounds import MAX_KV_BLOCKS, check_count
from blis_py.errors import InputError
from blis_py.hardware.gpu import GpuSpec, load_gpu
from blis_py.models.kv_pages import KVPages
from blis_py.models.model_shape import ModelShape, config_name, load_model, with_kv_dtype
from blis_py.setup._capacity import capacity
from blis_py.setup.grouped_layers import grouped_layers

if TYPE_CHECKING:
    from blis_py.latency.fitted_profile import FittedProfile


class Deployment(NamedTuple):
    """A model on its GPUs."""

    config: RunConfig
    """Configuration, including the settings that a fitted profile implies."""
    shape: ModelShape
    gpu: GpuSpec | None
    """None if a fitted profile was measured on a device without a datasheet."""
    profile: FittedProfile | None
    capacity: str
    num_kv_blocks: int
    """KV blocks of one instance."""
    sequences: int | None
    """Sequences for whose states of linear attention a replica has memory; None = any number."""
    hands_over: bool = False
    """Whether its KV goes to other instances, or comes from them."""
    pages: KVPages | None = None
    """Groups of layers that share the KV blocks; None = one group."""

    @property
    def max_num_seqs(self) -> int:
        """Most running requests of a replica."""
        most = self.config.scheduler.max_num_seqs
        return most if self.sequences is None else min(most, self.sequences)

    def block_notes(self) -> list[str]:
        """Notes where blocks are larger than a user has set them, or a pool has one group of layers and the
        engine's several."""
        given, size = self.config.given, self.config.scheduler.block_size
        if self.pages is not None:
            if not self.pages.block_size or not given or "scheduler.block_size" not in given:
                return []
            return [f"block_size is {size:,} tokens: of attention as large as a state, as vLLM raises it"]
        if self.hands_over:
            apart = grouped_layers(self.config, self.shape, self.gpu)
            if apart is None:
                return []
            groups = f"{len(apart.groups)} groups of layers"
            return [
                f"vLLM shares the KV blocks among {groups}; with pools for prompts and for answers they are "
                "counted as one"
            ]
        if self.shape.linear is None or self.config.memory != "vllm":
            return []
        return [
            "states beside this prefix cache are counted in one group of layers, and found with any cached "
            "prefix; vLLM's rules are simulated from 0.26 on, and without a prefix cache"
        ]

    def sequence_notes(self) -> list[str]:
        """A note where memory limits the running requests."""
        most = self.config.scheduler.max_num_seqs
        if self.max_num_seqs == most:
            return []
        of = "a replica" if self.config.attention_dp > 1 else "an instance"
        return [
            f"at most {self.max_num_seqs:,} requests run at once on {of}, not max_num_seqs {most:,}: "
            "there is no memory for the states of linear attention of more beside their KV"
        ]


def deployed(config: RunConfig, hands_over: bool = False) -> Deployment:
    """Resolve model, GPU and KV capacity.

    Args:
        hands_over: whether its KV goes to other instances, or comes from them, in one table of blocks.

    Raises:
        InputError: there is no such model or GPU, the model is not priced, or it does not fit.
    """
    profile, gpu, line, blocks, sequences = None, None, "", 0, None
    if config.latency.model == "fitted":
        from blis_py.setup._measured import measured_run

        measured = measured_run(config)
        config, shape, gpu, profile = measured.config, measured.shape, measured.gpu, measured.profile
        if gpu is None:
            line, blocks = measured.capacity()
    else:
        shape = with_kv_dtype(load_model(_model_name(config), config.model_config), config.kv_cache_dtype)
        gpu = load_gpu(config.gpu)
        if config.link_gbps is not None:
            gpu = gpu.linked_at(config.link_gbps)
    pages = None if hands_over else grouped_layers(config, shape, gpu)
    if pages is not None and pages.block_size:
        config = replace(config, scheduler=replace(config.scheduler, block_size=pages.block_size))
    if gpu is not None:
        line, blocks, sequences = capacity(config, shape, gpu, pages)
    check_count(
        blocks, least=1, most=MAX_KV_BLOCKS, key="KV blocks of an instance", fix="use fewer or larger blocks"
    )
    return Deployment(config, shape, gpu, profile, line, blocks, sequences, hands_over, pages)


def _model_name(config: RunConfig) -> str:
    if config.model is not None:
        return config.model
    if config.model_config is None:
        raise InputError("no model given", key="--model", fix="name one, for example --model llama-3.1-8b")
    return config_name(config.model_config)
