"""What a router that looks at load counts, seen from outside: by whom it sends where."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cluster_runs import Row, linear, table_of
from one_pool import simulate

from blis_py.cluster.instances.diffusion import BlockDiffusion
from blis_py.core.config import SchedulerConfig
from blis_py.core.diffusion_config import DiffusionConfig
from blis_py.latency.base import FrontendDelays
from blis_py.metrics.record import Outcome, RunRecord

US = 1000
CONFIG = SchedulerConfig(num_kv_blocks=200, max_model_len=600, block_size=32, max_num_seqs=64)


def routed(
    rows: list[Row], kind: str, seed: int = 42, frontend: FrontendDelays | None = None, **costs: float
) -> RunRecord:
    """By load that is never stale, over two instances; ties are drawn."""
    options: dict[str, Any] = {"num_instances": 2, "routing_policy": "least-loaded", "snapshot_refresh_ns": 0}
    if kind == "diffusion":
        rounds = [[4] * (-(-(row.prompt % 32 + row.output) // 32)) for row in rows]
        options["kind"] = BlockDiffusion(rounds, DiffusionConfig(block_tokens=32))
    latency = linear(10 * US, frontend, **costs)
    return simulate(table_of(rows), scheduler=CONFIG, latency=latency, seed=seed, **options)


GONE = {
    "unservable": (Row(0, 700, 5, 5), Outcome.UNSERVABLE),
    "timed out waiting": (Row(0, 10, 500, 500, patience_us=0), Outcome.TIMED_OUT),
    "timed out running": (Row(0, 10, 500, 500, patience_us=25), Outcome.TIMED_OUT),
    "completed": (Row(0, 10, 5, 5), Outcome.COMPLETED),
}


@pytest.mark.parametrize("kind", ["autoregressive", "diffusion"])
@pytest.mark.parametrize("fate", GONE)
def test_a_request_that_has_ended_counts_no_more(fate: str, kind: str) -> None:
    """A later arrival finds both instances alike, and goes to either."""
    gone, outcome = GONE[fate]
    rows = [gone, *(Row(20_000 + 10_000 * i, 10, 5, 5) for i in range(40))]
    records = [routed(rows, kind, seed) for seed in range(3)]
    for record in records:
        assert record.outcome.tolist() == [outcome, *[Outcome.COMPLETED] * 40]
        assert 10 <= record.instance[1:].tolist().count(0) <= 30
    changes = sum(np.diff(record.instance).astype(bool).sum() for record in records)
    assert 40 <= changes <= 80


@pytest.mark.parametrize("kind", ["autoregressive", "diffusion"])
def test_requests_that_reached_an_instance_during_a_step_count_as_waiting(kind: str) -> None:
    """One instance computes a long prompt in one step, the other one takes in every arrival at once: all are
    alive, so 20 requests are shared evenly."""
    rows = [Row(0, 512, 40, 40), Row(1, 10, 500, 500)]
    rows += [Row(500 + 100 * i, 10, 500, 500) for i in range(20)]
    record = routed(rows, kind, prefill_tokens=10 * US)
    long, short = record.instance[:2].tolist()
    assert long != short
    waited = record.scheduled_ns[2:][record.instance[2:] == long]
    assert waited.min() > 2_500 * US  # the last one has arrived by then
    assert record.instance[2:].tolist().count(long) == 10


@pytest.mark.parametrize("kind", ["autoregressive", "diffusion"])
def test_requests_in_the_front_end_do_not_wait_yet(kind: str) -> None:
    """The second one is on its way while the first one waits or runs: the third goes where that went."""
    frontend = FrontendDelays(before_enqueue_ns=1000 * US)
    for third_us in (1_000, 1_025):  # the first one gets there just then; it computes
        rows = [Row(0, 10, 500, 500), Row(50, 10, 500, 500), Row(third_us, 10, 500, 500)]
        for seed in range(8):
            instance = routed(rows, kind, seed, frontend).instance.tolist()
            assert instance[0] != instance[1] == instance[2]
