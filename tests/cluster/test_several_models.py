"""A fleet that serves several models: who serves the model of a request, then the policy."""

from __future__ import annotations

from dataclasses import replace
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


def test_decisions_of_several_models_are_recorded_in_order_with_the_instances_of_each() -> None:
    record = ClusterSimulation(table(), fleet("least-loaded"), record_decisions=0).run()
    made = record.decisions
    assert made is not None
    served = [row for row, name in enumerate(MODELS) if name != "c"]
    assert made.row.tolist() == served
    assert made.instance.tolist() == record.instance[served].tolist()
    choices = {"a": {0, 1, 3}, "b": {2}, "": {0, 1, 2, 3}}
    for row, candidates in zip(made.row.tolist(), made.candidates.tolist(), strict=True):
        assert {index for index in candidates if index >= 0} == choices[MODELS[row]]
    assert ClusterSimulation(table(), fleet("random")).run().decisions is None


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


@pytest.mark.parametrize("handoff", ["vllm", "trtllm", "sglang"])
@pytest.mark.parametrize("policy", ["round-robin", "least-loaded"])
@pytest.mark.parametrize("order", ["decode-first", "prefill-first"])
def test_both_instances_of_a_pair_serve_the_model_of_the_request(
    handoff: str, policy: str, order: str
) -> None:
    """Two models have prefill and decode apart, a third one has instances that do both."""
    if handoff == "sglang" and order == "prefill-first":
        return  # refused by the configuration
    fleet = apart_by_model(handoff, policy, order)
    record, single = (ClusterSimulation(table(), fleet, single_step=one).run() for one in (False, True))
    check(record)
    assert record.finish_ns.tolist() == single.finish_ns.tolist()
    assert record.visits.instance.tolist() == single.visits.instance.tolist()
    by_model: dict[str, set[int]] = {name: set() for name in ("a", "b", "c", "")}
    for row, instance in zip(record.visits.request.tolist(), record.visits.instance.tolist(), strict=True):
        by_model[MODELS[row]].add(instance)
    assert by_model["a"] == {0, 1, 2}
    assert by_model["b"] == {3, 4}
    assert by_model["c"] == {5}
    assert record.handovers is not None
    ends = set(zip(record.handovers.prefill.tolist(), record.handovers.decode.tolist(), strict=True))
    assert ends <= {(0, 2), (1, 2), (3, 4)}, "also of requests that name no model"


def apart_by_model(handoff: str, policy: str, order: str) -> Cluster:
    base = cluster(handoff, policy=policy, pair_order=order)
    spec = base.pools[0].spec
    pools = tuple(
        Pool(name=f"{model}-{role}", role=role, count=count, spec=replace(spec, model=model), models=names)
        for model, role, count in (("a", "prefill", 2), ("a", "decode", 1), ("b", "prefill", 1),
                                   ("b", "decode", 1), ("c", "both", 1))
        for names in [frozenset({model})]
    )  # fmt: skip
    links = tuple(
        replace(base.links[0], from_pool=f"{model}-prefill", to_pool=f"{model}-decode") for model in "ab"
    )
    return replace(base, pools=pools, links=links)


def test_two_models_with_prefill_and_decode_apart_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text(
        "arrival_s,input_tokens,output_tokens,model\n"
        + "".join(f"{i / 10},100,10,{('llama-3.1-8b', 'qwen3-14b')[i % 3 > 0]}\n" for i in range(30))
    )
    large = "model: qwen3-14b"
    (tmp_path / "fleet.yaml").write_text(
        "gpu: h100\nmodel: llama-3.1-8b\nworkload: {trace: trace.csv}\npools:\n"
        "- {name: p, role: prefill}\n- {name: d, role: decode}\n"
        f"- {{name: p14, role: prefill, {large}}}\n- {{name: d14, role: decode, {large}}}\n"
    )
    run = blis.run(str(tmp_path / "fleet.yaml"))
    visits = {name: pool["visits"] for name, pool in run.summary["pools"].items()}
    assert visits == {"p": 10, "d": 10, "p14": 20, "d14": 20}


def test_a_model_with_one_role_only_is_refused(tmp_path: Path) -> None:
    pools = "[{name: p, role: prefill}, {name: d, role: decode, model: qwen3-14b}]"
    (tmp_path / "fleet.yaml").write_text(f"gpu: h100\nmodel: llama-3.1-8b\npools: {pools}\n")
    with pytest.raises(InputError, match=r"no instance of llama-3\.1-8b serves decode"):
        blis.build(str(tmp_path / "fleet.yaml"), workload="chat", rate=1, num_requests=3)


def test_models_whose_prefill_and_decode_may_be_apart_have_a_pool_for_one_of_them() -> None:
    """Or are the only one: its pools may be given the roles during a run."""
    spec = cluster("vllm").pools[0].spec

    def pool(name: str, model: str, role: str = "both") -> Pool:
        return Pool(name=name, role=role, count=1, spec=replace(spec, model=model), models=frozenset({model}))

    def apart(*pools: Pool) -> list[list[str]]:
        return [[each.name for each in group] for group in Cluster(pools=pools).pairs]

    assert apart(pool("one", "a")) == [["one"]]
    assert apart(pool("one", "a"), pool("two", "b")) == []
    pair = pool("p", "b", "prefill"), pool("d", "b", "decode")
    assert apart(pool("one", "a"), *pair) == [["p", "d"]]
    assert apart(*pair) == [["p", "d"]]
