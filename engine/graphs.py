"""CUDA graphs of decode steps: a batch is padded to the next captured size, its bucket, and replayed.

Rows of bucket padding neither read nor store anything.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial

import torch

from engine.batch import BatchBuilder
from engine.executor import Forward
from engine.staging_buffer import Inputs

_LARGEST_DEFAULT = 512
_WARM_UPS = 2

Replay = Callable[[], None]
Capture = Callable[[Callable[[], torch.Tensor]], tuple[Replay, torch.Tensor]]
"""Capture function: records the device work of its argument; returns the replay, and the output tensor."""


def default_buckets(max_num_seqs: int) -> tuple[int, ...]:
    """1, 2, 4, 8, then every multiple of 8, up to the first that holds `max_num_seqs` (512 at most)."""
    sizes = [1, 2, 4, *range(8, _LARGEST_DEFAULT + 1, 8)]
    return tuple(sizes[: bisect_left(sizes, max_num_seqs) + 1])


class CudaCapture:
    """Capture into a common memory pool: only one graph runs at a time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()

    def __call__(self, run: Callable[[], torch.Tensor]) -> tuple[Replay, torch.Tensor]:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for _ in range(_WARM_UPS):  # lazy initialisation and autotuning are not allowed in a capture
                run()
        torch.cuda.current_stream().wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            result = run()
        return graph.replay, result


class DecodeGraphs:
    """Two graphs per bucket, from the inputs in the staging buffer to hidden states, or to greedy tokens.

    The inputs of a bucket always have the same addresses (`StagingBuffer.layout`), so filling and sending
    that layout is all a replay needs. Padded rows have length 0 and slot -1: they neither read nor store
    anything. Attention is captured with the longest possible length, as a graph cannot depend on the lengths.
    Where not all requests of a batch are greedy, the LM head stays outside: it runs on the exact rows, and no
    graph keeps logits of a large vocabulary.

    Args:
        buckets: batch sizes to capture.
        capture: the capture function; replaced in tests.
    """

    def __init__(
        self,
        forward: Forward,
        builder: BatchBuilder,
        max_model_len: int,
        buckets: Sequence[int],
        capture: Capture,
    ) -> None:
        self.buckets: Sequence[int] = sorted(set(buckets))
        self._forward, self._builder, self._max_model_len = forward, builder, max_model_len
        self._graphs: dict[int, tuple[Replay, torch.Tensor]] = {}
        self._greedy: dict[int, tuple[Replay, torch.Tensor]] = {}
        for size in reversed(self.buckets):  # the largest first: the others fit into its memory
            inputs = builder.padding(size)
            self._greedy[size] = capture(partial(self._tokens, size, inputs))
            self._graphs[size] = capture(partial(self._run, size, inputs))

    def bucket(self, decodes: int) -> int:
        """The smallest captured size of at least `decodes`; 0 if none."""
        index = bisect_left(self.buckets, decodes)
        return self.buckets[index] if index < len(self.buckets) else 0

    def replay(self, bucket: int, decodes: int) -> torch.Tensor:
        """Hidden states `[decodes, d]` of the batch sent last. Overwritten by the next replay."""
        replay, hidden = self._graphs[bucket]
        replay()
        return hidden[:decodes]

    def replay_greedy(self, bucket: int, decodes: int) -> torch.Tensor:
        """The most likely tokens `[decodes]` of the batch sent last, as a tensor of their own."""
        replay, tokens = self._greedy[bucket]
        replay()
        return tokens[:decodes].clone()

    def _tokens(self, size: int, inputs: Inputs) -> torch.Tensor:
        return self._forward.logits(self._run(size, inputs)).argmax(dim=-1)

    def _run(self, size: int, inputs: Inputs) -> torch.Tensor:
        meta = self._builder.metadata(
            inputs, num_decodes=size, max_query_len=1, max_seq_len=self._max_model_len
        )
        return self._forward.hidden(inputs, meta)
