"""Scorers: the suitability of each instance for a request, from 0 to 1.

A scorer of instance state is a function and one line in `SCORERS`: `of_reports` if it reads only the reports
of instances, so that scores are reused between reports, `of_load` otherwise. A scorer that looks at the
request is a class like those below. Installed packages can add their own:

    [project.entry-points."blis_py.routing_scorers"]
    my-scorer = "my_package:my_scorer"
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from blis_py.cluster.routing.affinity import AffinityIndex
from blis_py.cluster.routing.prefixes import Level
from blis_py.cluster.routing.signals import Signals
from blis_py.core.request import Request

if TYPE_CHECKING:
    from blis_py.cluster.instances.fleet import MemberState

Scores = NDArray[np.float64]
"""Scores by ready instance, in the order of `Signals.ready`."""

DEFAULT_PROFILE = (("precise-prefix-cache", 2.0), ("queue-depth", 1.0), ("kv-utilization", 1.0))
AFFINITY_BLOCKS = 10_000
"""Blocks that `prefix-affinity` keeps per instance."""
GROUP = "blis_py.routing_scorers"
"""Entry point group of scorers."""


class Scorer(Protocol):
    """Scores the ready instances for a request."""

    def version(self) -> int:
        """Scores change only if this does; -1 = they depend on the request."""
        ...

    def __call__(self, request: Request) -> Scores: ...

    def sent(self, request: Request, index: int) -> None:
        """Record that the request is sent to an instance."""
        ...


MakeScorer = Callable[[Signals], Scorer]


class Known:
    """The signals as arrays, by ready instance; numbers of requests of unequal instances in relation to their
    capacities."""

    def __init__(self, signals: Signals) -> None:
        self._signals = signals

    @property
    def queue_depth(self) -> Scores:
        return self._in_relation(self._signals.queue_depth)

    @property
    def batch_size(self) -> Scores:
        return self._in_relation(self._signals.batch_size)

    @property
    def kv_utilization(self) -> Scores:
        return self._of_ready(self._signals.kv_utilization)

    @property
    def in_flight(self) -> Scores:
        return self._in_relation(self._signals.in_flight)

    @property
    def load(self) -> Scores:
        return self._in_relation(self._signals.load)

    def _in_relation(self, requests: Sequence[int]) -> Scores:
        weights, values = self._signals.weights, self._of_ready(requests)
        return values if weights is None else values / self._of_ready(weights)

    def _of_ready(self, values: Sequence[float]) -> Scores:
        return ready_only(np.array(values, np.float64), self._signals)


def ready_only(values: Scores, signals: Signals) -> Scores:
    """The values of the ready instances, from values by index."""
    return values if signals.all_ready else values[signals.ready]


Score = Callable[[Known], Scores]


class OfSignals:
    """A scorer that does not look at the request.

    Args:
        score: the scoring function.
        reports_only: it reads only the reports of instances.
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
    """Turn a function of instance reports (queue depth, batch size, KV use) into a scorer."""
    return lambda signals: OfSignals(signals, score, reports_only=True)


def of_load(score: Score) -> MakeScorer:
    """Turn a function of any instance state into a scorer."""
    return lambda signals: OfSignals(signals, score, reports_only=False)


smallest, largest = np.minimum.reduce, np.maximum.reduce
"""Faster than the methods for short arrays."""


def fewest(values: Scores) -> Scores:
    """1 for the minimum, 0 for the maximum, linear in between; 1 for all if they are equal."""
    least, most = smallest(values), largest(values)
    return (most - values) / (most - least) if most > least else np.ones_like(values)


def queue_depth(known: Known) -> Scores:
    """Prefer the shortest queue."""
    return fewest(known.queue_depth)


def running_requests(known: Known) -> Scores:
    """Prefer the smallest batch."""
    return fewest(known.batch_size)


def vllm_dp(known: Known) -> Scores:
    """Load balancing of vLLM's data-parallel ranks: a waiting request counts four times a running one."""
    return fewest(4 * known.queue_depth + known.batch_size)


