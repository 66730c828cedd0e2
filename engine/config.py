"""Everything that decides what an engine does, under vLLM's names."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import inf

from blis_py.core.config import SchedulerConfig
from blis_py.errors import InputError

BLOCK_SIZES = (16, 32, 64, 128, 256)
_AUTO_DTYPE = {"cuda": "bfloat16", "cpu": "float32"}
_CHOICES: dict[str, tuple[str, ...]] = {
    "device": ("auto", "cuda", "cpu"),
    "dtype": ("auto", "bfloat16", "float16", "float32"),
    "load_format": ("safetensors", "dummy"),
    "clock": ("wall", "cpu", "steady"),
}


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Settings of one engine; the scheduler's own are those of `SchedulerConfig`.

    Raises:
        InputError: a setting that cannot work.
    """

    model: str
    """Folder with a HuggingFace checkpoint, a config.json, or the name of a bundled model."""
    tokenizer: str | None = None
    """Folder with a tokenizer.json; `None` = the model's."""
    device: str = "auto"
    """`cuda`, `cpu`, or `auto`: CUDA where there is any."""
    dtype: str = "auto"
    """`auto`: bfloat16 on CUDA, float32 on the CPU."""
    load_format: str = "safetensors"
    """`dummy`: random weights, for measuring."""
    seed: int = 0
    """Of dummy weights, and of requests that bring no seed."""
    max_model_len: int | None = None
    """Longest sequence; `None` = the model's own, as far as the KV cache holds it."""
    gpu_memory_utilization: float = 0.9
    """Share of the GPU's memory for weights, activations and KV cache."""
    kv_cache_memory_bytes: int | None = None
    """Size of the KV cache; `None` = what is left on CUDA, a small default on the CPU."""
    num_kv_blocks: int | None = None
    """Pages of the KV cache, whatever their size in bytes."""
    block_size: int = 16
    """Tokens per page."""
    prefix_cache: str = "hash"
    """`hash`, `radix` or `none`."""
    enable_prefix_caching: bool = True
    radix_eviction_policy: str = "lru"
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    long_prefill_token_threshold: int = 0
    scheduler: str = "fcfs"
    preemption_policy: str = "fcfs"
    batch_former: str = "running-first"
    sjf_aging_ms: float | None = None
    fairness_ms: float | None = None
    fairness_tokens: int | None = None
    lpm_max_queue: int = 128
    in_batch_sharing_tokens: int | None = 32
    async_scheduling: bool = False
    """A step is planned and launched before the outcome of the one before it is known (vLLM's name)."""
    check_relay: bool = False
    """With `async_scheduling`: see that every token is on the device when a forward takes it. Slow."""
    enforce_eager: bool = False
    """No CUDA graphs."""
    cudagraph_capture_sizes: tuple[int, ...] | None = None
    """Batch sizes of captured decode steps; `None` = 1, 2, 4, 8, 16, 24, … up to `max_num_seqs`."""
    count_active_experts: bool = False
    """Log how many experts each step of an MoE model used: one small copy from the device per step."""
    clock: str = "wall"
    """`wall`; `cpu`: the CPU time of the engine's thread; `steady`: that, at an even pace of the machine."""
    yardstick_us: tuple[float, float] | None = None
    """What steps of the yardstick take, without prompts and with them, at the pace that the steady clock
    tells times for; `None` = what they take as the engine is built. Times of different engines compare where
    it is the same."""

    def __post_init__(self) -> None:
        for key, allowed in _CHOICES.items():
            if getattr(self, key) not in allowed:
                fix = f"use one of {', '.join(allowed)}"
                raise InputError("unknown choice", key=key, value=getattr(self, key), fix=fix)
        if self.block_size not in BLOCK_SIZES:
            fix = f"use one of {', '.join(map(str, BLOCK_SIZES))}"
            raise InputError("not a page size", key="block_size", value=self.block_size, fix=fix)
        for key in ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "num_kv_blocks"):
            value = getattr(self, key)
            if value is not None and value < 1:
                raise InputError("must be at least 1", key=key, value=value)
        if not 0 <= self.seed < 2**63:
            raise InputError("must be from 0 to 2^63 - 1", key="seed", value=self.seed)
        if not 0 < self.gpu_memory_utilization <= 1:
            raise InputError(
                "must be above 0 and at most 1",
                key="gpu_memory_utilization",
                value=self.gpu_memory_utilization,
            )
        if self.kv_cache_memory_bytes is not None and self.num_kv_blocks is not None:
            raise InputError("given twice", key="num_kv_blocks", fix="drop it, or kv_cache_memory_bytes")
        if self.clock != "wall" and self.device == "cuda":
            raise InputError("does not tell GPU time", key="clock", value=self.clock, fix="use wall")
        if self.async_scheduling and self.clock != "wall":
            raise InputError(
                "tells the time of one thread, and asynchronous scheduling has two",
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

    def dtype_on(self, device: str) -> str:
        """The dtype in use on a kind of device."""
        return _AUTO_DTYPE[device] if self.dtype == "auto" else self.dtype

    def scheduler_config(self, num_kv_blocks: int, max_model_len: int) -> SchedulerConfig:
        """The scheduler's settings, once the KV cache has its size."""
        known = {field.name for field in fields(SchedulerConfig)} & {field.name for field in fields(self)}
        given = {name: getattr(self, name) for name in known}
        return SchedulerConfig(**given | {"num_kv_blocks": num_kv_blocks, "max_model_len": max_model_len})
