"""Queues in series: a prefill pool and a decode pool behind it, each a queue with one exponential server."""

from __future__ import annotations

import numpy as np
import pytest
from intervals import agree
from queues import ConstantSteps, poisson

from blis_py.cluster.simulation import ClusterSimulation
from blis_py.cluster.topology import Cluster, Disaggregation, InstanceSpec, Link, Pool
from blis_py.core.config import SchedulerConfig
from blis_py.latency.linear import Linear, LinearCoefficients, LinearCosts
from blis_py.metrics.handovers import HandOvers
from blis_py.requests.table import RequestTable

US = 1000
MEAN_TOKENS = 200
"""Of a prompt, at 1 us a token, and of an answer, at a step of 1 us each: both geometric, so memoryless."""


def tandem(count: int, utilisation: float, seed: int) -> tuple[RequestTable, HandOvers, np.ndarray]:
    rng = np.random.default_rng(seed)
    prompts, outputs = rng.geometric(1 / MEAN_TOKENS, (2, count))
    table = RequestTable.build(poisson(rng, count, MEAN_TOKENS * US / utilisation), prompts, outputs + 1)
    one_by_one = SchedulerConfig(
        max_num_seqs=1, num_kv_blocks=10**5, max_model_len=10**5, max_num_batched_tokens=10**5,
        enable_prefix_caching=False,
    )  # fmt: skip
    by_prompt = Linear(LinearCoefficients(gpu=LinearCosts(prefill_tokens=US)))
    pools = (
        Pool(name="p", role="prefill", spec=InstanceSpec(scheduler=one_by_one, latency=by_prompt)),
        Pool(name="d", role="decode", spec=InstanceSpec(scheduler=one_by_one, latency=ConstantSteps(US))),
    )
    whole = Cluster(
        pools=pools,
        links=(Link(from_pool="p", to_pool="d"),),
        disaggregation=Disaggregation(handoff="trtllm"),
    )
    record = ClusterSimulation(table, whole).run()
    assert record.handovers is not None
    return table, record.handovers, record.finish_ns


@pytest.mark.slow
def test_each_of_two_queues_in_series_is_an_m_m_1_queue_of_its_own() -> None:
    """Jackson: departures of the first are Poisson (Burke), and times in the two are independent."""
    count, utilisation = 8_000, 0.6
    table, over, finish_ns = tandem(count, utilisation, seed=3)
    rows = over.request
    in_first = over.prefill_end_ns - table.arrival_ns[rows]
    in_second = finish_ns[rows] - over.prefill_end_ns
    mean_ns = MEAN_TOKENS * US / (1 - utilisation)
    agree(in_first[np.argsort(rows)], mean_ns, widest=0.3)
    agree(in_second[np.argsort(rows)], mean_ns, widest=0.3)
    order = np.argsort(over.prefill_end_ns, kind="stable")
    gaps = np.diff(over.prefill_end_ns[order])
    agree(gaps, MEAN_TOKENS * US / utilisation)
    assert gaps.std() / gaps.mean() == pytest.approx(1, abs=0.05), "as of a Poisson process"
    assert abs(np.corrcoef(in_first, in_second)[0, 1]) < 0.1
