"""How often a run reports how many of its requests have ended."""

from __future__ import annotations

from cluster_runs import Row, linear, table_of
from one_pool import simulate

from blis_py.core.config import SchedulerConfig


def test_a_run_reports_its_progress_once_for_thousands_of_requests_and_at_its_end() -> None:
    reports: list[tuple[int, int]] = []
    requests = 4096 + 1000
    simulate(
        table_of([Row(100 * number, 1, 1) for number in range(requests)]),
        scheduler=SchedulerConfig(num_kv_blocks=400, max_model_len=64),
        latency=linear(1_000),
        routing_policy="least-loaded",
        progress=lambda ended, total: reports.append((ended, total)),
    )
    assert reports == [(4095, requests), (requests, requests)]
