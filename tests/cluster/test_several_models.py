"""A fleet that serves several models: who serves the model of a request, then the policy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from apart import US, cluster

import blis_py as blis
from blis_py.cluster.simulation import ClusterSimulation
from blis_py.cluster.topology import Cluster, Ingress, Pool
from blis_py.errors import InputError
from blis_py.metrics.invariants import check
from blis_py.metrics.record import Outcome
from blis_py.requests.table import Labels, RequestTable

MODELS = ["a", "b", "a", "", "b", "c", "a", "b"] * 6


def table() -> RequestTable:
    count = len(MODELS)
    arrivals = np.arange(count, dtype=np.int64) * 7 * US
    lengths = np.full(count, 20, np.int64)
    return RequestTable.build(arrivals, lengths, np.full(count, 9, np.int64), model=Labels.of(MODELS))


def fleet(policy: str) -> Cluster:
    spec = cluster("vllm").pools[0].spec
    pools = (
        Pool(name="one", count=2, spec=spec, models=frozenset({"a"})),
        Pool(name="two", count=1, spec=spec, models=frozenset({"b"})),
        Pool(name="more", count=1, spec=spec, models=frozenset({"a"})),
    )
    ingress = Ingress(routing_policy=policy, snapshot_refresh_ns=0, served_models=frozenset({"a", "b"}))
    return Cluster(pools=pools, ingress=ingress)


@pytest.mark.parametrize("policy", ["round-robin", "least-loaded", "weighted", "session-affinity", "random"])
def test_a_request_goes_to_an_instance_of_its_model_and_without_one_anywhere(policy: str) -> None:
    record = ClusterSimulation(table(), fleet(policy)).run()
    check(record)
    where = {name: set() for name in "abc"} | {"": set()}
    for name, instance in zip(MODELS, record.instance.tolist(), strict=True):
        where[name].add(instance)
    assert where["a"] == {0, 1, 3}
    assert where["b"] == {2}
    assert where["c"] == {-1}
    assert where[""] <= {0, 1, 2, 3}
    rejected = record.outcome == Outcome.REJECTED
    assert rejected.tolist() == [name == "c" for name in MODELS]
    single = ClusterSimulation(table(), fleet(policy), single_step=True).run()
    assert record.finish_ns.tolist() == single.finish_ns.tolist()


def test_pools_of_several_models_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text(
        "arrival_s,input_tokens,output_tokens,model\n"
        + "".join(f"{i / 10},100,10,{('llama-3.1-8b', 'qwen3-14b')[i % 3 > 0]}\n" for i in range(30))
    )
    (tmp_path / "fleet.yaml").write_text(
        "gpu: h100\nmodel: llama-3.1-8b\nworkload: {trace: trace.csv}\n"
        "pools: [{name: small, count: 1}, {name: large, count: 2, model: qwen3-14b}]\n"
    )
    run = blis.run(str(tmp_path / "fleet.yaml"))
    pools = run.summary["pools"]
    assert {name: pool["visits"] for name, pool in pools.items()} == {"small": 10, "large": 20}
    assert pools["small"]["kv_blocks"] != pools["large"]["kv_blocks"] / 2, "each has its own capacity"


def test_several_models_with_prefill_and_decode_apart_are_refused(tmp_path: Path) -> None:
    pools = "[{name: p, role: prefill}, {name: d, role: decode, model: qwen3-14b}]"
    (tmp_path / "fleet.yaml").write_text(f"gpu: h100\nmodel: llama-3.1-8b\npools: {pools}\n")
    with pytest.raises(InputError, match="not supported yet with prefill and decode apart"):
        blis.build(str(tmp_path / "fleet.yaml"), workload="chat", rate=1, num_requests=3)
