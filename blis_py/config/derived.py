"""Settings that an engine derives from its GPU, its width and its model, where a user leaves them open.

A rule is a function and a line in `RULES`; presets name it in place of a value. It reads settings by their
configuration keys, those that presets and earlier rules set included, and never its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

from blis_py.config.models import RunConfig
from blis_py.errors import InputError
from blis_py.hardware import sglang_defaults as sglang
from blis_py.hardware.capacity import KvCapacity, kv_capacity
from blis_py.hardware.gpu import GpuSpec, load_gpu
from blis_py.hardware.layout import Layout
from blis_py.hardware.memory_overheads import OVERHEADS
from blis_py.models.model_shape import ModelShape, config_name, load_model, with_kv_dtype
from blis_py.models.weights import MXFP4_BYTES

CHUNK, SHARE, SEQS = (
    "scheduler.max_num_batched_tokens",
    "scheduler.gpu_memory_utilization",
    "scheduler.max_num_seqs",
)
READ = (
    *("gpu", "tp", "attention_dp", "ep", "redundant_experts", "model", "model_config", "kv_cache_dtype"),
    *("memory", "latency.cuda_graph_max_size", "latency.cuda_graph_sizes", CHUNK, SHARE),
    *("scheduler.block_size", "scheduler.num_kv_blocks", "scheduler.max_model_len", "scheduler.prefix_cache"),
    "scheduler.batch_former",
    "latency.cold_kernels",
)
"""Keys that rules read."""
READ_WHERE_GIVEN = ("scheduler.max_num_seqs",)
"""Keys that they read where a user has set them: a derived value decides nothing."""
ROLE = "role"
"""Phase that an instance of a disaggregated server is for; read like a setting."""
_LARGER_SMALL = (0, 5, 20)
"""Release of SGLang from which GPUs of 20 to 35 GiB have larger chunks and graphs."""
_GRAPHS_OF_REQUESTS = (0, 5, 22)
"""Release of SGLang from which no graph is larger than a limit of running requests that was given."""
_SUMS, _GRAPHS_OF_CHUNKS = (0, 5, 3), (0, 5, 10)
"""Releases of SGLang from which the share is the rest of a sum of needs; and from which chunks have CUDA
graphs by default, and states of linear attention are copied beside the running step."""
_LARGE_GPU_BYTES, _LARGEST_GPU_BYTES = 70 << 30, 160 << 30
"""GPU memory in bytes from which vLLM applies the defaults of large GPUs, and those of the largest."""
_A100_IS_SMALL = (0, 9)
"""Release of vLLM from which the defaults of large GPUs are not those of A100."""
_LARGEST = (0, 28)
"""Release of vLLM from which the largest have defaults of their own."""
_LATE_KERNELS_MS = 69_800.0
"""Time of compiling the kernels of prompts that go on under SGLang; benchmarks/accuracy/cold_servers.py."""
_SPARES_GB10 = (0, 33)
"""Release of vLLM from which GB10, of much memory and little compute, has the defaults of small GPUs."""
_UNKNOWN_CHUNK, _UNKNOWN_SHARE, _LEAST_SHARE = 4096, 0.88, 0.01
"""Defaults of SGLang where the memory of a device is unknown; and where nothing is left, the least that the
setting can be."""


class LaunchedEngine:
    """An instance of an engine as its defaults read it. What is not set, or cannot be read, has the value of
    an unset configuration: errors are reported where a setting is used."""

    def __init__(
        self, settings: Mapping[str, Any], release: tuple[int, ...] = (), candidate: int | None = None
    ) -> None:
        self._settings, self._release, self._candidate = settings, release, candidate

    def count(self, key: str, default: int) -> int:
        """A whole number of at least 1, or the default."""
        value = self._settings.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else default

    def since(self, release: tuple[int, ...]) -> bool:
        """Whether the engine is of this release or a later one; one without a release is the latest."""
        return not self._release or self._release >= release[: len(self._release)]

    def is_candidate_before(self, release: tuple[int, ...], number: int) -> bool:
        """Whether the engine is an earlier candidate of this release than that of the number."""
        own = self._release[: len(release)] == release
        return own and self._candidate is not None and self._candidate < number

    def __getitem__(self, key: str) -> Any:
        return self._settings.get(key)

    @cached_property
    def gpu(self) -> GpuSpec | None:
        """None without a datasheet."""
        try:
            return load_gpu(str(self._settings.get("gpu", RunConfig.gpu)))
        except InputError:
            return None

    @cached_property
    def shape(self) -> ModelShape | None:
        """The model; None if none is set, or it cannot be read."""
        name, config = self["model"], self["model_config"]
        if not name and not config:
            return None
        try:
            shape = load_model(str(name or config_name(config)), config)
        except (InputError, TypeError):
            return None
        return with_kv_dtype(shape, str(self["kv_cache_dtype"]))

    @property
    def gpus(self) -> int:
        return self.count("tp", RunConfig.tp)

    @property
    def replicas(self) -> int:
        return self.count("attention_dp", RunConfig.attention_dp)


def _chunk(server: LaunchedEngine) -> int:
    if server.gpu is None:
        return _UNKNOWN_CHUNK
    return max(_chunk_of_all(server, server.gpu) // server.replicas, 1)


def _chunk_of_all(server: LaunchedEngine, gpu: GpuSpec) -> int:
    if server.since(_LARGER_SMALL):
        return sglang.later_chunk_tokens(gpu)
    return sglang.chunk_tokens(gpu) if server.since(_SUMS) else sglang.earlier_chunk_tokens(gpu)


def _share(server: LaunchedEngine) -> float:
    gpu, shape = server.gpu, server.shape
    if gpu is None:
        return _UNKNOWN_SHARE
    encoder = None if shape is None else shape.image_encoder
    images = None if encoder is None or encoder.optional else sglang.Encoder(encoder.layers, encoder.hidden)
    if not server.since(_SUMS):
        return max(sglang.earlier_memory_share(gpu, server.gpus, server.replicas, images), _LEAST_SHARE)
    chunk = server.count(CHUNK, 0) * server.replicas or _chunk_of_all(server, gpu)
    share = sglang.memory_share(
        gpu,
        server.gpus,
        replicas=server.replicas,
        chunk=chunk,
        graphs=_largest_graph(server, gpu),
        chunk_graphs_mib=_chunk_graphs_mib(server, chunk) if images is None else 0.0,
        encoder=images,
    )
    return max(share, _LEAST_SHARE)


def _largest_graph(server: LaunchedEngine, gpu: GpuSpec) -> int:
    sizes = server["latency.cuda_graph_sizes"]
    if isinstance(sizes, list | tuple) and sizes and all(isinstance(size, int) for size in sizes):
        return int(max(sizes))
    default = sglang.later_largest_graph if server.since(_LARGER_SMALL) else sglang.largest_graph
    largest = default(gpu, server.gpus)
    if server.since(_GRAPHS_OF_REQUESTS):
        largest = min(largest, server.count("scheduler.max_num_seqs", largest))
    return server.count("latency.cuda_graph_max_size", largest)


def _chunk_graphs_mib(server: LaunchedEngine, chunk: int) -> float:
    if server.replicas > 1 or server[ROLE] or not server.since(_GRAPHS_OF_CHUNKS):
        return 0.0
    latent = server.shape is not None and server.shape.latent is not None
    return sglang.chunk_graphs_mib(chunk, latent)


def _requests(server: LaunchedEngine) -> int:
    pool, shape = _pool(server), server.shape
    if pool is None or shape is None:
        return sglang.LEAST_REQUESTS
    blocks = server.count("scheduler.num_kv_blocks", pool.blocks * server.replicas) // server.replicas
    longest = server.count("scheduler.max_model_len", shape.max_position_embeddings)
    requests = sglang.running_requests(max(blocks, 1) * pool.block_size, longest)
    if pool.sequences is None:
        return requests
    return max(min(requests, pool.sequences // state_copies(server)), 1)


def state_copies(server: LaunchedEngine) -> int:
    """States of linear attention that SGLang needs for a running request."""
    if server["scheduler.prefix_cache"] == "none":
        return 1
    return 5 if server.since(_GRAPHS_OF_CHUNKS) else 3


def _pool(server: LaunchedEngine) -> KvCapacity | None:
    """The KV pool of a replica; None if unknown or without room, which is reported where it is built."""
    shape, gpu, memory = server.shape, server.gpu, OVERHEADS.get(str(server["memory"]))
    if shape is None or gpu is None or memory is None:
        return None
    layout = Layout(server.gpus, server.replicas, server.count("ep", 1), server.count("redundant_experts", 0))
    try:
        layout.check(shape)
        return kv_capacity(
            shape,
            gpu,
            server.gpus,
            block_size=server.count("scheduler.block_size", 16),
            gpu_memory_utilization=float(server[SHARE]),
            overheads=memory,
            layout=layout,
        )
    except (InputError, TypeError, ValueError):
        return None


def _late_kernels(server: LaunchedEngine) -> float:
    """FlashInfer's kernels of prompts that go on, for a latent cache on Blackwell, are compiled at their
    first use, which warming up at the start does not reach; vLLM's start does."""
    gpu, shape = server.gpu, server.shape
    cold = server["latency.cold_kernels"] is True
    late = cold and gpu is not None and bool(gpu.fp4_flops) and shape is not None and shape.latent is not None
    return _LATE_KERNELS_MS if late else 0.0


