"""A KV store behind the caches: prefixes that instances have computed, in CPU memory that they share.

It hears of a prefix as an outlet, when a request ends, and supplies it as a source of KV.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from small_runs import US, spec

from blis_py.cluster.simulation import ClusterSimulation
from blis_py.cluster.topology import Cluster, Ingress, Pool
from blis_py.core.kv_source import Supply
from blis_py.core.request import Request
from blis_py.requests.table import RequestTable


class Tier:
    """Blocks by their keys; loads take 2 us a block."""

    def __init__(self, block_size: int = 4, block_ns: int = 2 * US) -> None:
        self._block_size, self._block_ns = block_size, block_ns
        self._held: set[tuple[Hashable, Hashable]] = set()
        self.loading: dict[Request, int] = {}

    def enters(self, request: Request) -> None: ...

    def way_on(self, request: Request) -> None:
        computed = request.block_keys[: request.computed // self._block_size]
        self._held.update((request.extra_key, key) for key in computed)

    def take(self, requests: Sequence[Request], end_ns: int) -> None: ...

    def offer(self, request: Request, computed_tokens: int, now_ns: int) -> Supply | None:
        begin = end = computed_tokens // self._block_size
        keys = request.block_keys
        while end < len(keys) and (request.extra_key, keys[end]) in self._held:
            end += 1
        tokens = min(end * self._block_size, request.num_tokens - 1) - computed_tokens
        return Supply(tokens, now_ns + (end - begin) * self._block_ns) if tokens > 0 else None

    def load(self, request: Request, computed_tokens: int, supply: Supply, now_ns: int) -> None:
        self.loading[request] = supply.tokens

    def arrived(self, request: Request, now_ns: int) -> int:
        return self.loading.pop(request)

    def cancel(self, request: Request) -> None:
        del self.loading[request]


def simulation(
    table: RequestTable, tier: Tier, single_step: bool = False, **settings: Any
) -> ClusterSimulation:
    pool = Pool(spec=spec(kv_source=tier, **settings), count=2)
    run = ClusterSimulation(table, Cluster(pools=(pool,), ingress=Ingress()), single_step=single_step)
    run.connect(pool.name, tier)
    return run
