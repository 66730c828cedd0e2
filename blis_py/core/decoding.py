"""The decoding requests of an instance as aggregates; no per-request work from step to step."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import accumulate
from typing import Final

from blis_py.core.blocks import block_count
from blis_py.core.request import DECODING, Request

_MIN_ENTRIES = 64
"""Smaller heaps are not compacted."""
_NOWHERE: Final = -(1 << 62)
"""Base and finish tick of a request that does not decode."""


class DecodeSet:
    """Requests that compute one token in every step.

    The context of each grows by one a step, so at step `tick` it is `request.base + tick` with a
    fixed base. Hence the sum of contexts needs only the sum of bases; a request needs a new block
    at a fixed phase of `tick`; and the step at which it finishes is known when it joins.
    """

    def __init__(self, block_size: int, track_longest: bool) -> None:
        self.count = 0
        self.constrained = 0
        """Requests among them that are constrained by a grammar."""
        self.base_sum = 0
        self.crossings = [0] * block_size
        """Requests that need a new block at each phase of `tick`."""
        self.last_seq = -1
        """Upper bound on the places of decoding requests in the running list."""
        self._block_size = block_size
        self.finishing: list[tuple[int, int, Request]] = []
        """Heap by the value of `tick` at which each request will have all its tokens; some entries are
        stale."""
        self._track_longest = track_longest
        self._longest: list[tuple[int, int]] = []
        """Heap by minus the base, with the place in the running list; some entries are stale."""
        self._bases: dict[int, int] = {}
        """Base by place in the running list, if the longest context is tracked."""
        self._computed = 0
        self.members: list[dict[Request, None]] = []
        """Requests by the phase of `tick` at which they need a new block, if they are to be known."""
        self.begun: list[tuple[int, Request]] = []
        """With it: those that began to decode, with their first step; read and shortened by its reader."""

    def know_members(self) -> None:
        """Keep `members` from now on."""
        self.members = [{} for _ in range(self._block_size)]

    def computed_tokens(self, tick: int) -> int:
        """Tokens computed by decoding before step `tick`, over the life of the set."""
        return self._computed + self.base_sum + self.count * tick

    def start(self, request: Request, tick: int) -> None:
        """Add a request that decodes from step `tick` on; its `computed` is exact."""
        request.status = DECODING
        request.base = base = request.computed - tick
        self._computed -= request.computed
        self.count += 1
        if request.constrained:
            self.constrained += 1
        self.base_sum += base
        self.crossings[-base % self._block_size] += 1
        if self.members:
            self.members[-base % self._block_size][request] = None
            self.begun.append((tick, request))
        if request.seq > self.last_seq:
            self.last_seq = request.seq
        request.finish_tick = due = request.target + request.prompt_tokens - 1 - base
        heappush(self.finishing, (due, request.seq, request))
        if self._track_longest:
            self._bases[request.seq] = base
            heappush(self._longest, (-base, request.seq))

    def stop(self, request: Request, tick: int) -> None:
        """Remove a request before step `tick`, and make its counts exact."""
        base = request.base
        request.computed = computed = base + tick
        request.generated = computed + 1 - request.prompt_tokens
        request.last_tick = tick - 1
        request.base = request.finish_tick = _NOWHERE
        self._computed += computed
        self.count -= 1
        if request.constrained:
            self.constrained -= 1
        self.base_sum -= base
        self.crossings[-base % self._block_size] -= 1
        if self.members:
            del self.members[-base % self._block_size][request]
        if self._track_longest:
            del self._bases[request.seq]
            if len(self._longest) > _MIN_ENTRIES + 2 * self.count:
                self._longest = [(-base, seq) for seq, base in self._bases.items()]
                heapify(self._longest)

    def next_finish_tick(self) -> int:
        """Value of the step counter at which the first request will have all its tokens."""
        heap = self.finishing
        while heap[0][2].finish_tick != heap[0][0]:
            heappop(heap)
        return heap[0][0]

    def due(self, tick: int) -> list[Request]:
        """Requests whose last token has been emitted when the step counter reaches `tick`."""
        heap = self.finishing
        due: list[Request] = []
        while heap and heap[0][0] <= tick:
            finish_tick, seq, request = heappop(heap)
            if due and due[-1] is request:
                continue  # it was stopped and started again before the same step
            if request.finish_tick == finish_tick and request.seq == seq:
                due.append(request)
        return due

    def longest(self, tick: int) -> int:
        """Longest context at step `tick`."""
        assert self._track_longest, "the longest sequence is not tracked"
        heap, bases = self._longest, self._bases
        while heap and bases.get(heap[0][1]) != -heap[0][0]:
            heappop(heap)
        return tick - heap[0][0] if heap else 0

    def blocks_for(self, tick: int, steps: int) -> int:
        """Blocks that the `steps` steps from `tick` on need."""
        size, crossings = self._block_size, self.crossings
        blocks = 0
        if steps >= size:
            blocks, steps = steps // size * self.count, steps % size
        phase = tick % size
        while steps > 0:
            blocks += crossings[phase]
            phase += 1
            if phase == size:
                phase = 0
            steps -= 1
        return blocks

    def steps_within(self, tick: int, blocks: int, limit: int) -> int:
        """Number of steps from `tick` on for which `blocks` blocks suffice, at most `limit`."""
        size = self._block_size
        if self.count * block_count(limit, size) <= blocks:
            return limit
        cycles = blocks // self.count
        blocks -= cycles * self.count
        first = tick % size
        steps = cycles * size
        for taken in accumulate(self.crossings[first:] + self.crossings[:first]):
            if taken > blocks:
                break
            steps += 1
        return min(steps, limit)