def _admission(server: LaunchedEngine) -> str:
    return "new-token-ratio" if server.replicas == 1 else "new-token-ratio-ranks"


def _page_reserve(server: LaunchedEngine) -> str:
    if server.since((0, 5, 11)):
        return "always" if server.since((0, 5, 21)) else "needed"
    return "charged" if server.since((0, 5, 10)) else "none"


def _is_large(server: LaunchedEngine) -> bool:
    gpu = server.gpu
    if gpu is None or gpu.driver_memory_bytes < _LARGE_GPU_BYTES:
        return False
    name = gpu.name.lower()
    if "gb10" in name and server.since(_SPARES_GB10):
        return False
    return "a100" not in name or not server.since(_A100_IS_SMALL)


def _vllm_tokens(server: LaunchedEngine) -> int:
    gpu = server.gpu
    if gpu is not None and gpu.driver_memory_bytes >= _LARGEST_GPU_BYTES and server.since(_LARGEST):
        return 16384
    return 8192 if _is_large(server) else 2048


def _vllm_requests(server: LaunchedEngine) -> int:
    """No more than a step has tokens."""
    requests = 1024 if _is_large(server) else 256
    return min(requests, server.count(CHUNK, requests))


def _vllm_ranks(server: LaunchedEngine) -> str:
    if server.since((0, 27)):
        return "least-loaded"
    return "least-queued-in-turn" if server.since((0, 25)) else "least-queued"


