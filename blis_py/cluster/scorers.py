"""Scorers: how much each instance is worth to a request, from 0 to 1.

A scorer of what is known of the instances is a function and one line in `SCORERS`: `of_reports` where only
instances' reports are read, which spares scoring them with every request, `of_load` for anything else. One
that looks at the request is a class like those below. Installed packages can bring their own:

    [project.entry-points."blis_py.routing_scorers"]
    my-scorer = "my_package:my_scorer"
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from blis_py.cluster.affinity import AffinityIndex
from blis_py.cluster.prefixes import Level
from blis_py.cluster.signals import Signals
from blis_py.core.request import Request

Scores = NDArray[np.float64]
"""By instance."""

DEFAULT_PROFILE = (("precise-prefix-cache", 2.0), ("queue-depth", 1.0), ("kv-utilization", 1.0))
AFFINITY_BLOCKS = 10_000
"""Blocks that `prefix-affinity` remembers of each instance."""
GROUP = "blis_py.routing_scorers"
"""Of entry points."""


class Scorer(Protocol):
    """Scores all instances for a request."""

    def version(self) -> int:
        """While it does not change, the scores do not either; -1 = they depend on the request."""
        ...

    def __call__(self, request: Request) -> Scores: ...

    def sent(self, request: Request, index: int) -> None:
        """The request goes there."""
        ...


MakeScorer = Callable[[Signals], Scorer]


class Known:
    """The signals as arrays, by instance."""

    def __init__(self, signals: Signals) -> None:
        self._signals = signals

    @property
    def queue_depth(self) -> Scores:
        return np.array(self._signals.queue_depth, np.float64)

    @property
    def batch_size(self) -> Scores:
        return np.array(self._signals.batch_size, np.float64)

    @property
    def kv_utilization(self) -> Scores:
        return np.array(self._signals.kv_utilization, np.float64)

    @property
    def in_flight(self) -> Scores:
        return np.array(self._signals.in_flight, np.float64)

    @property
    def load(self) -> Scores:
        return np.array(self._signals.load, np.float64)


Score = Callable[[Known], Scores]


class OfSignals:
    """A scorer that does not look at the request.

    Args:
        score: the function.
        reports_only: it reads nothing but what instances report.
    """

    def __init__(self, signals: Signals, score: Score, reports_only: bool) -> None:
        self._signals, self._score, self._reports_only = signals, score, reports_only
        self._known = Known(signals)

    def version(self) -> int:
        return self._signals.reports if self._reports_only else self._signals.looks

    def __call__(self, request: Request) -> Scores:
        return self._score(self._known)

    def sent(self, request: Request, index: int) -> None: ...


def of_reports(score: Score) -> MakeScorer:
    """Makes a scorer of a function of what instances report: queue depth, batch size, KV use."""
    return lambda signals: OfSignals(signals, score, reports_only=True)


def of_load(score: Score) -> MakeScorer:
    """Makes a scorer of a function of anything that is known of the instances."""
    return lambda signals: OfSignals(signals, score, reports_only=False)


smallest, largest = np.minimum.reduce, np.maximum.reduce
"""Quicker for short arrays than their methods."""


def fewest(values: Scores) -> Scores:
    """1 for the least, 0 for the most, in between by proportion; 1 for all if they are equal."""
    least, most = smallest(values), largest(values)
    return (most - values) / (most - least) if most > least else np.ones_like(values)


def queue_depth(known: Known) -> Scores:
    """The shortest queue."""
    return fewest(known.queue_depth)


def running_requests(known: Known) -> Scores:
    """The smallest batch."""
    return fewest(known.batch_size)


def vllm_dp(known: Known) -> Scores:
    """As vLLM balances its data-parallel ranks: who waits counts four times who runs."""
    return fewest(4 * known.queue_depth + known.batch_size)


def kv_utilization(known: Known) -> Scores:
    """The most free KV blocks."""
    return 1 - known.kv_utilization


def load_aware(known: Known) -> Scores:
    """A queue shorter than 128. At most a half, as in llm-d's."""
    return 0.5 * (1 - np.minimum(known.queue_depth, 128) / 128)


def load_balance(known: Known) -> Scores:
    """The smallest effective load, the first requests counting most."""
    return 1 / (1 + known.load)


def active_requests(known: Known) -> Scores:
    """The fewest requests in flight; 1 only for who has none, 0 for all who have equally many."""
    in_flight = known.in_flight
    most = largest(in_flight)
    return (most - in_flight) / most if most > 0 else np.ones_like(in_flight)


class PrecisePrefixCache:
    """The most blocks of the prompt in the instance's prefix cache, as last reported."""

    def __init__(self, signals: Signals) -> None:
        self._caches, self._count = signals.watch_prefixes(), signals.count

    def version(self) -> int:
        return -1

    def __call__(self, request: Request) -> Scores:
        blocks = by_instance(self._caches.held(request), self._count)
        least, most = smallest(blocks), largest(blocks)
        return (blocks - least) / (most - least) if most > least else np.ones_like(blocks)

    def sent(self, request: Request, index: int) -> None: ...


class PrefixAffinity:
    """The share of the prompt that was sent there before, as the router remembers; it sees no eviction."""

    def __init__(self, signals: Signals) -> None:
        self._count, self._block_size = signals.count, signals.block_size
        self._index = AffinityIndex(signals.count, signals.block_size, AFFINITY_BLOCKS)

    def version(self) -> int:
        return -1

    def __call__(self, request: Request) -> Scores:
        blocks = max(request.prompt_tokens // self._block_size, 1)
        return by_instance(self._index.held(request), self._count) / blocks

    def sent(self, request: Request, index: int) -> None:
        self._index.sent(request, index)


class NoHitLRU:
    """Spreads prompts of which nobody holds anything: who has had none of them for longest scores 1."""

    def __init__(self, signals: Signals) -> None:
        self._caches, self._count = signals.watch_prefixes(), signals.count
        self._rank = np.arange(signals.count, dtype=np.float64)
        """Who never had one first, in order; then the least recent."""

    def version(self) -> int:
        return -1

    def __call__(self, request: Request) -> Scores:
        if self._caches.held(request):
            return np.full(self._count, 0.5)
        return 1 - self._rank / max(self._count - 1, 1)

    def sent(self, request: Request, index: int) -> None:
        if not self._caches.held(request):
            rank = self._rank
            rank[rank > rank[index]] -= 1
            rank[index] = self._count - 1


def by_instance(levels: Sequence[Level], count: int) -> Scores:
    """The blocks that each instance holds."""
    blocks = np.zeros(count)
    before = 0
    for mask, held in levels:
        if mask.bit_count() <= 4:
            while mask:
                index = (mask & -mask).bit_length() - 1
                blocks[index] = held
                mask &= mask - 1
        else:
            packed = np.frombuffer(mask.to_bytes((count + 7) // 8, "little"), np.uint8)
            blocks += (held - before) * np.unpackbits(packed, count=count, bitorder="little")
        before = held
    return blocks


SCORERS: dict[str, MakeScorer] = {
    "precise-prefix-cache": PrecisePrefixCache,
    "prefix-affinity": PrefixAffinity,
    "no-hit-lru": NoHitLRU,
    "queue-depth": of_reports(queue_depth),
    "kv-utilization": of_reports(kv_utilization),
    "load-balance": of_load(load_balance),
    "active-requests": of_load(active_requests),
    "running-requests": of_reports(running_requests),
    "load-aware": of_reports(load_aware),
    "vllm-dp": of_reports(vllm_dp),
}
