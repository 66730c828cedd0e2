"""The vocabulary bitmask of a batch, computed on the host while the forward runs."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from engine.clock import Clock
from engine.emitters import Emitters
from engine.grammar.compiler import batch_matcher
from engine.grammar.state import Grammar, allowed
from engine.sequence import Sequence
from engine.upload import upload

_BUFFERS = 2
"""In rotation: while one is being copied to the device, the next is filled."""
_WORTH_THREADS_NS = 1_000_000
_EVERYTHING = -1
"""All 32 bits of a word."""


class MaskTimes(NamedTuple):
    """Time of the masks of a step."""

    rows: int
    """Constrained rows."""
    mask_ns: int
    """Host time for all of them."""
    exposed_ns: int
    """The part of it in which the device had nothing to do: the forward was over."""


NO_MASKS = MaskTimes(0, 0, 0)


class Masks:
    """The masks of an engine's batches.

        mask = masks.launched(emitters, device)   the forward of the batch is on its way
        bitmask = mask.fill()                     all tokens before those of this batch have been accepted
        ...                                       sampling, and waiting for its tokens
        times = mask.times()

    Args:
        clock: the engine's.
    """

    def __init__(self, vocab_size: int, clock: Clock) -> None:
        self.words = -(-vocab_size // 32)
        self.clock = clock
        self._emitters: Emitters | None = None
        self._constrained: list[tuple[Sequence, Grammar]] = []
        self._rows = torch.zeros(0, dtype=torch.int64)
        self._buffers: list[_Buffer] = []
        self._latest = 0
        self._matchers: dict[int | str, Any] = {}
        """By the number of threads."""
        self.slow = False
        """Whether the masks before took so long that several threads are worth their beginning. Beside a GPU
        only: on the CPU others need the cores, and clocks of one thread do not see them."""

    def launched(self, emitters: Emitters, device: torch.device) -> BatchMask | None:
        """The forward of a batch has been launched; None where no row of it is constrained."""
        if emitters is not self._emitters:
            self._look_at(emitters, device)
        if not self._constrained:
            return None
        return BatchMask(self, self._constrained, self._rows, len(emitters.sequences))

    def _look_at(self, emitters: Emitters, device: torch.device) -> None:
        self._emitters = emitters
        rows = [(row, s, s.grammar) for row, s in enumerate(emitters.sequences) if s.grammar is not None]
        self._constrained = [(sequence, grammar) for _, sequence, grammar in rows]
        if rows:
            (self._rows,) = upload(device, np.array([row for row, _, _ in rows], dtype=np.int64))

    def buffer(self, rows: int, device: torch.device) -> _Buffer:
        """For the rows of the next mask; waits until what it held has been copied."""
        if not self._buffers or len(self._buffers[0].words) < rows:
            self._buffers = [_Buffer(rows, self.words, device) for _ in range(_BUFFERS)]
        self._latest = (self._latest + 1) % _BUFFERS
        buffer = self._buffers[self._latest]
        buffer.wait()
        return buffer

    def matcher(self) -> Any:
        """xgrammar's, for many outputs at a time."""
        threads: int | str = "auto" if self.slow else 1
        if threads not in self._matchers:
            self._matchers[threads] = batch_matcher(threads)
        return self._matchers[threads]


class BatchMask:
    """The mask of one batch, to be filled once."""

    def __init__(
        self, masks: Masks, constrained: list[tuple[Sequence, Grammar]], rows: torch.Tensor, batch_rows: int
    ) -> None:
        self._masks, self._constrained, self._rows, self._batch_rows = masks, constrained, rows, batch_rows
        self._on_cuda = rows.device.type == "cuda"
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if self._on_cuda else []
        """The end of the forward, and of the masks or, if that is later, of the forward again."""
        self._span_ns = (0, 0)
        if self._on_cuda:
            self._events[0].record()

    def fill(self) -> torch.Tensor:
        """The bitmask `[R, words]` int32, on the device.

        Rows of sequences that are over, or never were constrained, allow everything.
        """
        masks, count = self._masks, len(self._constrained)
        begin_ns = masks.clock.now_ns()
        buffer = masks.buffer(count, self._rows.device)
        going_on = []
        for i, (sequence, _) in enumerate(self._constrained):
            if sequence.finish_reason is None:
                going_on.append(i)
            else:
                buffer.words[i] = _EVERYTHING
        allowed([self._constrained[i][1] for i in going_on], buffer.words, going_on, masks.matcher())
        self._span_ns = (begin_ns, masks.clock.now_ns())
        masks.slow = self._on_cuda and self._span_ns[1] - begin_ns > _WORTH_THREADS_NS
        if self._on_cuda:
            self._events[1].record()
        return self._spread(buffer.send(count, self._rows.device))

    def times(self, forward_end_ns: int | None = None) -> MaskTimes:
        """Times of the masks; call it once the tokens have arrived.

        Args:
            forward_end_ns: when a forward on the CPU was over; None = before the mask was begun.
        """
        begin_ns, end_ns = self._span_ns
        mask_ns = end_ns - begin_ns
        if self._on_cuda:
            idle_ns = int(self._events[0].elapsed_time(self._events[1]) * 1e6)
        else:
            idle_ns = end_ns - max(begin_ns, forward_end_ns or begin_ns)
        return MaskTimes(len(self._constrained), mask_ns, min(max(idle_ns, 0), mask_ns))

    def _spread(self, compact: torch.Tensor) -> torch.Tensor:
        """Rows of the constrained at their places in the batch."""
        if len(compact) == self._batch_rows:
            return compact
        whole = compact.new_full((self._batch_rows, self._masks.words), _EVERYTHING)
        return whole.index_copy_(0, self._rows, compact)


class _Buffer:
    """Rows of a bitmask on the host, pinned where they are copied to a device."""

    def __init__(self, rows: int, words: int, device: torch.device) -> None:
        on_cuda = device.type == "cuda"
        self.words = torch.zeros((rows, words), dtype=torch.int32, pin_memory=on_cuda)
        self._sent = torch.cuda.Event() if on_cuda else None

    def wait(self) -> None:
        """Wait for the end of the copy out of it."""
        if self._sent is not None:
            self._sent.synchronize()

    def send(self, rows: int, device: torch.device) -> torch.Tensor:
        """The first so many rows on the device; on the CPU they are the buffer itself."""
        sent = self.words[:rows].to(device, non_blocking=True)
        if self._sent is not None:
            self._sent.record()
        return sent


def emitted(sequences: list[Sequence], tokens: list[int]) -> tuple[list[Sequence], list[int]]:
    """Sequences and their tokens, without those for which nothing was allowed."""
    if min(tokens, default=0) >= 0:
        return sequences, tokens
    kept = [(s, token) for s, token in zip(sequences, tokens, strict=True) if token >= 0]
    return [s for s, _ in kept], [token for _, token in kept]
