"""Sizes for which an engine captures CUDA graphs of its decode steps, and what a batch is padded to.

Rules of the engines' own defaults:

    vllm     1, 2, 4, multiples of 8 to 248, of 16 from 256 on, up to min(2 * max_num_seqs, 512)
             (vllm/config/vllm.py, _set_cudagraph_sizes)
    sglang   1, 2, 4, 8, 12, multiples of 8 to 256, of 16 to 496, of 32 from 512 on, up to a maximum by GPU
             memory and ranks (sglang/srt/server_args.py, _generate_cuda_graph_batch_sizes)
    trtllm   padded: 1, 2, 4, multiples of 8 to 128, then of 64; otherwise 1 to 32, 64, powers of 2; up to 128
             unless set (tensorrt_llm/llmapi/llm_args.py, CudaGraphConfig)
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import NamedTuple

from blis_py.hardware.gpu import GpuSpec
from blis_py.hardware.sglang_defaults import largest_graph

_TRTLLM_MAX, _VLLM_MAX = 128, 512


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
    engine: str, gpu: GpuSpec, tp: int, max_num_seqs: int, most: int | None, padded: bool
) -> GraphSizes:
    """Default sizes of captured graphs by engine.

    Args:
        max_num_seqs: of a scheduler.
        most: the largest size; None = the engine's default.
    """
    if engine == "trtllm":
        return GraphSizes(_trtllm(most or _TRTLLM_MAX, padded), padded)
    if engine == "sglang":
        sizes = _up_to(most or largest_graph(gpu, tp), _SGLANG)
    else:
        sizes = _up_to(most or min(2 * max_num_seqs, _VLLM_MAX), _VLLM)
    return GraphSizes(sizes, padded)


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
