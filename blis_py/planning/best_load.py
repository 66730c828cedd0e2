"""The load of each combination at which a GPU emits the most while the limits are kept.

Requests in flight are raised until a limit is missed or nothing more is gained, and narrowed down there to
3 %, as far as a combination may still beat the best one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")
FIRST, MOST = 32, 8192
"""Requests in flight at each instance: first tried, and at most."""
RESOLUTION = 0.03
_GAIN = 1.01
"""Factor on the throughput below which twice the load gains nothing."""


@dataclass(frozen=True, slots=True)
class Tried(Generic[T]):
    """One load of a combination."""

    meets: bool
    per_gpu: float
    """Output tokens per second and GPU."""
    what: T


Run = Callable[[Sequence[tuple[int, int]]], Sequence[Tried[T] | None]]
"""Runs of combinations, by index, at numbers of requests in flight; None where one cannot be run."""


@dataclass(slots=True)
class _Line(Generic[T]):
    """Loads tried of one combination."""

    known: dict[int, Tried[T]] = field(default_factory=dict)
    out: bool = False

    @property
    def low(self) -> int | None:
        """The largest load below all that miss a limit."""
        high = self.high
        return max(
            (n for n, each in self.known.items() if each.meets and (high is None or n < high)), default=None
        )

    @property
    def high(self) -> int | None:
        """The smallest load that misses a limit."""
        return min((n for n, each in self.known.items() if not each.meets), default=None)

    def next(self, best: float) -> int | None:
        """The next load to try; None at the end."""
        low, high = self.low, self.high
        if self.out or not self.known:
            return None if self.out else FIRST
        if low is None:
            return None if high is None or high == 1 else max(high // 4, 1)
        if high is None:
            half = self.known.get(low // 2)
            gains = half is None or self.known[low].per_gpu > _GAIN * half.per_gpu
            return 2 * low if gains and low < MOST else None
        if high - low <= max(RESOLUTION * low, 1) or self.known[high].per_gpu <= best:
            return None
        return (low + high) // 2


def loads(count: int, run: Run[T]) -> list[list[Tried[T]]]:
    """All loads tried of each of so many combinations."""
    lines: list[_Line[T]] = [_Line() for _ in range(count)]
    while True:
        best = max((t.per_gpu for line in lines for t in line.known.values() if t.meets), default=0.0)
        todo = [(at, n) for at, line in enumerate(lines) if (n := line.next(best)) is not None]
        if not todo:
            return [[line.known[n] for n in sorted(line.known)] for line in lines]
        for (at, n), tried in zip(todo, run(todo), strict=True):
            if tried is None:
                lines[at].out = True
            else:
                lines[at].known[n] = tried
