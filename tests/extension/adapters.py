"""LoRA adapters: a column of the requests, which caches heed by themselves and a routing policy reads."""

from __future__ import annotations

from small_runs import requests, spec

from blis_py.cluster.routing.router import RouterSetup
from blis_py.cluster.simulation import simulate
from blis_py.cluster.topology import Cluster, Ingress, Pool
from blis_py.core.request import Request
from blis_py.metrics.record import RunRecord


class ByAdapter:
    """Each adapter has an instance, the next in turn when it is first requested."""

    looks_at_load = False

    def __init__(self, setup: RouterSetup) -> None:
        self._ready = setup.signals.ready
        self._home: dict[object, int] = {}

    def __call__(self, request: Request, now_ns: int) -> int:
        turn = len(self._home) % len(self._ready)
        return self._home.setdefault(request.extra_key, self._ready[turn])


def run(adapters: list[str], policy: str, cache: str = "hash", count: int = 2) -> RunRecord:
    """A request every 100 us, all with the same beginning of 16 tokens."""
    rows = len(adapters)
    table = requests(range(0, 100 * rows, 100), [20] * rows, [2] * rows, [("s", 16)] * rows, adapters)
    pool = Pool(spec=spec(prefix_cache=cache), count=count)
    ingress = Ingress(routing_policy=policy, snapshot_refresh_ns=0, cache_delay_ns=0)
    return simulate(table, Cluster(pools=(pool,), ingress=ingress))
