"""Queue orders as in SGLang: the whole queue is sorted when a pass begins.

`calc_priority` of `schedule_policy.py`. Lookups count as uses of the cache. Among equals the order before
stays, and what arrives in between goes behind.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from blis_py.core.blocks import block_count
from blis_py.core.config import SchedulerConfig
from blis_py.core.counters import Counters
from blis_py.core.kv import KVCache
from blis_py.core.radix_node import Node
from blis_py.core.request import Request

_LAST: Final = 1
"""Behind all matches, which are negative."""


class PassOrder:
    """Waiting requests in the order of the latest pass; see `WaitingQueue`."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._requests: list[Request] = []
        self._block_size = config.block_size
        sharing = config.in_batch_sharing_tokens
        self._sharing_tokens = 0 if sharing is None else sharing
        self._most = config.lpm_max_queue
        self.scanned_requests = 0
        """Requests looked up in the cache since the planner of steps set it to 0."""
        self._kv: KVCache

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def push(self, request: Request) -> None:
        self._requests.append(request)

    def push_front(self, request: Request) -> None:
        self._requests.insert(0, request)

    def head(self, now_ns: int) -> Request:
        return self._requests[0]

    def pop_head(self, now_ns: int) -> Request:
        return self._requests.pop(0)

    def remove(self, request: Request) -> None:
        self._requests.remove(request)

    def next_change_ns(self, now_ns: int) -> int | None:
        return None

    def cache_order(self, kv: KVCache, prefilling: Collection[Request], counters: Counters) -> PassOrder:
        self._kv = kv
        return self

    @property
    def looks_at_cache(self) -> bool:
        """Whether the order may change without arrivals or departures: not between passes."""
        return False

    def begin_pass(self) -> bool:
        """Sort for a pass; whether requests were looked up."""
        raise NotImplementedError


class MostUrgentFirst(PassOrder):
    """Smallest priority first; among equals those that entered the queue first, retracted ones again."""

    def begin_pass(self) -> bool:
        self._requests.sort(key=_priority)
        return False


class LongestMatchFirst(PassOrder):
    """`lpm`: longest cached prefix first. Those whose first uncached tokens another one is about to compute
    come last; with a long queue the order stays."""

    def begin_pass(self) -> bool:
        requests, size = self._requests, self._block_size
        if len(requests) > self._most:
            return False
        self.scanned_requests += len(requests)
        shared_blocks = block_count(self._sharing_tokens, size)
        begun: set[object] = set()
        keys: dict[Request, int] = {}
        for request in requests:
            matched_tokens = self._kv.look_up(request)[1] * size
            keys[request] = -min(matched_tokens, request.num_tokens - 1)
            if matched_tokens > self._sharing_tokens or not self._begins_with(request, shared_blocks):
                continue
            name = (request.extra_key, request.block_keys[shared_blocks - 1])
            if name in begun:
                keys[request] = _LAST
            begun.add(name)
        requests.sort(key=keys.__getitem__)
        return True

    def _begins_with(self, request: Request, blocks: int) -> bool:
        """Whether it has so many blocks that others may have, too."""
        full = min(len(request.block_keys), request.num_tokens // self._block_size)
        return 0 < blocks <= full


class HeaviestBranchFirst(PassOrder):
    """`dfs-weight`: depth first through the tree, at each node the branch with most waiting requests first,
    and those that end in the node last."""

    def begin_pass(self) -> bool:
        requests = self._requests
        self.scanned_requests += len(requests)
        ends: dict[Node, list[Request]] = {}
        for request in requests:
            ends.setdefault(self._kv.look_up(request)[0], []).append(request)
        weights: dict[Node, int] = {}
        roots: dict[Node, None] = {}
        for node, ending in ends.items():
            step = node
            while step.parent is not None:
                weights[step] = weights.get(step, 0) + len(ending)
                step = step.parent
            roots[step] = None
        order: list[Request] = []
        stack = [*roots, *_lightest_first([c for root in roots for c in root.children.values()], weights)]
        open_nodes = set(roots)
        while stack:
            node = stack.pop()
            if node in open_nodes:
                order += ends.get(node, ())
                continue
            open_nodes.add(node)
            stack.append(node)
            stack += _lightest_first(list(node.children.values()), weights)
        self._requests = order
        return True


def _lightest_first(nodes: list[Node], weights: dict[Node, int]) -> list[Node]:
    """Nodes with waiting requests below; of equally heavy ones the later first."""
    heavy = [node for node in reversed(nodes) if node in weights]
    heavy.sort(key=weights.__getitem__)
    return heavy


def _priority(request: Request) -> int:
    return request.priority


def sorts_by_pass(config: SchedulerConfig) -> bool:
    """Whether the queue is sorted as SGLang's: with its tree and its admission, and no bound on waiting."""
    bounded = config.fairness_ms is not None or config.fairness_tokens is not None
    tree = config.prefix_cache == "radix" and config.radix_eviction != "blocks"
    return tree and has_passes(config) and not bounded


def has_passes(config: SchedulerConfig) -> bool:
    """Whether the rule of admission is SGLang's."""
    return config.admission_rule.startswith("new-token-ratio")