def _vllm_prefix_caching(server: LaunchedEngine) -> bool:
    shape = server.shape
    return shape is None or shape.linear is None or server.since((0, 26))


def _is_hopper(server: LaunchedEngine) -> bool:
    """Whether the GPU multiplies FP8 and no FP4, and is NVIDIA's of the data center."""
    gpu = server.gpu
    return gpu is not None and gpu.name.lower().startswith(("h100", "h200")) and not gpu.fp4_flops


def _is_mxfp4(server: LaunchedEngine) -> bool:
    shape = server.shape
    return shape is not None and shape.moe_layers > 0 and shape.weights.experts == MXFP4_BYTES


def _vllm_experts(server: LaunchedEngine) -> str:
    """Experts in MXFP4 on Hopper by Marlin until images had OpenAI's Triton kernels, in 0.12
    (`quantization/mxfp4.py`; issue 30326); experts with block scales by FlashInfer's CUTLASS in 0.15 and 0.16
    (`fused_moe/oracle/fp8.py`; pull request 33490, issue 34249), and later for groups of experts alone."""
    if not _is_hopper(server) or server.shape is None or not server.shape.moe_layers:
        return "auto"
    if _is_mxfp4(server):
        return "auto" if server.since((0, 12)) else "marlin"
    blocks = server.shape.weights.block_scales
    return "flashinfer_cutlass" if blocks and server.since((0, 15)) and not server.since((0, 17)) else "auto"


def _trtllm_experts(server: LaunchedEngine) -> str:
    """Experts in MXFP4 on Hopper by its own CUTLASS kernel before the candidate 2 of 1.3 (pull request
    11074)."""
    early = not server.since((1, 3)) or server.is_candidate_before((1, 3), 2)
    return "cutlass" if early and _is_hopper(server) and _is_mxfp4(server) else "auto"


class DerivedSetting(NamedTuple):
    """Derivation of a setting."""

    value: Callable[[LaunchedEngine], Any]
    text: str
    """In a few words, for lists of settings."""


