"""Prefill and decode apart: two pools and a link with a fixed delay, with public parts alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from blis_py.cluster.simulation import ClusterSimulation
from blis_py.cluster.topology import Cluster, Ingress, InstanceSpec, Pool
from blis_py.core.config import SchedulerConfig
from blis_py.core.kv_source import Supply
from blis_py.core.request import Request
from blis_py.errors import InputError
from blis_py.latency.linear import Linear, LinearCoefficients, LinearCosts
from blis_py.metrics.invariants import check
from blis_py.metrics.record import Outcome, RunRecord
from blis_py.metrics.visits import Onward, Role
from blis_py.requests.table import RequestTable

US = 1000


class HandOver:
    """After its first token a request goes on at a decode instance, where its KV is after a fixed delay."""

    def __init__(self, simulation: ClusterSimulation, delay_ns: int) -> None:
        self._simulation, self._delay_ns = simulation, delay_ns
        self._limits: dict[int, tuple[int | None, int]] = {}

    def enters(self, request: Request) -> None:
        self._limits[request.row] = request.output_tokens, request.max_tokens
        request.max_tokens = 1

    def way_on(self, request: Request) -> Onward | None:
        output_tokens, max_tokens = self._limits[request.row]
        return None if 1 in (output_tokens, max_tokens) else Onward.HANDED_OVER

    def take(self, requests: Sequence[Request], end_ns: int) -> None:
        for request in requests:
            further = request.next_visit(*self._limits[request.row])
            self._simulation.send_on(further, "decode", end_ns + self._delay_ns)


class FromPrefill:
    """The KV of a request that was handed over is there when it comes."""

    def offer(self, request: Request, computed_tokens: int, now_ns: int) -> Supply | None:
        return Supply(request.num_tokens - 1 - computed_tokens, now_ns) if request.carried else None

    def load(self, request: Request, computed_tokens: int, supply: Supply, now_ns: int) -> None: ...

    def arrived(self, request: Request, now_ns: int) -> int:
        raise NotImplementedError  # nothing is on its way

    def cancel(self, request: Request) -> None: ...


def spec(**settings: int | bool) -> InstanceSpec:
    """Steps take 10 us and 1 us for each prefill token."""
    scheduler = SchedulerConfig(**{"num_kv_blocks": 60, "max_model_len": 400, "block_size": 4, **settings})  # type: ignore[arg-type]
    latency = Linear(LinearCoefficients(gpu=LinearCosts(step=10 * US, prefill_tokens=US)))
    return InstanceSpec(scheduler=scheduler, latency=latency)


def apart(
    table: RequestTable, delay_us: int = 7, policy: str = "round-robin", **run: bool | int
) -> RunRecord:
    settings = {name: run.pop(name) for name in ("async_scheduling", "num_kv_blocks") if name in run}
    prefill = Pool(name="prefill", role="prefill", count=2, spec=spec(**settings))
    decode = Pool(name="decode", role="decode", spec=replace(spec(**settings), kv_source=FromPrefill()))
    ingress = Ingress(routing_policy=policy, snapshot_refresh_ns=0)
    simulation = ClusterSimulation(table, Cluster(pools=(prefill, decode), ingress=ingress), **run)  # type: ignore[arg-type]
    simulation.connect("prefill", HandOver(simulation, delay_us * US))
    return simulation.run()


def table(arrivals_us: list[int], prompts: list[int], outputs: list[int]) -> RequestTable:
    columns = (np.array(column, np.int64) for column in (arrivals_us, prompts, outputs))
    arrival_us, prompt, output = columns
    return RequestTable.build(arrival_us * US, prompt, output)


def test_times_of_a_hand_over_are_those_worked_out_by_hand() -> None:
    record = apart(table([0, 0, 3], [20, 30, 5], [4, 1, 3]))
    check(record)
    # Prefills of 10 + 20 and 10 + 30 us; the third joins the first instance at 30: 10 + 5 us.
    assert (record.first_token_ns // US).tolist() == [30, 40, 45]
    # Requests 0 and 2 reach the decode instance at 37 and 52. Each of its steps is 10 us: 37-47-57-67-77,
    # with request 2 from 57 on.
    assert (record.finish_ns // US).tolist() == [67, 40, 77]
    visits = record.visits
    assert visits.request.tolist() == [0, 1, 2, 0, 2]
    assert visits.instance.tolist() == [0, 1, 0, 2, 2]
    assert visits.role.tolist() == [Role.PREFILL] * 3 + [Role.DECODE] * 2
    assert visits.outcome.tolist() == [
        Onward.HANDED_OVER, Outcome.COMPLETED, Onward.HANDED_OVER, Outcome.COMPLETED, Outcome.COMPLETED,
    ]  # fmt: skip
    assert visits.emitted_tokens.tolist() == [1, 1, 1, 3, 2]
    decode = record.instances[2]
    assert (decode.prefill_tokens, decode.decode_tokens) == (0, 3 + 2), (
        "the KV of the prompts was handed over"
    )


@pytest.mark.slow
@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("policy", ["round-robin", "least-loaded"])
@pytest.mark.parametrize("num_kv_blocks", [60, 1000])
def test_requests_and_tokens_are_conserved_and_a_jump_is_its_steps(
    async_scheduling: bool, policy: str, num_kv_blocks: int
) -> None:
    rng = Random(f"{async_scheduling} {policy} {num_kv_blocks}")
    for _ in range(10):
        count = 40
        arrivals = sorted(rng.randint(0, 900) for _ in range(count))
        prompts = [rng.randint(1, 60) for _ in range(count)]
        outputs = [rng.choice([1, 2, 9, 50]) for _ in range(count)]
        options = {"policy": policy, "async_scheduling": async_scheduling, "num_kv_blocks": num_kv_blocks}
        jump, single = (
            apart(table(arrivals, prompts, outputs), single_step=single, **options)  # type: ignore[arg-type]
            for single in (False, True)
        )
        check(jump)
        assert jump.outcome.tolist() == [Outcome.COMPLETED] * count
        assert jump.emitted_tokens.tolist() == outputs
        assert jump.visits.emitted_tokens.sum() == sum(outputs)
        for column in ("first_token_ns", "finish_ns", "instance", "preemptions"):
            assert getattr(jump, column).tolist() == getattr(single, column).tolist()
        assert [one.kv_block_steps for one in jump.instances] == [
            one.kv_block_steps for one in single.instances
        ]


def test_a_prefill_pool_without_a_way_on_is_refused() -> None:
    cluster = Cluster(pools=(Pool(name="prefill", role="prefill", spec=spec()),))
    with pytest.raises(InputError, match=r"pools.prefill.role: not supported yet"):
        ClusterSimulation(table([0], [4], [2]), cluster).run()
