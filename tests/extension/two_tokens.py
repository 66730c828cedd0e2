"""Two tokens a step for some requests: an `Emission` among the settings of an instance, nothing edited."""

from __future__ import annotations

from typing import Any

from small_runs import US, requests, spec

from blis_py.cluster.simulation import simulate
from blis_py.cluster.topology import Cluster, Pool
from blis_py.core.request import Request
from blis_py.metrics.record import RunRecord
from blis_py.requests.table import RequestTable


class TwoTokens:
    """Requests in even rows: a decode step computes one draft, and every draft is right."""

    def is_irregular(self, request: Request) -> bool:
        return request.row % 2 == 0

    def rows(self, request: Request) -> int:
        return 2

    def tokens(self, request: Request, step: int, rows: int) -> int:
        return rows


def run(table: RequestTable, count: int = 1, settings: dict[str, Any] | None = None, **how: Any) -> RunRecord:
    """Steps take 10 us, 1 us for each prefill token, and 1 us for each position that decodes."""
    instance = spec(decode_seqs=US, emission=TwoTokens(), **(settings or {}))
    return simulate(table, Cluster(pools=(Pool(spec=instance, count=count),)), **how)


def example(async_scheduling: bool = False, **how: Any) -> RunRecord:
    table = requests([0, 0], [20, 10], [5, 5])
    return run(table, settings={"async_scheduling": async_scheduling}, **how)
