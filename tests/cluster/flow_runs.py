"""Small runs with a queue at the gateway."""

from __future__ import annotations

from typing import Any

import numpy as np
from cluster_runs import Row, differences, linear, table_of
from one_pool import simulate

from blis_py.cluster.flow_settings import FlowSettings
from blis_py.core.config import SchedulerConfig
from blis_py.metrics.invariants import check
from blis_py.metrics.record import RunRecord

US = 1_000
STEP_NS = 10 * US
CONFIG = SchedulerConfig(num_kv_blocks=400, max_model_len=6_000, max_num_seqs=8)
ONE = FlowSettings(saturation_detector="concurrency", max_concurrency_per_instance=1)
"""One request at a time on each instance."""


def run(rows: list[Row], flow: FlowSettings = ONE, **options: Any) -> RunRecord:
    """The outcome, which is that of single steps."""
    settings: dict[str, Any] = {
        "scheduler": CONFIG,
        "latency": linear(STEP_NS),
        "flow_control": flow,
        **options,
    }
    record = simulate(table_of(rows), **settings)
    check(record)
    assert differences(record, simulate(table_of(rows), **settings, single_step=True)) == []
    return record


def reasons(record: RunRecord) -> list[str]:
    """Why each was rejected or evicted, if it was."""
    return [""] * len(record.table) if record.rejection is None else record.rejection.to_list()


def waits_us(record: RunRecord) -> list[float]:
    """Of each, at the gateway; -0.001 = it was never there."""
    assert record.gateway_ns is not None
    return [wait / US for wait in record.gateway_ns.tolist()]


def order(record: RunRecord) -> list[int]:
    """Rows in the order in which they were dispatched."""
    rows = np.flatnonzero(record.instance >= 0)
    return [int(row) for row in rows[np.argsort(record.enqueue_ns[rows], kind="stable")]]
