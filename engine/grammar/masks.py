"""The vocabulary bitmask of a batch, computed on the host while the forward runs."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from engine.clock import Clock
from engine.executor import Emitters
from engine.grammar.compiler import batch_matcher
from engine.grammar.state import Grammar, allowed
from engine.sequence import Sequence

_BUFFERS = 2
"""In rotation: while one is being copied to the device, the next is filled."""
_WORTH_THREADS_NS = 1_000_000
_EVERYTHING = -1
"""All 32 bits of a word."""


class MaskTimes(NamedTuple):
    """What the masks of a step took."""

    rows: int
    """Constrained rows."""
    mask_ns: int
    """Host time for all of them."""
    exposed_ns: int
    """The part of it in which the device had nothing to do: the forward was over."""


NO_MASKS = MaskTimes(0, 0, 0)


class Masks:
    """Fills the masks of a batch's constrained rows.

        masks.launched(emitters, device)   the forward of the batch is on its way
        bitmask = masks.fill()             all tokens before those of this batch have been accepted
        ...                                sampling, and waiting for its tokens
        times = masks.times()

    Args:
        clock: the engine's.
    """

    def __init__(self, vocab_size: int, clock: Clock) -> None:
        self._words = -(-vocab_size // 32)
        self._clock = clock
        self._emitters: Emitters | None = None
        self._constrained: list[tuple[int, Sequence, Grammar]] = []
        self._rows = torch.zeros(0, dtype=torch.int64)
        self._buffers: list[_Buffer] = []
        self._latest = 0
        self._matchers: dict[int | str, Any] = {}
        """By the number of threads."""
        self._slow = False
        """Whether the masks before took so long that several threads are worth their beginning. Beside a GPU
        only: on the CPU others need the cores, and clocks of one thread do not see them."""
        self._events: tuple[torch.cuda.Event, torch.cuda.Event] | None = None
        self._span_ns: tuple[int, int] | None = None

    def launched(self, emitters: Emitters, device: torch.device) -> None:
        """The forward of a batch has been launched; what the device waits from its end on is exposed."""
        self._span_ns = None
        if emitters is not self._emitters:
            self._look_at(emitters, device)
        if device.type == "cuda" and self._constrained:
            if self._events is None:
                self._events = (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
            self._events[0].record()

    def fill(self) -> torch.Tensor | None:
        """The bitmask `[R, words]` int32 of that batch, on its device; None where no row is constrained.

        Rows of sequences that are over, or never were constrained, allow everything.
        """
        count = len(self._constrained)
        if not count:
            return None
        begin_ns = self._clock.now_ns()
        buffer = self._next_buffer(count)
        self._fill(buffer.words)
        self._span_ns = (begin_ns, self._clock.now_ns())
        self._slow = self._events is not None and self._span_ns[1] - begin_ns > _WORTH_THREADS_NS
        if self._events is not None:
            self._events[1].record()
        return self._spread(buffer.send(count, self._rows.device))

    def times(self, forward_end_ns: int | None = None) -> MaskTimes | None:
        """Of the latest batch, once its tokens have arrived; None where it had no constrained row.

        Args:
            forward_end_ns: when a forward on the CPU was over; None = before the masks were begun.
        """
        if self._span_ns is None:
            return None
        (begin_ns, end_ns), self._span_ns = self._span_ns, None
        mask_ns = end_ns - begin_ns
        idle_ns = end_ns - max(begin_ns, forward_end_ns or begin_ns)
        if self._events is not None:
            idle_ns = int(self._events[0].elapsed_time(self._events[1]) * 1e6)
        return MaskTimes(len(self._constrained), mask_ns, min(max(idle_ns, 0), mask_ns))

    def _look_at(self, emitters: Emitters, device: torch.device) -> None:
        self._emitters = emitters
        self._constrained = [
            (row, sequence, sequence.grammar)
            for row, sequence in enumerate(emitters.sequences)
            if sequence.grammar is not None
        ]
        if self._constrained:
            rows = [row for row, _, _ in self._constrained]
            self._rows = torch.tensor(rows, dtype=torch.int64).to(device)

    def _fill(self, words: torch.Tensor) -> None:
        threads: int | str = "auto" if self._slow else 1
        if threads not in self._matchers:
            self._matchers[threads] = batch_matcher(threads)
        going_on = []
        for i, (_, sequence, _) in enumerate(self._constrained):
            if sequence.finish_reason is None:
                going_on.append(i)
            else:
                words[i] = _EVERYTHING
        allowed([self._constrained[i][2] for i in going_on], words, going_on, self._matchers[threads])

    def _next_buffer(self, rows: int) -> _Buffer:
        if not self._buffers or len(self._buffers[0].words) < rows:
            self._buffers = [_Buffer(rows, self._words, self._rows.device) for _ in range(_BUFFERS)]
        self._latest = (self._latest + 1) % _BUFFERS
        buffer = self._buffers[self._latest]
        buffer.wait()
        return buffer

    def _spread(self, compact: torch.Tensor) -> torch.Tensor:
        """Rows of the constrained at their places in the batch."""
        assert self._emitters is not None
        rows = len(self._emitters.sequences)
        if len(compact) == rows:
            return compact
        return compact.new_full((rows, self._words), _EVERYTHING).index_copy_(0, self._rows, compact)


class _Buffer:
    """Rows of a bitmask on the host, pinned where they are copied to a device."""

    def __init__(self, rows: int, words: int, device: torch.device) -> None:
        on_cuda = device.type == "cuda"
        self.words = torch.zeros((rows, words), dtype=torch.int32, pin_memory=on_cuda)
        self._sent = torch.cuda.Event() if on_cuda else None

    def wait(self) -> None:
        """Until the copy of what it held is over."""
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
