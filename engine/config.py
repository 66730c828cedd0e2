"""Settings of an engine, under vLLM's names."""

from dataclasses import fields, replace
from math import inf

from blis_py.core.checks import check_fields
from blis_py.core.config import (
    Aging,
    Batching,
    Memory,
    Overlap,
    PrefixCaching,
    PromptLimits,
    SchedulerConfig,
    queue_order,
)
from blis_py.core.light_dataclass import dataclass
from blis_py.core.settings import extended, setting
from blis_py.errors import InputError

PAGED = "triton"
"""The engine's own attention."""
BLOCK_SIZES = (16, 32, 64, 128, 256)
_AUTO_DTYPE = {"cuda": "bfloat16", "cpu": "float32"}
_AUTO_BLOCK_SIZE = {"cuda": 64, "cpu": 16}
"""A page of 64 tokens is a whole tile of keys for the attention kernels: its place is looked up once."""


@dataclass(frozen=True, kw_only=True)
class EngineConfig(Aging, PrefixCaching, PromptLimits, Overlap, Memory, Batching):
    """Settings of one engine; the scheduler's own are those of `SchedulerConfig`.

    Raises:
        InputError: an invalid setting.
    """

    model: str = setting(
        flag="--model",
        help="Checkpoint folder, config.json, or bundled model.",
        metavar="PATH|NAME",
        group="Model",
    )
    """Folder with a HuggingFace checkpoint, a config.json, or the name of a bundled model."""
    tokenizer: str | None = setting(
        None,
        flag="--tokenizer",
        help="Folder with a tokenizer.json. Default the model's.",
        group="Model",
    )
    device: str = setting(
        "auto", choices=("auto", "cuda", "cpu"), flag="--device", help="cuda, cpu or auto.", group="Model"
    )
    """`cuda`, `cpu`, or `auto`: CUDA if available."""
    dtype: str = setting(
        "auto",
        choices=("auto", "bfloat16", "float16", "float32"),
        flag="--dtype",
        help="bfloat16, float16, float32 or auto.",
        group="Model",
    )
    """`auto`: bfloat16 on CUDA, float32 on the CPU."""
    block_size: int = setting(
        0,
        flag="--block-size",
        aliases=("--block-size-in-tokens",),
        help="Tokens per KV page; 0 = 64 on a GPU, 16 on the CPU.",
    )
    """Tokens per KV page; 0 = by device, see `on`."""
    load_format: str = setting(
        "safetensors",
        choices=("safetensors", "dummy"),
        flag="--load-format",
        help="safetensors or dummy.",
        group="Model",
    )
    """`dummy`: random weights, for benchmarks."""
    seed: int = setting(0, flag="--seed", help="Of dummy weights, prompts and samples.", group="Model")
    """Seed of dummy weights, and of requests without a seed."""
    kv_cache_memory_bytes: int | None = setting(
        None,
        flag="--kv-cache-memory",
        aliases=("--kv-cache-memory-bytes",),
        help="Bytes for the KV cache.",
    )
    """Size of the KV cache; `None` = the remaining memory on CUDA, a small default on the CPU."""
    kv_cache_dtype: str = setting(
        "auto",
        choices=("auto", "fp8"),
        flag="--kv-cache-dtype",
        help="auto, as the model, or fp8: half the bytes.",
        group="Model",
    )
    """`auto`: keys and values in the dtype of the model; `fp8`: in float8 (e4m3), half the bytes."""
    scheduler: str = queue_order("--scheduling-policy")
    """Order of the waiting queue."""
    check_relay: bool = setting(
        False, flag="--check-relay", help="With --async-scheduling: check tokens on the device. Slow."
    )
    """With `async_scheduling`: verify that every token is on the device when a forward reads it. Slow."""
    enforce_eager: bool = setting(False, flag="--enforce-eager", help="No CUDA graphs.")
    cudagraph_capture_sizes: tuple[int, ...] | None = None
    """Batch sizes of captured decode steps; `None` = 1, 2, 4, 8, 16, 24, … up to `max_num_seqs`."""
    cudagraph_mixed_sizes: tuple[int, ...] | None = None
    """Tokens of captured steps with prompts; `None` = from 16 to 512, `()` = such steps run eagerly."""
    dependent_launch: bool = setting(
        False,
        flag="--dependent-launch",
        help="Launch small kernels before the one before them ends, if a check on the GPU passes.",
    )
    attention_backend: str = setting(
        PAGED,
        choices=(PAGED, "cudnn", "flash-attn", "flashinfer", "math"),
        flag="--attention-backend",
        help="Of prompts with nothing cached: triton, cudnn, flash-attn, flashinfer or math.",
        group="Model",
    )
    """Kernels for prompts with nothing cached: the engine's own (`triton`), those of cuDNN or of packages, or
    torch's plainest (`math`). All else has the engine's own."""
    count_active_experts: bool = False
    """Log the number of experts used by each step of an MoE model: one small device-to-host copy per step."""
    clock: str = setting(
        "wall",
        choices=("wall", "cpu", "steady"),
        flag="--clock",
        help="wall, cpu (time of the engine's thread), or steady: that, at an even pace.",
        group="Model",
    )
    """`wall`; `cpu`: CPU time of the engine's thread; `steady`: CPU time normalised to a constant machine
    speed."""
    yardstick_us: tuple[float, float] | None = setting(
        None,
        flag="--yardstick",
        help="With --clock steady: its pace, two times in µs or a profile.",
        group="Model",
    )
    """Reference times of yardstick steps in µs, without and with prompts, for the steady clock; `None` = as
    measured when the engine is built. Times of different engines are comparable if it is equal."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.block_size and self.block_size not in BLOCK_SIZES:
            fix = f"use one of {', '.join(map(str, BLOCK_SIZES))}"
            raise InputError("not a page size", key="block_size", value=self.block_size, fix=fix)
        if not 0 <= self.seed < 2**63:
            raise InputError("must be from 0 to 2^63 - 1", key="seed", value=self.seed)
        if self.kv_cache_memory_bytes is not None and self.num_kv_blocks is not None:
            raise InputError("given twice", key="num_kv_blocks", fix="drop it, or kv_cache_memory_bytes")
        if self.clock != "wall" and self.device == "cuda":
            raise InputError("does not measure GPU time", key="clock", value=self.clock, fix="use wall")
        if self.async_scheduling and self.clock != "wall":
            raise InputError(
                "measures one thread, and asynchronous scheduling has two",
                key="clock",
                value=self.clock,
                fix="use wall, or no async_scheduling",
            )
        if self.check_relay and not self.async_scheduling:
            raise InputError("needs async_scheduling", key="check_relay", fix="turn that on, or this off")
        if self.yardstick_us is not None:
            if self.clock != "steady":
                raise InputError(
                    "needs the steady clock", key="yardstick_us", fix="drop it, or use --clock steady"
                )
            if not all(0 < step_us < inf for step_us in self.yardstick_us):
                raise InputError("must be above 0", key="yardstick_us", value=self.yardstick_us)
        if any(size < 1 for size in self.cudagraph_capture_sizes or ()):
            raise InputError("must be at least 1", key="cudagraph_capture_sizes")
        most = self.max_num_batched_tokens
        if any(not 1 < size <= most for size in self.cudagraph_mixed_sizes or ()):
            fix = f"use 2 to max_num_batched_tokens ({most})"
            raise InputError("not the tokens of a step", key="cudagraph_mixed_sizes", fix=fix)

    def on(self, device: str, mask_block: int = 1) -> "EngineConfig":
        """These settings on a kind of device, with nothing left for it to decide.

        Args:
            mask_block: tokens of a block of the answer; pages consist of whole ones.

        Raises:
            InputError: a setting that this kind of device does not have.
        """
        if self.dependent_launch and device == "cpu":
            raise InputError("nothing is launched on the CPU", key="dependent_launch", fix="leave it out")
        least = _AUTO_BLOCK_SIZE[device]
        pages = (size for size in BLOCK_SIZES if size >= least and size % mask_block == 0)
        size = self.block_size or next(pages, mask_block)
        return replace(self, dtype=self.dtype_on(device), block_size=size)

    def dtype_on(self, device: str) -> str:
        """The dtype in use on a kind of device."""
        return _AUTO_DTYPE[device] if self.dtype == "auto" else self.dtype

    def scheduler_config(self, num_kv_blocks: int, max_model_len: int) -> SchedulerConfig:
        """The scheduler's settings for a KV cache of known size."""
        kind = extended(SchedulerConfig)
        known = {field.name for field in fields(kind)} & {field.name for field in fields(self)}
        given = {name: getattr(self, name) for name in known}
        return kind(**given | {"num_kv_blocks": num_kv_blocks, "max_model_len": max_model_len})
