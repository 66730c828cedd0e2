"""Sizes for which an engine captures CUDA graphs of its decode steps, and what a batch is padded to.

Rules of the engines' own defaults:

    vllm     1, 2, 4, multiples of 8 to 248, of 16 from 256 on, up to min(2 * max_num_seqs, 512), 1024 on
             Blackwell of the data center from 0.28, and to max_num_batched_tokens, which has one from 0.21;
             max_num_seqs from 0.31 (vllm/config/vllm.py, _set_cudagraph_sizes)
    sglang   1, 2, 4, 8, 12, multiples of 8 to 256, of 16 to 496, of 32 from 512 on, up to a maximum by GPU
             memory and ranks, itself from 0.5.10; from 0.5.22 no larger than max_running_requests
             (sglang/srt/server_args.py and arg_groups, generate_decode_cuda_graph_batch_sizes)
    trtllm   padded: 1, 2, 4, multiples of 8 to 128, then of 64; otherwise 1 to 32, 64, powers of 2; up to 128
             unless set (tensorrt_llm/llmapi/llm_args.py, CudaGraphConfig)
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import NamedTuple

from blis_py.hardware.gpu import GpuSpec
from blis_py.hardware.sglang_defaults import largest_graph, later_largest_graph

_TRTLLM_MAX, _VLLM_MAX, _VLLM_BLACKWELL_MAX = 128, 512, 1024
_DATA_CENTER_BLACKWELL = ("b200", "b300", "gb200", "gb300")
Release = tuple[int, ...]


class GraphSizes(NamedTuple):
    """Captured sizes, ascending; none = every step is eager."""

    sizes: tuple[int, ...] = ()
    padded: bool = True
    """Whether a batch between two sizes is padded to the larger one; otherwise it runs eagerly."""

    def of(self, seqs: int) -> int:
        """Size of the graph that a step of so many decodes replays; 0 = none, it runs eagerly."""
        i = bisect_left(self.sizes, seqs)
        if i == len(self.sizes) or not (self.padded or self.sizes[i] == seqs):
            return 0
        return self.sizes[i]


def default_sizes(
    engine: str,
    gpu: GpuSpec,
    tp: int,
    max_num_seqs: int,
    most: int | None,
    padded: bool,
    tokens: int | None = None,
    release: Release = (),
) -> GraphSizes:
    """Default sizes of captured graphs by engine.

    Args:
        max_num_seqs: of a scheduler.
        most: the largest size; None = the engine's default.
        tokens: budget of a step; None = no limit.
        release: of the engine; empty = its newest.
    """
    if engine == "trtllm":
        return GraphSizes(_trtllm(most or _TRTLLM_MAX, padded), padded)
    if engine == "sglang":
        return GraphSizes(_sglang(gpu, tp, max_num_seqs, most, release), padded)
    return GraphSizes(_vllm(gpu, max_num_seqs, most, tokens, release), padded)


def _since(release: Release, first: Release) -> bool:
    return not release or release >= first


def _vllm(gpu: GpuSpec, seqs: int, most: int | None, tokens: int | None, release: Release) -> tuple[int, ...]:
    blackwell = gpu.name.lower().startswith(_DATA_CENTER_BLACKWELL) and _since(release, (0, 28))
    largest = most or min(2 * seqs, _VLLM_BLACKWELL_MAX if blackwell else _VLLM_MAX)
    whole = {seqs} if most is None and seqs <= largest and _since(release, (0, 31)) else set[int]()
    if tokens is not None:
        if tokens <= largest and _since(release, (0, 21)):
            whole.add(tokens)
        largest = min(largest, tokens)
    return tuple(sorted({*_up_to(largest, _VLLM), *_up_to(largest, whole)}))


def _sglang(gpu: GpuSpec, tp: int, seqs: int, most: int | None, release: Release) -> tuple[int, ...]:
    default = later_largest_graph if _since(release, (0, 5, 20)) else largest_graph
    largest = most or default(gpu, tp)
    if most is None and _since(release, (0, 5, 22)):
        largest = min(largest, seqs)
    sizes = _up_to(largest, _SGLANG)
    whole = largest not in sizes and largest <= _LONGEST and _since(release, (0, 5, 10))
    return (*sizes, largest) if whole else sizes


_LONGEST = 8192
_VLLM = (1, 2, 4, *range(8, 256, 8), *range(256, _LONGEST + 1, 16))
_SGLANG = (1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 512, 16), *range(512, _LONGEST + 1, 32))


def _up_to(most: int, sizes: Iterable[int]) -> tuple[int, ...]:
    return tuple(size for size in sizes if size <= most)


def _trtllm(most: int, padded: bool) -> tuple[int, ...]:
    if padded:
        sizes = [1, 2, 4, *range(8, 129, 8), *range(192, most + 1, 64)]
    else:
        sizes = [*range(1, 33), 64, 128, *(2**i for i in range(8, (most - 1).bit_length()))]
    return (*(size for size in sizes if size < most), most)
