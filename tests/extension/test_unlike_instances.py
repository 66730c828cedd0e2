"""Clusters of unlike instances, and instances that come and go during a run, with public parts alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from blis_py.cluster.instances.fleet import MemberState
from blis_py.cluster.routing.policies import ROUTING_POLICIES
from blis_py.cluster.routing.router import RouterSetup
from blis_py.cluster.routing.scorers import SCORERS
from blis_py.cluster.simulation import ClusterSimulation, simulate
from blis_py.cluster.topology import Cluster, Ingress, InstanceSpec, Link, Pool
from blis_py.core.config import SchedulerConfig
from blis_py.core.request import Request
from blis_py.errors import InputError
from blis_py.latency.linear import Linear, LinearCoefficients, LinearCosts
from blis_py.metrics import summarise
from blis_py.metrics.invariants import check
from blis_py.metrics.record import NO_INSTANCE, Outcome, RunRecord
from blis_py.requests.table import RequestTable

US = 1000


def spec(step_us: int, slots: int = 4, **settings: Any) -> InstanceSpec:
    """Instances whose every step takes as long."""
    scheduler = SchedulerConfig(num_kv_blocks=100, max_model_len=1000, max_num_seqs=slots)
    latency = Linear(LinearCoefficients(gpu=LinearCosts(step=step_us * US)))
    return InstanceSpec(scheduler=scheduler, latency=latency, **settings)


def requests(arrivals_us: list[int], tokens: int, prompt: int = 16) -> RequestTable:
    arrival_ns = np.array(arrivals_us, np.int64) * US
    return RequestTable.build(
        arrival_ns, np.full(len(arrival_ns), prompt), np.full(len(arrival_ns), tokens, np.int64)
    )


def of(ingress: Ingress | None = None, **counts: int) -> Cluster:
    """A pool of fast instances and one of slow ones."""
    fast, slow = spec(10, gpus=2, price_per_hour=6.0), spec(30, slots=2, price_per_hour=1.0)
    pools = (
        Pool(name="fast", count=counts.get("fast", 1), spec=fast),
        Pool(name="slow", count=counts.get("slow", 1), spec=slow),
    )
    return Cluster(pools=pools, ingress=ingress or Ingress(snapshot_refresh_ns=0))


# -- two pools of unlike instances -------------------------------------------------------------------


def test_two_pools_of_unlike_instances() -> None:
    record = simulate(requests([0, 0, 0, 5, 5, 5], 3), of(slow=2))
    check(record)
    # In turn: fast, slow, slow, fast, slow, slow. Three steps of 10 or 30 us for one that starts at once; the
    # others come during the first step, and begin with the second.
    assert record.instance.tolist() == [0, 1, 2, 0, 1, 2]
    assert (record.finish_ns // US).tolist() == [30, 90, 90, 40, 120, 120]
    assert [one.decode_tokens + one.prefill_tokens for one in record.instances] == [36, 36, 36]
    assert [(one.pool, one.gpus) for one in record.instances] == [("fast", 2), ("slow", 1), ("slow", 1)]


def test_figures_are_by_pool_per_gpu_and_in_money() -> None:
    summary = summarise(simulate(requests([0, 0, 0], 3), of(slow=2)))
    assert [one["pool"] for one in summary["instances"]] == ["fast", "slow", "slow"]
    cluster = summary["cluster"]
    assert cluster["output_tokens_per_s_per_instance"] == pytest.approx(9 / 90e-6 / 3)
    assert cluster["output_tokens_per_s_per_gpu"] == pytest.approx(9 / 90e-6 / 4)
    assert cluster["busy_pct"] == pytest.approx(100 * (30 + 90 + 90) / (3 * 90))
    assert cluster["cost"] == pytest.approx((6 + 1 + 1) * 90e-6 / 3600)


def test_a_summary_of_one_pool_does_not_mention_it() -> None:
    summary = summarise(simulate(requests([0], 3), Cluster(pools=(Pool(spec=spec(10)),))))
    assert not {"pool", "cost"} & (set(summary["instances"][0]) | set(summary["cluster"]))


def test_slots_are_those_of_each_pool() -> None:
    assert ClusterSimulation(requests([0], 1), of(fast=2, slow=3)).fleet.slots == 2 * 4 + 3 * 2


def test_what_does_not_exist_yet_is_refused() -> None:
    def run(**changes: Any) -> RunRecord:
        return simulate(requests([0], 1), replace(of(), **changes))

    prefill = Pool(name="prefill", role="prefill", spec=spec(10))
    with pytest.raises(InputError, match=r"pools.prefill.role: not supported yet"):
        run(pools=(prefill, Pool(name="decode", role="decode", spec=spec(10))))
    with pytest.raises(InputError, match=r"bandwidth_gbps: not supported yet"):
        run(links=(Link(from_pool="fast", to_pool="slow", bandwidth_gbps=50),))
    with pytest.raises(InputError, match=r"links: nothing goes over this link \(found 'fast'\)"):
        run(links=(Link(from_pool="fast", to_pool="slow", latency_ns=7),))
    with pytest.raises(InputError, match=r"no such pool \(found 'cheap'\)"):
        run(links=(Link(from_pool="fast", to_pool="cheap"),))
    with pytest.raises(InputError, match="two pools have this name"):
        run(pools=(prefill, prefill))
    unlike = replace(prefill.spec.scheduler, block_size=32)
    with pytest.raises(InputError, match=r"scheduler.block_size: must be the same in all pools"):
        run(pools=(*of().pools, Pool(name="a", spec=replace(prefill.spec, scheduler=unlike))))


# -- instances come and go ---------------------------------------------------------------------------


def added_and_drained() -> ClusterSimulation:
    """An instance is added and one drained during the run that follows."""
    simulation = ClusterSimulation(requests([0, 5, 20, 40, 60, 80], 5), of())
    simulation.call_at(15 * US, lambda now_ns: simulation.fleet.drain(1))
    simulation.call_at(50 * US, lambda now_ns: simulation.fleet.add("fast", ready_after_ns=20 * US))
    return simulation


def test_an_instance_is_added_and_one_drained_during_a_run() -> None:
    simulation = added_and_drained()
    record = simulation.run()
    check(record)
    # In turn over the ready ones: 0 and 1; 0 alone from 15 us on; from 70 us on 0 and 2.
    assert record.instance.tolist() == [0, 1, 0, 0, 0, 2]
    assert (record.outcome == Outcome.COMPLETED).all()
    assert [member.state for member in simulation.fleet.members] == ["ready", "gone", "ready"]
    # Draining, it ends what it has: five steps of 30 us from 5 us on.
    assert record.finish_ns[1] == 155 * US
    assert [one.added_ns // US for one in record.instances] == [0, 0, 50]
    assert [one.gone_ns for one in record.instances] == [None, 155 * US, None]
    summary = summarise(record)
    assert summary["instances"][1]["busy_pct"] == pytest.approx(100 * 150 / 155)
    assert summary["instances"][2]["busy_pct"] == pytest.approx(100 * 50 / (155 - 50))


def coming_and_going(demand: RequestTable, cluster: Cluster, single_step: bool = False) -> RunRecord:
    """Instances are added, drained while busy and while idle, and drained before they start."""
    simulation = ClusterSimulation(demand, cluster, single_step=single_step, record_decisions=0)
    fleet = simulation.fleet

    def grow(now_ns: int) -> None:
        fleet.add("slow", ready_after_ns=100 * US)
        late = fleet.add("fast", ready_after_ns=10_000 * US)
        simulation.call_at(now_ns + 50 * US, lambda now_ns: fleet.drain(late))
        simulation.call_at(now_ns + 400 * US, lambda now_ns: fleet.drain(fleet.ready[0]))

    simulation.call_at(100 * US, grow)
    simulation.call_at(300 * US, lambda now_ns: fleet.drain(1))
    record = simulation.run()
    check(record)
    return record


@pytest.mark.slow
@pytest.mark.parametrize("refresh_us", [0, 200])
@pytest.mark.parametrize("policy", [*ROUTING_POLICIES, *SCORERS])
def test_jumps_are_single_steps_whatever_comes_and_goes(policy: str, refresh_us: int) -> None:
    scorers = {policy: 1.0} if policy in SCORERS else None
    ingress = Ingress(
        routing_policy="weighted" if scorers else policy,
        routing_scorers=scorers,
        snapshot_refresh_ns=refresh_us * US,
        cache_delay_ns=refresh_us * US,
    )
    rng = np.random.default_rng(7)
    demand = requests(np.sort(rng.integers(0, 900, 60)).tolist(), 12, prompt=40)
    demand = replace(demand, content=np.arange(60) % 5, contents=[((f"prompt {i}", 32),) for i in range(5)])
    jumps, steps = (coming_and_going(demand, of(ingress, fast=2, slow=2), single) for single in (False, True))
    for column in ("instance", "scheduled_ns", "first_token_ns", "finish_ns", "cached_tokens"):
        assert getattr(jumps, column).tolist() == getattr(steps, column).tolist(), column
    assert [one.gone_ns for one in jumps.instances] == [one.gone_ns for one in steps.instances]
    assert (jumps.outcome == Outcome.COMPLETED).all()
    late = jumps.enqueue_ns > 300 * US
    assert (jumps.instance[late] != 1).all()
    assert (jumps.instance != 5).all()  # it was drained before it was ready
    assert (jumps.instance[jumps.enqueue_ns < 200 * US] != 4).all()
    assert jumps.instances[1].gone_ns is not None
    assert jumps.instances[1].gone_ns >= 300 * US


def test_a_session_whose_instance_is_gone_goes_on_elsewhere_and_stays_there() -> None:
    demand = requests([0, 100, 200, 300, 400], 2)
    demand = replace(demand, session=np.zeros(5, np.int64))
    simulation = ClusterSimulation(demand, of(Ingress(routing_policy="session-affinity"), fast=2, slow=2))
    simulation.call_at(150 * US, lambda now_ns: simulation.fleet.drain(int(simulation.recorder.instance[0])))
    at = simulation.run().instance.tolist()
    assert at[0] == at[1] != at[2] == at[3] == at[4]


def test_without_an_instance_to_come_requests_are_rejected_once() -> None:
    simulation = ClusterSimulation(requests([0, 20, 40], 2), of(fast=1, slow=0))
    simulation.call_at(10 * US, lambda now_ns: simulation.fleet.drain(0))
    record = simulation.run()
    check(record)
    assert record.rejection is not None
    assert record.rejection.to_list() == ["", NO_INSTANCE, NO_INSTANCE]
    assert summarise(record)["cluster"]["requests"]["rejected"] == 2


def test_requests_wait_for_an_instance_that_is_to_come() -> None:
    simulation = ClusterSimulation(requests([0, 20, 40], 2), of(fast=1, slow=0))
    simulation.call_at(10 * US, lambda now_ns: simulation.fleet.add("slow", ready_after_ns=50 * US))
    simulation.call_at(10 * US, lambda now_ns: simulation.fleet.drain(0))
    record = simulation.run()
    check(record)
    assert record.instance.tolist() == [0, 1, 1]
    assert (record.enqueue_ns // US).tolist() == [0, 60, 60]
    assert (record.finish_ns // US).tolist() == [20, 120, 120]


def test_followers_of_the_fleet_are_notified_of_every_change() -> None:
    simulation, heard = ClusterSimulation(requests([0, 50], 2), of()), []
    simulation.call_at(10 * US, lambda now_ns: simulation.fleet.drain(0))
    simulation.fleet.follow(lambda index, state: heard.append((index, state)))
    simulation.run()
    added, ready, draining, gone = MemberState
    assert heard == [(0, added), (0, ready), (1, added), (1, ready), (0, draining), (0, gone)]


def test_a_change_without_notice_is_refused() -> None:
    """Requests may have been dispatched ahead of their time."""
    simulation = ClusterSimulation(requests([0, 50], 2), of())
    simulation.recorder.notify(lambda request, seen_ns: simulation.fleet.drain(1))
    with pytest.raises(InputError, match=r"Fleet.drain: the run looks ahead"):
        simulation.run()


@pytest.mark.parametrize("index", [-1, 2, 1])
def test_only_a_living_instance_is_drained(index: int) -> None:
    simulation = ClusterSimulation(requests([0, 50], 2), of())
    simulation.call_at(10 * US, lambda now_ns: simulation.fleet.drain(1))
    simulation.call_at(20 * US, lambda now_ns: simulation.fleet.drain(index))
    with pytest.raises(InputError, match=r"no such instance|the instance is gone already"):
        simulation.run()


class InTurn:
    """A routing policy that counts instances once, at the beginning."""

    looks_at_load = False

    def __init__(self, setup: RouterSetup) -> None:
        self._count, self._turn = setup.signals.count, -1

    def __call__(self, request: Request, now_ns: int) -> int:
        self._turn += 1
        return self._turn % self._count


def test_a_policy_that_chooses_an_instance_which_is_gone_gets_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(ROUTING_POLICIES, "in-turn", InTurn)
    cluster = of(Ingress(routing_policy="in-turn"))
    assert simulate(requests([0, 5, 10], 2), cluster).instance.tolist() == [0, 1, 0]
    simulation = ClusterSimulation(requests([0, 5, 10], 2), cluster)
    simulation.call_at(1 * US, lambda now_ns: simulation.fleet.drain(1))
    with pytest.raises(InputError, match=r"routing_policy: chose an instance that is not ready \(found 1\)"):
        simulation.run()
