"""The gateway queue beside recorded runs of the peer: every choice on what waited, and whole runs.

Free runs differ where requests in flight decide: the peer applies the effects of a step when the step
starts, so its gateway sees an end a step early. What its instances report is as old in both.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_peer_routing import NAMES, Recorded, View, forced, index_of, made, off_by_more_than_1_us

from blis_py.api import Simulation, build
from blis_py.cluster.flow_settings import FlowSettings
from blis_py.cluster.ingress.dispatch_order import Waiting
from blis_py.cluster.ingress.flow_control import TTL
from blis_py.cluster.ingress.gateway_queue import BAND_FULL, QUEUE_FULL, GatewayQueue
from blis_py.cluster.ingress.saturation import Concurrency, Utilization
from blis_py.cluster.routing.policies import ROUTING_POLICIES
from blis_py.core.slo import CLUSTER_PRIORITY
from blis_py.metrics.record import Outcome, RunRecord

OURS = {**NAMES, "max_concurrency": "max_concurrency_per_instance"}
SWITCHES = {"--flow-control", "--queue-shedding", "--in-flight-eviction"}
UNIMPORTANT = {"trace_header", "trace_data", "horizon", "log", "max_model_len", "metrics_path"}
FIFO, REJECT, SHED = "10_flow_fifo_ttl/", "11_flow_priority_shed/reject", "11_flow_priority_shed/shed"
DEADLINE, EVICTION = "12_flow_slo_deadline/", "13_flow_eviction/"


class Case(Recorded):
    """A recorded run with flow control. Its `fifo` goes by priority, as `priority` does."""

    @property
    def settings(self) -> dict[str, Any]:
        lines = (self.folder / "cmd.txt").read_text().splitlines()
        (line,) = [one for one in lines if one.startswith("blis ") and f"metrics{self._end}.json" in one]
        given: dict[str, Any] = {"engine": "blis", "dispatch_order": "priority"}
        words = iter(shlex.split(line)[2:])
        for word in words:
            key = word.removeprefix("--").replace("-", "_")
            value = "true" if word in SWITCHES else next(words)
            if key not in UNIMPORTANT:
                given[OURS.get(key, key)] = self._meant(key, value)
        return given

    @staticmethod
    def _meant(key: str, value: str) -> Any:
        if key in ("alpha_coeffs", "beta_coeffs"):
            return [float(part) for part in value.split(",")]
        if key == "slo_targets":
            return {name: int(us) for name, us in (part.split("=") for part in value.split(","))}
        try:
            return json.loads(value)
        except ValueError:
            return value

    @cached_property
    def log(self) -> list[dict[str, Any]]:
        """Everything that was decided, in order."""
        return [json.loads(line) for line in self._read(f"decisions{self._end}.jsonl").splitlines()]

    def of(self, kind: str) -> dict[str, dict[str, Any]]:
        """Entries of a kind, by request."""
        return {entry["req"]: entry for entry in self.log if entry["kind"] == kind}

    def flow(self) -> FlowSettings:
        return self.simulation().config.gateway


@pytest.fixture
def case(shared_data: Path, request: pytest.FixtureRequest) -> Case:
    return Case(shared_data, request.param)


def of(*names: str) -> Any:
    return pytest.mark.parametrize("case", names, indirect=True, ids=lambda name: name.strip("/"))


@of(FIFO, REJECT, SHED, DEADLINE, EVICTION)
def test_with_the_same_requests_waiting_the_same_one_comes_in_goes_or_is_shed(case: Case) -> None:
    """But where the tenant that had the latest turn has none waiting: there the peer begins again with the
    first by name, which favours that one, and here it is the turn of the next."""
    table, queue, flow = case.simulation().table, GatewayQueue(case.flow()), case.flow()
    requests = {request.id: request for request in made(table)}
    shed_for = {entry["for"]: request for request, entry in case.of("gw_shed").items()}
    inside: dict[str, Waiting] = {}
    turns: dict[int, str] = {}
    others = 0
    counts: Counter[str] = Counter()
    for number, entry in enumerate(case.log):
        request, kind = requests[entry["req"]], entry["kind"]
        slo_class = table.slo_class[request.row]
        priority = CLUSTER_PRIORITY[slo_class]
        counts[kind] += 1
        if kind == "admission":
            admitted = entry["reason"] == "flow-control-enqueued"
            assert (queue.refusal(priority) == "") == admitted, entry
            assert queue.is_full >= (request.id in shed_for)
            if request.id in shed_for:
                victim = queue.victim(priority)
                assert victim is not None
                assert victim.request.id == shed_for[request.id], entry
                queue.remove(victim)
            if admitted:
                target_ns = flow.slo_targets_ns.get(slo_class, -1)
                tenant = table.tenant[request.row]
                waiting = Waiting(request, entry["t_us"] * 1000, number, priority, tenant, target_ns)
                queue.add(waiting)
                inside[request.id] = waiting
        elif kind == "gw_dispatch":
            chosen, theirs = queue.next(entry["sat"]), inside[request.id]
            tenants = {one.tenant for one in inside.values() if one.band == priority and not one.gone}
            if flow.fairness_policy == "round-robin" and turns.get(priority) not in tenants:
                others += chosen is not theirs
            else:
                assert chosen is theirs, entry
            assert theirs.band == priority
            queue.remove(theirs, served=True)
            turns[priority] = theirs.tenant
            assert len(queue) == entry["left"]
        elif kind == "gw_expire":
            assert entry["t_us"] * 1000 == inside[request.id].since_ns + flow.request_ttl_ns
            queue.remove(inside[request.id])
    assert counts["gw_dispatch"] >= 130
    assert counts["gw_shed"] == (67 if case.variant == "shed" else 0)
    assert not len(queue)
    assert others == (3 if case.variant == "reject" else 0)


@of(REJECT, SHED, DEADLINE, EVICTION)
def test_the_cluster_is_as_saturated_by_requests_in_flight(case: Case) -> None:
    view = View(2)
    concurrency = Concurrency(case.flow(), view)  # type: ignore[arg-type]
    routed = case.of("route")
    for request, entry in case.of("gw_dispatch").items():
        assert routed[request]["t_us"] == entry["t_us"]
        view.show(routed[request]["cand"])
        assert concurrency(sum(view.in_flight)) == pytest.approx(entry["sat"], rel=0, abs=1e-12)


@of(FIFO)
def test_the_cluster_is_as_saturated_by_what_instances_report(case: Case) -> None:
    """The view was recorded at the routing, for which some had a newer report than the dispatch before."""
    view = View(2)
    utilization = Utilization(case.flow(), view)  # type: ignore[arg-type]
    routed, same = case.of("route"), 0
    for request, entry in case.of("gw_dispatch").items():
        view.show(routed[request]["cand"])
        same += abs(utilization(0) - entry["sat"]) <= 1e-12
    assert same >= 160


@of(FIFO, REJECT, SHED, DEADLINE)
def test_dispatched_when_the_peer_did_every_request_takes_as_long(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = {r["requestID"]: index_of(r["handled_by"]) for r in case.requests}
    monkeypatch.setitem(ROUTING_POLICIES, "forced", forced(targets))
    without = {"flow_control": False, "routing_policy": "forced"}
    own = {name: value for name, value in case.settings.items() if name not in GATEWAY}
    simulation = build(trace=str(case.folder / "trace.csv.gz"), **own | without)
    sent_us = {request: entry["t_us"] for request, entry in case.of("gw_dispatch").items()}
    _send_at(simulation, sent_us)
    record, _ = simulation.simulate(record_steps=False, progress=None)
    later = [
        {name: r[name] - r.get("gateway_queue_delay_ms", 0) for name in ("ttft_ms", "e2e_ms")}
        | {"requestID": r["requestID"]}
        for r in case.requests
    ]
    assert off_by_more_than_1_us(record, later) == []
    assert len(later) >= 130


GATEWAY = {"request_ttl", "dispatch_tick_interval", "slo_targets", *FlowSettings.__dataclass_fields__}


def _send_at(simulation: Simulation, sent_us: dict[str, int]) -> None:
    """Only these requests, each sent when it was dispatched."""
    table = simulation.table
    rows = [row for row in range(len(table)) if table.id_of(row) in sent_us]
    rows.sort(key=lambda row: sent_us[table.id_of(row)])
    taken = table.take(np.array(rows))
    taken.arrival_ns[:] = [sent_us[table.id_of(row)] * 1000 for row in rows]
    object.__setattr__(simulation, "table", taken)


def free(case: Case) -> RunRecord:
    record, _ = case.simulation().simulate(record_steps=False, progress=None)
    return record


def dispatched_us(record: RunRecord) -> dict[str, int]:
    assert record.gateway_ns is not None
    at = (record.table.arrival_ns + record.gateway_ns) // 1000
    return {record.table.id_of(row): int(at[row]) for row in np.flatnonzero(record.instance >= 0)}


@of(FIFO)
def test_where_reports_decide_a_free_run_is_the_peers(case: Case) -> None:
    """Every dispatch and every end of patience in the same microsecond, every request as long."""
    record = free(case)
    assert dispatched_us(record) == {req: entry["t_us"] for req, entry in case.of("gw_dispatch").items()}
    expired = np.flatnonzero(record.outcome == Outcome.REJECTED)
    assert record.rejection is not None
    assert {record.rejection[row] for row in expired} == {TTL}
    ends_us = {record.table.id_of(row): int(record.finish_ns[row]) // 1000 for row in expired}
    assert ends_us == {request: entry["t_us"] for request, entry in case.of("gw_expire").items()}
    assert len(ends_us) == 40
    assert off_by_more_than_1_us(record, case.requests) == []


@of(REJECT, SHED, DEADLINE)
def test_where_requests_in_flight_decide_a_free_run_is_the_peers_in_distribution(case: Case) -> None:
    record = free(case)
    done = record.outcome == Outcome.COMPLETED
    assert record.gateway_ns is not None
    assert done.sum() == pytest.approx(len(case.requests), rel=0.02)
    waits_ms = record.gateway_ns[done].mean() / 1e6
    theirs_ms = np.mean([r.get("gateway_queue_delay_ms", 0) for r in case.requests])
    assert waits_ms == pytest.approx(theirs_ms, rel=0.05)
    e2e_ms = (record.finish_ns - record.table.arrival_ns)[done].mean() / 1e6
    assert e2e_ms == pytest.approx(np.mean([r["e2e_ms"] for r in case.requests]), rel=0.05)
    assert record.rejection is not None
    ours = Counter(record.rejection.to_list())
    refused = sum(
        entry["reason"].startswith("flow-control-queue-rejected") for entry in case.log if "reason" in entry
    )
    assert ours[QUEUE_FULL] + ours[BAND_FULL] == pytest.approx(refused, abs=3)
    shed = sum(count for why, count in ours.items() if why.startswith("shed for"))
    assert shed == pytest.approx(len(case.of("gw_shed")), abs=3)


@of(EVICTION)
def test_the_peers_victims_are_evicted_within_two_steps_of_when_they_were(case: Case) -> None:
    """It sees an end a step early, and so has to evict a little later, or earlier, than it is seen here."""
    record = free(case)
    evicted = np.flatnonzero(record.outcome == Outcome.EVICTED)
    ours_us = {record.table.id_of(row): int(record.finish_ns[row]) // 1000 for row in evicted}
    theirs_us = {request: entry["t_us"] for request, entry in case.of("gw_evict").items()}
    assert ours_us.keys() == theirs_us.keys()
    assert len(ours_us) == 29
    apart_us = sorted(abs(ours_us[request] - theirs_us[request]) for request in ours_us)
    assert apart_us[len(apart_us) // 2] == 0
    assert apart_us[-1] <= 20_000
