"""Admission beside recorded runs of the peer: every decision on what it knew, and whole runs.

Runs where load decides may differ by a few requests: the peer applies the effects of a step when the step
starts, so its policies see them a step early.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_peer_routing import Recorded, View, forced, index_of, made, off_by_more_than_1_us

from blis_py.api import Simulation
from blis_py.cluster.ingress.admission import (
    ADMISSION_POLICIES,
    OVER_BUDGET,
    AdmissionSetup,
    AlwaysAdmit,
    TenantBudgets,
)
from blis_py.cluster.routing.policies import ROUTING_POLICIES
from blis_py.config.loader import load_config
from blis_py.config.models import NAMES
from blis_py.metrics.record import Outcome, RunRecord

FLAGS = {"admission_policy": str, "token_bucket_capacity": float, "token_bucket_refill_rate": float}


class Case(Recorded):
    """A recorded run with its admission."""

    def simulation(self, **changes: Any) -> Simulation:
        bundle = self.folder / "bundle.yaml"
        given = {"trace": str(self.folder / "trace.csv.gz"), **self.settings, **self._flags(), **changes}
        by_bundle = None if self.variant or not bundle.exists() else bundle
        overrides = [(name, NAMES[name], value) for name, value in given.items()]
        return Simulation.of(load_config(overrides=overrides, policy_config=by_bundle))

    def _flags(self) -> dict[str, Any]:
        lines = (self.folder / "cmd.txt").read_text().splitlines()
        (line,) = [one for one in lines if one.startswith("blis ") and f"metrics{self._end}.json" in one]
        pairs = (
            (flag.removeprefix("--").replace("-", "_"), value) for flag, value in pairwise(shlex.split(line))
        )
        return {name: FLAGS[name](value) for name, value in pairs if name in FLAGS}

    @property
    def log(self) -> list[dict[str, Any]]:
        """Decisions about admission, of whom was admitted those of the router, in order."""
        entries = map(json.loads, self._read(f"decisions{self._end}.jsonl").splitlines())
        return [entry for entry in entries if entry["kind"] in ("route", "admission")]

    @property
    def requests(self) -> list[dict[str, Any]]:
        """Those that were admitted."""
        found: list[dict[str, Any]] = json.loads(self._read(f"metrics{self._end}.json")).get("requests", [])
        return found

    @property
    def rejected(self) -> set[str]:
        return {entry["req"] for entry in self.log if entry["kind"] == "admission"}

    def setup(self, simulation: Simulation, view: View) -> AdmissionSetup:
        config = simulation.config
        slots = config.num_instances * simulation.scheduler.max_num_seqs
        priorities = config.admission.slo_priorities
        return AdmissionSetup(
            config.admission,
            view,  # type: ignore[arg-type]
            SimpleNamespace(slots=slots),  # type: ignore[arg-type]
            simulation.table,
            priorities,
        )


@pytest.fixture
def case(shared_data: Path, request: pytest.FixtureRequest) -> Case:
    return Case(shared_data, request.param)


def of(*names: str) -> Any:
    return pytest.mark.parametrize("case", names, indirect=True, ids=lambda name: name.strip("/"))


def rejected_of(record: RunRecord) -> set[str]:
    return {record.table.id_of(row) for row in np.flatnonzero(record.outcome == Outcome.REJECTED)}


@of("06_token_bucket/", "06_token_bucket/reject", "07_tier_shed/", "07_tier_shed/flag", "08_gaie_legacy/")
def test_free_runs_reject_the_same_requests_and_every_other_takes_as_long(case: Case) -> None:
    """Where load decides too: no step ends so close to an arrival that seeing it early would matter."""
    record, _ = case.simulation().simulate(record_steps=False, progress=None)
    assert rejected_of(record) == case.rejected
    assert len(case.rejected) >= 5
    admitted = {record.table.id_of(row): int(i) for row, i in enumerate(record.instance) if i >= 0}
    assert admitted == {r["requestID"]: index_of(r["handled_by"]) for r in case.requests}
    assert off_by_more_than_1_us(record, case.requests) == []


@of("07_tier_shed/", "07_tier_shed/flag", "08_gaie_legacy/")
def test_on_the_view_of_the_peer_every_decision_is_the_peers(case: Case) -> None:
    """Of a rejection it recorded the load, or the saturation, and not the whole view."""
    simulation = case.simulation()
    view, config = View(simulation.config.num_instances), simulation.config.admission
    requests = {request.id: request for request in made(simulation.table)}
    admit = ADMISSION_POLICIES[config.policy](case.setup(simulation, view))
    for entry in case.log:
        if entry["kind"] == "route":
            view.show(entry["cand"])
        else:
            measured = float(re.search(r"(?:load|saturation)=([0-9.]+)$", entry["reason"])[1])  # type: ignore[index]
            view.load = [0, int(measured)]
            view.queue_depth = [measured * config.gaie_qd_threshold] * view.count
        assert bool(admit(requests[entry["req"]], 0)) == (entry["kind"] == "admission"), entry
    assert len(case.rejected) >= 40


@of("09_tenant_budgets/")
def test_with_as_many_under_way_as_at_the_peer_every_budget_holds_as_there(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whom it admitted takes as long here; to it, a request ends when its last step begins."""
    targets = {r["requestID"]: index_of(r["handled_by"]) for r in case.requests}
    monkeypatch.setitem(ROUTING_POLICIES, "forced", forced(targets))
    simulation = case.simulation()
    played = case.simulation(routing_policy="forced", tenant_budgets={})
    table = played.table
    admitted = np.array([row for row in range(len(table)) if table.id_of(row) in targets])
    object.__setattr__(played, "table", table.take(admitted))
    record, _ = played.simulate(record_steps=True, progress=None)
    ends = sorted((last_step_ns(record, row), record.table.id_of(row)) for row in range(len(record.table)))
    requests = {request.id: request for request in made(simulation.table)}
    setup = case.setup(simulation, View(2))
    budgets = TenantBudgets(setup, AlwaysAdmit(setup))
    for entry in case.log:
        while ends and ends[0][0] <= entry["t_us"] * 1000:
            budgets.ended(requests[ends.pop(0)[1]], 0)
        expected = OVER_BUDGET if entry["kind"] == "admission" else ""
        assert budgets(requests[entry["req"]], 0) == expected, entry
    assert len(case.rejected) == 78