def kv_utilization(known: Known) -> Scores:
    """Prefer the most free KV blocks."""
    return 1 - known.kv_utilization


def load_aware(known: Known) -> Scores:
    """Prefer queues shorter than 128. At most 0.5, as in llm-d."""
    return 0.5 * (1 - np.minimum(known.queue_depth, 128) / 128)


def load_balance(known: Known) -> Scores:
    """Prefer the smallest effective load; the first requests count most."""
    return 1 / (1 + known.load)


def active_requests(known: Known) -> Scores:
    """Prefer the fewest requests in flight; 1 only for instances with none, 0 for all if they are equal."""
    in_flight = known.in_flight
    most = largest(in_flight)
    return (most - in_flight) / most if most > 0 else np.ones_like(in_flight)


class PrecisePrefixCache:
    """Prefer the most blocks of the prompt in the instance's prefix cache, as last reported."""

    def __init__(self, signals: Signals) -> None:
        self._caches, self._signals = signals.watch_prefixes(), signals

    def version(self) -> int:
        return -1

    def __call__(self, request: Request) -> Scores:
        held = self._caches.held(request)
        blocks = ready_only(by_instance(held, self._signals.count), self._signals)
        least, most = smallest(blocks), largest(blocks)
        return (blocks - least) / (most - least) if most > least else np.ones_like(blocks)

    def sent(self, request: Request, index: int) -> None: ...


class PrefixAffinity:
    """The share of the prompt sent there before, as recorded by the router; evictions are not seen."""

    def __init__(self, signals: Signals) -> None:
        self._signals, self._block_size = signals, signals.block_size
        self._index = AffinityIndex(signals.block_size, AFFINITY_BLOCKS)
        signals.follow(self._index.change)

    def version(self) -> int:
        return -1

    def __call__(self, request: Request) -> Scores:
        blocks = max(request.prompt_tokens // self._block_size, 1)
        held = by_instance(self._index.held(request), self._signals.count)
        return ready_only(held, self._signals) / blocks

    def sent(self, request: Request, index: int) -> None:
        self._index.sent(request, index)


class NoHitLRU:
    """Spread prompts that no instance has cached: the instance least recently sent one scores 1."""

    def __init__(self, signals: Signals) -> None:
        self._caches, self._signals = signals.watch_prefixes(), signals
        self._rank = np.zeros(0)
        """By index: instances without such a prompt first, in order; then the least recent."""
        self._fresh = 0
        """Number of instances without one so far."""
        signals.follow(self._change)

    def version(self) -> int:
        return -1

    def __call__(self, request: Request) -> Scores:
        count = len(self._signals.ready)
        if self._is_held(request):
            return np.full(count, 0.5)
        rank = ready_only(self._rank, self._signals)
        if len(rank) < len(self._rank):
            rank = rank.argsort(kind="stable").argsort(kind="stable")
        return 1 - rank / max(count - 1, 1)

    def sent(self, request: Request, index: int) -> None:
        if not self._is_held(request):
            rank = self._rank
            if rank[index] < self._fresh:
                self._fresh -= 1
            rank[rank > rank[index]] -= 1
            rank[index] = len(rank) - 1

    def _is_held(self, request: Request) -> bool:
        """Whether a ready instance holds a block of the prompt."""
        held = self._caches.held(request)
        if not held or self._signals.all_ready:
            return bool(held)
        return bool(ready_only(by_instance(held[:1], self._signals.count), self._signals).any())

    def _change(self, index: int, state: MemberState) -> None:
        """Rank an added instance before those that have had one."""
        if state == "added":
            self._rank[self._rank >= self._fresh] += 1
            self._rank = np.append(self._rank, float(self._fresh))
            self._fresh += 1


def by_instance(levels: Sequence[Level], count: int) -> Scores:
    """The number of blocks held by each instance."""
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
