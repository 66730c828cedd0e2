"""CUDA graphs of steps with prompts: a batch is padded to the next captured number of tokens, and replayed.

A step of few tokens takes the GPU less time than its kernels take to be launched one by one. Up to so many
decodes and so many prompts have places in a captured batch; what is not taken has no tokens. One more prompt
has the tokens of the padding, and attends to nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch

from engine.batch import PROMPT_PLACES, BatchBuilder, PaddedMix
from engine.executor import Forward
from engine.graphs import Capture, Replay
from engine.staging_buffer import Inputs

_LARGEST_DEFAULT = 512
_USUAL_PROMPTS = 2
"""Prompts of a captured batch that its launches are sized for, padding included; more take longer."""


def default_sizes(max_num_batched_tokens: int) -> tuple[int, ...]:
    """16, 32, 48, 64, then every multiple of 32 up to 256 and of 64 up to 512, below the largest batch."""
    sizes = [*range(16, 64, 16), *range(64, 256, 32), *range(256, _LARGEST_DEFAULT + 1, 64)]
    return tuple(size for size in sizes if size <= max_num_batched_tokens)


class MixedGraphs:
    """One graph per number of tokens, from the inputs in the staging buffer to hidden states.

    Args:
        sizes: numbers of tokens to capture.
        max_seqs: most sequences of a batch.
        capture: the capture function; replaced in tests.
    """

    def __init__(
        self,
        forward: Forward,
        builder: BatchBuilder,
        max_model_len: int,
        sizes: Sequence[int],
        max_seqs: int,
        capture: Capture,
    ) -> None:
        self.sizes: Sequence[int] = sorted(size for size in set(sizes) if size > 1)
        self.prompts = PROMPT_PLACES - 1
        """Most prompts of a captured batch."""
        self._forward, self._builder, self._max_model_len = forward, builder, max_model_len
        self._max_seqs = max_seqs
        self._graphs: dict[int, tuple[Replay, torch.Tensor]] = {}
        for size in reversed(self.sizes):  # the largest first: the others fit into its memory
            self._graphs[size] = capture(partial(self._run, *self._made_up(self._shape(size))))

    def padded(self, decodes: int, prompts: int, tokens: int) -> PaddedMix | None:
        """The captured batch for so many decodes, prompts, and tokens of both; None = it runs eagerly."""
        index = bisect_left(self.sizes, tokens)
        if prompts > self.prompts or index == len(self.sizes):
            return None
        return self._shape(self.sizes[index])

    def replay(self, size: int) -> torch.Tensor:
        """Hidden states `[size, d]` of the batch sent last. Overwritten by the next replay."""
        replay, hidden = self._graphs[size]
        replay()
        return hidden

    def _shape(self, size: int) -> PaddedMix:
        return PaddedMix(size, min(self._max_seqs, size - 1), PROMPT_PLACES)

    def _made_up(self, shape: PaddedMix) -> tuple[PaddedMix, Inputs]:
        """A batch with one prompt, which stores nothing."""
        self._builder.begin(np.zeros(0, dtype=np.int64))
        tokens = np.zeros(min(shape.tokens, self._max_model_len), dtype=np.int64)
        layout = self._builder.mixed((0,), (0,), (tokens,), (True,), shape)
        layout.host.tokens[2] = -1
        return shape, self._builder.send(layout)

    def _run(self, shape: PaddedMix, inputs: Inputs) -> torch.Tensor:
        meta = self._builder.metadata(
            inputs,
            num_decodes=shape.decodes,
            max_query_len=shape.tokens,
            max_seq_len=self._max_model_len,
            usual_prompts=_USUAL_PROMPTS,
        )
        return self._forward.hidden(inputs, meta)