RULES = {
    "vllm-tokens": DerivedSetting(
        _vllm_tokens,
        "by GPU memory: 2048 below 70 GiB, on A100 (8192 in 0.8) and GB10 (from 0.33), 8192 below 160 (to "
        "0.27 from 70), else 16384",
    ),
    "vllm-requests": DerivedSetting(
        _vllm_requests,
        "1024 from 70 GiB on but for A100 (from 0.9) and GB10 (from 0.33), else 256; at most "
        "max_num_batched_tokens",
    ),
    "vllm-ranks": DerivedSetting(
        _vllm_ranks, "least-queued, in turn among equals from 0.25; least-loaded from 0.27"
    ),
    "vllm-prefix-caching": DerivedSetting(
        _vllm_prefix_caching, "true; before 0.26 false for models that have layers with a state"
    ),
    "vllm-experts": DerivedSetting(
        _vllm_experts,
        "on Hopper: marlin for MXFP4 before 0.12, CUTLASS for block scales in 0.15 and 0.16; else auto",
    ),
    "trtllm-experts": DerivedSetting(
        _trtllm_experts, "on Hopper: cutlass for MXFP4 before 1.3.0rc2; else auto"
    ),
    "sglang-chunk": DerivedSetting(
        _chunk,
        "by GPU memory: 2048 below 35 GiB (from 0.5.20 4096 from 20 GiB), 4096 below 60 (before 0.5.3 8192), "
        "8192 below 160, else 16384; divided by attention DP",
    ),
    "sglang-memory-share": DerivedSetting(
        _share,
        "by GPU memory, GPUs, chunk, CUDA graphs, attention DP, images: 0.83 on an H100, 0.849 on 8 B200; "
        "from 0.5.10 on less for graphs of chunks; before 0.5.3 by GPU memory and GPUs",
    ),
    "sglang-requests": DerivedSetting(
        _requests, "512 for each longest sequence in the KV pool, 2048 to 4096"
    ),
    "sglang-late-kernels": DerivedSetting(
        _late_kernels, "0; with --cold-kernels, a latent cache and a GPU that multiplies FP4, 69,800 ms"
    ),
    "sglang-admission": DerivedSetting(
        _admission, "new-token-ratio; new-token-ratio-ranks with attention DP"
    ),
    "sglang-retraction": DerivedSetting(
        lambda server: "fewest-tokens" if server["scheduler.batch_former"] == "prefill-only" else "fcfs",
        "fewest-tokens; fcfs with --enable-mixed-chunk",
    ),
    "sglang-release-late-lengths": DerivedSetting(
        lambda server: not server.since((0, 5, 22)), "true before 0.5.22, then false"
    ),
    "sglang-release-fixed-lengths": DerivedSetting(
        lambda server: server.since((0, 5, 22)), "false before 0.5.22, then true"
    ),
    "sglang-release-chunks": DerivedSetting(
        lambda server: server.since((0, 5, 12)) and not server.since((0, 5, 23)),
        "true in 0.5.12 to 0.5.22, else false",
    ),
    "sglang-release-departures": DerivedSetting(
        lambda server: not server.since((0, 5, 23)), "true before 0.5.23, then false"
    ),
    "sglang-release-page-reserve": DerivedSetting(
        _page_reserve, "none before 0.5.10, charged in 0.5.10, needed from 0.5.11, always from 0.5.21"
    ),
    "sglang-release-aborts": DerivedSetting(
        lambda server: "output-or-chunk" if server.since((0, 5, 14)) else "output",
        "output before 0.5.14, then output-or-chunk",
    ),
    "sglang-release-eviction": DerivedSetting(
        lambda server: "leaves-to-fit" if server.since((0, 5, 17)) else "leaves",
        "leaves before 0.5.17, then leaves-to-fit",
    ),
    "sglang-release-answers-cached": DerivedSetting(
        lambda server: server.since((0, 5, 9)), "false before 0.5.9, then true"
    ),
    "sglang-release-answers": DerivedSetting(
        lambda server: server.since((0, 5, 21)), "false before 0.5.21, then true"
    ),
    "sglang-release-refresh": DerivedSetting(
        lambda server: 32 if server.since((0, 5, 22)) else 0, "0 before 0.5.22, then 32"
    ),
}
"""Rules by the name that presets use; later ones read values of earlier ones."""


def settings_of(config: RunConfig) -> dict[str, Any]:
    """The settings of a configuration that rules read."""
    found = {}
    for key in (
        *READ,
        *(key for key in READ_WHERE_GIVEN if config.given is not None and key in config.given),
    ):
        section, _, name = key.rpartition(".")
        found[key] = getattr(getattr(config, section) if section else config, name)
    return found