def last_step_ns(record: RunRecord, row: int) -> int:
    """When the step began that ended the request."""
    instance = record.instances[record.instance[row]]
    step = int(record.visits.emission.last_step[row])
    assert instance.runs is not None
    runs = instance.runs
    first = np.concatenate(([0], np.cumsum(runs["steps"])[:-1]))
    began = np.flatnonzero(first == step)
    return int(runs["start_ns"][began[0]] if len(began) else instance.step_end_ns[step - 1])


@of("09_tenant_budgets/")
def test_free_runs_under_budgets_reject_as_many_of_each_class_and_take_as_long(case: Case) -> None:
    record, _ = case.simulation().simulate(record_steps=False, progress=None)
    table = record.table
    theirs = Counter(table.slo_class[row] for row in range(len(table)) if table.id_of(row) in case.rejected)
    ours = Counter(table.slo_class[row] for row in np.flatnonzero(record.outcome == Outcome.REJECTED))
    assert ours.keys() == theirs.keys()
    assert sum(((ours - theirs) + (theirs - ours)).values()) <= 0.03 * sum(theirs.values())
    done = record.outcome == Outcome.COMPLETED
    e2e_ms = (record.finish_ns - table.arrival_ns)[done].mean() / 1e6
    assert e2e_ms == pytest.approx(np.mean([r["e2e_ms"] for r in case.requests]), rel=0.02)
