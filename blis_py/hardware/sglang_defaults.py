"""Defaults that SGLang derives from a GPU's memory and the width of a server.

`_handle_gpu_memory_settings` and `adjust_mem_fraction_for_vlm` of `sglang/srt/server_args.py`, releases 0.5.1
to 0.5.23 (there `arg_groups/memory_hook.py`). The share of the memory for weights and KV cache leaves room
for (in MiB, at least 10240 on GPUs above 60 GiB)

    512 + 1.5*max(chunk, 2048) + 2*graphs + 1024/8*gpus
      + 3*graphs*replicas, 4.5 above 300 graphs        with attention DP
      + 8 per captured size of a chunk, 1536 for MLA   from 0.5.10 on, if chunks have CUDA graphs

where `graphs` is the largest batch of decodes with a CUDA graph. Before 0.5.3 the room followed from the GPU
and the width alone. Models that read images get a smaller share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from blis_py.hardware.gpu import GpuSpec

Row = TypeVar("Row", tuple[float, int, int, int], tuple[float, int, float, float])
_GIB_IN_MIB = 1024
_CLASSES = (
    (20, 2048, 8, 8),
    (35, 2048, 24, 80),
    (60, 4096, 32, 160),
    (160, 8192, 256, 512),
    (float("inf"), 16384, 512, 512),
)
"""Memory in GiB below which a row holds; tokens of a chunk; largest batch with a CUDA graph below four GPUs,
and from four on."""
_SMALL_GPU_GIB = (20, 35)
_LATER_SMALL = (4096, 48, 160)
"""From 0.5.20 on, the same of GPUs with this memory."""
_EARLIER_CLASSES = (
    (35, 2048, 2.8, 0.1),
    (90, 8192, 9.5, 0.5),
    (160, 8192, 12.0, 0.5),
    (float("inf"), 16384, 32.0, 0.0),
)
"""Before 0.5.3: memory in GiB below which a row holds; tokens of a chunk; GiB left free; more per GPU."""
_EARLIER_REPLICAS_GIB = 4.0
_LARGE_GPU_GIB, _LEAST_MIB = 60, 10 * _GIB_IN_MIB
_CHUNK_GRAPHS_MLA_MIB = 1536
_CHUNK_SIZES = (
    *range(4, 33, 4),
    *range(48, 257, 16),
    *range(288, 513, 32),
    *range(576, 1025, 64),
    *range(1280, 4097, 256),
)
"""Sizes of chunks with CUDA graphs; from 4608 on, every 512 tokens."""
_PLAIN_ENCODER = 24 * 1024**2
"""Layers times squared width of ViT-L/14."""
LEAST_REQUESTS, MOST_REQUESTS = 2048, 4096
"""Bounds of `max_running_requests`, which is 512 for each longest sequence that the KV pool holds."""


class Encoder(NamedTuple):
    """Vision encoder of a model, in the keys that SGLang reads and with its defaults for absent ones."""

    layers: int = 24
    hidden: int = 1024


def chunk_tokens(gpu: GpuSpec) -> int:
    """`chunked_prefill_size` of a server, before attention DP divides it."""
    return _row_of(gpu, _CLASSES)[1]


def later_chunk_tokens(gpu: GpuSpec) -> int:
    """`chunked_prefill_size` of a server from 0.5.20 on."""
    return _LATER_SMALL[0] if _is_small(gpu) else chunk_tokens(gpu)


def later_largest_graph(gpu: GpuSpec, gpus: int) -> int:
    """`cuda_graph_max_bs` from 0.5.20 on; see `largest_graph`."""
    return _LATER_SMALL[1 if gpus < 4 else 2] if _is_small(gpu) else largest_graph(gpu, gpus)


def _is_small(gpu: GpuSpec) -> bool:
    least, most = _SMALL_GPU_GIB
    return least <= gpu.driver_memory_bytes / 2**30 < most


def earlier_chunk_tokens(gpu: GpuSpec) -> int:
    """`chunked_prefill_size` of a server before 0.5.3."""
    return _row_of(gpu, _EARLIER_CLASSES)[1]


def largest_graph(gpu: GpuSpec, gpus: int) -> int:
    """Largest batch of decodes with a CUDA graph (`cuda_graph_max_bs`).

    Args:
        gpus: of a server.
    """
    _, _, few, many = _row_of(gpu, _CLASSES)
    return few if gpus < 4 else many


def memory_share(
    gpu: GpuSpec,
    gpus: int,
    *,
    replicas: int = 1,
    chunk: int,
    graphs: int,
    chunk_graphs_mib: float = 0.0,
    encoder: Encoder | None = None,
) -> float:
    """`mem_fraction_static`: share of the memory for weights and KV cache.

    Args:
        gpus: of a server.
        replicas: of attention.
        chunk: tokens of a chunk of the whole server.
        graphs: largest batch of decodes with a CUDA graph.
        chunk_graphs_mib: memory of CUDA graphs for chunks; see `chunk_graphs_mib`.
        encoder: of images; None = the model reads text alone.
    """
    total_mib = gpu.driver_memory_bytes / 2**20
    reserved_mib = 512 + 1.5 * max(chunk, 2048) + 2 * graphs + gpus / 8 * 1024 + chunk_graphs_mib
    if replicas > 1:
        reserved_mib += graphs * replicas * (3 if graphs <= 300 else 4.5)
    if total_mib > _LARGE_GPU_GIB * _GIB_IN_MIB:
        reserved_mib = max(reserved_mib, _LEAST_MIB)
    return _share_beside(reserved_mib, total_mib, encoder)


def earlier_memory_share(gpu: GpuSpec, gpus: int, replicas: int, encoder: Encoder | None = None) -> float:
    """`mem_fraction_static` before 0.5.3; see `memory_share`."""
    _, _, gib, gpu_gib = _row_of(gpu, _EARLIER_CLASSES)
    reserved_gib = gib + gpu_gib * gpus + (_EARLIER_REPLICAS_GIB if replicas > 1 else 0.0)
    return _share_beside(reserved_gib * _GIB_IN_MIB, gpu.driver_memory_bytes / 2**20, encoder)


def chunk_graphs_mib(chunk: int, latent: bool) -> float:
    """Memory of CUDA graphs for chunks of a server without attention DP, disaggregation or images.

    Args:
        latent: whether attention is latent (MLA).
    """
    if latent:
        return _CHUNK_GRAPHS_MLA_MIB
    return 8.0 * sum(1 for size in (*_CHUNK_SIZES, *range(4608, chunk + 1, 512)) if size <= chunk)


def running_requests(pool_tokens: int, longest: int) -> int:
    """`max_running_requests` of a replica (`init_memory_pool` of `model_runner`, `_resolve_max_num_reqs`).

    Args:
        pool_tokens: of its KV pool.
        longest: sequence that the server accepts, in tokens.
    """
    for_lengths = int(pool_tokens / longest * 512)
    return min(max(for_lengths, LEAST_REQUESTS), MOST_REQUESTS, max(pool_tokens // 2, 1))


def _share_beside(reserved_mib: float, total_mib: float, encoder: Encoder | None) -> float:
    """The share beside an encoder of images: a tenth less for each size of ViT-L/14 beyond it."""
    share = round((total_mib - reserved_mib) / total_mib, 3)
    if encoder is None:
        return share
    ratio = encoder.layers * encoder.hidden**2 / _PLAIN_ENCODER
    return share * 0.95 * max(0.8, min(1.05, 1.0 - 0.1 * (ratio - 1.0)))


def _row_of(gpu: GpuSpec, classes: Sequence[Row]) -> Row:
    gib = gpu.driver_memory_bytes / 2**30
    return next(row for row in classes if gib < row[0])
