"""The router beside recorded runs of the peer: every decision, and every request where its target is given.

Its scores follow from the view it recorded, whatever that view came from. Free runs differ where load
decides: it applies the effects of a step when the step starts, and draws its ties from another stream.
"""

from __future__ import annotations

import gzip
import json
import shlex
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shown_signals import ShownSignals

from blis_py.api import Simulation, build
from blis_py.cluster.ingress.source import RequestFactory
from blis_py.cluster.routing.least_load import LeastLoad
from blis_py.cluster.routing.policies import ROUTING_POLICIES, weighted
from blis_py.cluster.routing.rng import Rng
from blis_py.cluster.routing.router import AlwaysBusiest, RouterSetup
from blis_py.cluster.routing.scorers import DEFAULT_PROFILE
from blis_py.core.request import Request
from blis_py.metrics.record import RunRecord
from blis_py.requests.table import RequestTable

NAMES = {"hardware": "gpu", "total_kv_blocks": "num_kv_blocks"}
ELSEWHERE = {
    "log",
    "metrics_path",
    "trace_output",
    "horizon",
    "max_model_len",
    "session_mode",
    "think_time_dist",
}
"""Flags that do not matter here."""
ADMISSION = {"admission_policy", "token_bucket_capacity", "token_bucket_refill_rate", "policy_config"}
DETECTORS = {"detectors", "saturation_config", "saturation_report"}
NUMBERS = {
    "num_kv_blocks",
    "num_instances",
    "max_num_seqs",
    "seed",
    "tp",
    "num_requests",
    "admission_latency",
}
NUMBERS |= {"routing_latency", "snapshot_refresh_interval", "cache_signal_delay"}

SCORED = (
    "01_weighted_default_prefix/csd50",
    "01_weighted_default_prefix/csd0",
    "02_scorers_prefix_affinity_mix/",
)
SCORED += ("03_scorers_lru_vllmdp_running_mix/", "04_scorers_load_kv_timeouts/")
FORCED = (*SCORED, "05_least_loaded_busiest/ll", "05_least_loaded_busiest/busiest", "06_token_bucket/")
FORCED += ("07_tier_shed/", "07_tier_shed/flag", "08_gaie_legacy/", "09_tenant_budgets/")
FREE = ("20_lifecycle_windows/", "21_cohorts/")


class Recorded:
    """One recorded run: `folder/variant`."""

    def __init__(self, shared_data: Path, name: str) -> None:
        case, _, variant = name.partition("/")
        self.folder, self.variant = shared_data / "peer_runs" / case, variant
        self._end = f"_{variant}" if variant else ""

    def _read(self, name: str) -> str:
        return gzip.decompress((self.folder / f"{name}.gz").read_bytes()).decode()

    @property
    def decisions(self) -> list[dict[str, Any]]:
        """Those of the router, in order."""
        lines = self._read(f"decisions{self._end}.jsonl").splitlines()
        return [entry for entry in map(json.loads, lines) if entry["kind"] == "route"]

    @property
    def requests(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self._read(f"metrics{self._end}.json"))["requests"]
        return found

    @property
    def settings(self) -> dict[str, Any]:
        lines = (self.folder / "cmd.txt").read_text().splitlines()
        ends = f"metrics{self._end}.json"
        (command,) = [line for line in lines if line.startswith("blis ") and ends in shlex.split(line)]
        words = shlex.split(command)[2:]
        given: dict[str, Any] = {"engine": "blis"}
        for flag, value in pairwise(words):
            key = flag.removeprefix("--").replace("-", "_")
            key = NAMES.get(key, key)
            if not flag.startswith("--") or key in ELSEWHERE | ADMISSION | DETECTORS or "trace" in key:
                continue
            if key == "routing_scorers":
                given[key] = {name: float(w) for name, w in (part.split(":") for part in value.split(","))}
            elif key in ("alpha_coeffs", "beta_coeffs"):
                given[key] = [float(part) for part in value.split(",")]
            elif key not in ("workload_spec", "num_requests"):
                given[key] = int(value) if key in NUMBERS else value
        return given

    def simulation(self, **changes: Any) -> Simulation:
        trace = self.folder / "trace.csv.gz"
        if not trace.exists():
            trace = self.folder / "generated_trace.csv.gz"
        return build(trace=str(trace), **self.settings | changes)

    def as_it_stands(self, folder: Path) -> Simulation:
        """Each row by itself, whatever the header says of sessions."""
        header = (self.folder / "trace.yaml").read_text()
        kept = [line for line in header.splitlines() if not line.startswith("session_context_growth")]
        (folder / "trace.yaml").write_text("\n".join(kept))
        return self.simulation(trace_header=str(folder / "trace.yaml"))


@pytest.fixture
def recorded(shared_data: Path, request: pytest.FixtureRequest) -> Recorded:
    return Recorded(shared_data, request.param)


def of_cases(names: Sequence[str]) -> Any:
    return pytest.mark.parametrize("recorded", names, indirect=True, ids=lambda name: name.strip("/"))


# -- the router by itself, on the view that was recorded ---------------------------------------------


class View(ShownSignals):
    """What the peer's router saw."""

    def show(self, candidates: list[dict[str, Any]]) -> None:
        """Report a recorded decision's candidates."""
        self.report(*([one.get(key, 0) for one in candidates] for key in ("q", "b", "kv", "inf", "cached")))


def router_setup(view: Any, profile: dict[str, float] | None = None) -> RouterSetup:
    scorers = tuple((profile or dict(DEFAULT_PROFILE)).items())
    return RouterSetup(view, Rng(np.random.default_rng(0)), scorers)


def shown(recorded: Recorded, view: View) -> Iterator[tuple[dict[str, Any], int]]:
    """Each decision, once the view shows it, and its target."""
    for decision in recorded.decisions:
        view.show(decision["cand"])
        yield decision, index_of(decision["target"])


def index_of(instance: str) -> int:
    return int(instance.removeprefix("instance_"))


@of_cases(SCORED)
def test_scores_are_the_peers_and_its_targets_are_among_our_best(recorded: Recorded) -> None:
    simulation = recorded.simulation()
    requests = {request.id: request for request in made(simulation.table)}
    view = View(simulation.config.num_instances)
    router: Any = weighted(router_setup(view, simulation.config.routing.scorers))
    ties = 0
    for decision, target in shown(recorded, view):
        request = requests[decision["req"]]
        scores = router.score(request)
        assert scores == pytest.approx([one["score"] for one in decision["cand"]], rel=0, abs=1e-12)
        assert scores[target] == scores.max()
        ties += (scores == scores.max()).sum() > 1
        for part in router._parts:
            part.scorer.sent(request, target)
    assert len(recorded.decisions) >= 200
    assert ties > 0


def made(table: RequestTable) -> list[Request]:
    return RequestFactory(table, View.block_size)(slice(0, len(table)))


@of_cases(["05_least_loaded_busiest/ll"])
def test_the_least_loaded_are_the_peers(recorded: Recorded) -> None:
    view = View(5)
    least = LeastLoad(view)  # type: ignore[arg-type]
    for _, target in shown(recorded, view):
        assert target in [least.tied(number) for number in range(least.ties())]


@of_cases(["05_least_loaded_busiest/busiest"])
def test_the_busiest_is_the_peers(recorded: Recorded) -> None:
    view = View(5)
    router, request = AlwaysBusiest(router_setup(view)), Request("r", 0, 1)
    assert all(router(request, 0) == target for _, target in shown(recorded, view))


# -- whole runs --------------------------------------------------------------------------------------


def forced(targets: dict[str, int]) -> Any:
    """A routing policy that sends where the peer did."""

    class Forced:
        looks_at_load = False

        def __init__(self, setup: RouterSetup) -> None: ...

        def __call__(self, request: Request, now_ns: int) -> int:
            return targets[request.id]

    return Forced


def off_by_more_than_1_us(record: RunRecord, requests: list[dict[str, Any]]) -> list[str]:
    table = record.table
    ours = {table.id_of(row): row for row in range(len(table))}
    wrong = []
    for theirs in requests:
        row = ours[theirs["requestID"]]
        for name, ns in (("ttft_ms", record.first_token_ns), ("e2e_ms", record.finish_ns)):
            if theirs[name] and abs(int(ns[row] - table.arrival_ns[row]) / 1e3 - theirs[name] * 1e3) > 1.001:
                wrong.append(f"{theirs['requestID']} {name}")
    return wrong


@of_cases(FORCED)
def test_sent_where_the_peer_sent_it_every_request_takes_as_long(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = {r["requestID"]: index_of(r["handled_by"]) for r in recorded.requests}
    monkeypatch.setitem(ROUTING_POLICIES, "forced", forced(targets))
    simulation = recorded.simulation(routing_policy="forced", routing_scorers={})
    admitted = [row for row in range(len(simulation.table)) if simulation.table.id_of(row) in targets]
    object.__setattr__(simulation, "table", simulation.table.take(np.array(admitted)))
    record, _ = simulation.simulate(record_steps=False, progress=None)
    assert off_by_more_than_1_us(record, recorded.requests) == []
    assert len(admitted) > 100


@of_cases(FREE)
def test_where_no_load_decides_every_request_goes_where_it_went_and_takes_as_long(recorded: Recorded) -> None:
    check_all(recorded, recorded.simulation())


@of_cases(["18_session_mode_closed_loop/fixed"])
def test_rows_of_sessions_replayed_as_they_stand_take_as_long(recorded: Recorded, tmp_path: Path) -> None:
    check_all(recorded, recorded.as_it_stands(tmp_path))


def check_all(recorded: Recorded, simulation: Simulation) -> None:
    record, _ = simulation.simulate(record_steps=False, progress=None)
    targets = {r["requestID"]: index_of(r["handled_by"]) for r in recorded.requests}
    assert {record.table.id_of(row): int(i) for row, i in enumerate(record.instance)} == targets
    assert off_by_more_than_1_us(record, recorded.requests) == []


@pytest.mark.slow
@of_cases([*SCORED, "05_least_loaded_busiest/ll"])
def test_free_runs_are_the_peers_in_distribution(recorded: Recorded) -> None:
    """The mean over seeds, and the shares of the instances under the seed whose ties fell most alike."""
    theirs = recorded.requests
    done = [r for r in theirs if r["e2e_ms"]]
    counts = np.sort(np.bincount([index_of(r["handled_by"]) for r in theirs]))
    ttft_ms, e2e_ms, misplaced = [], [], []
    for seed in range(6):
        record, _ = recorded.simulation(seed=seed).simulate(record_steps=False, progress=None)
        answered = record.outcome == 0
        ttft_ms.append((record.first_token_ns - record.table.arrival_ns)[answered].mean() / 1e6)
        e2e_ms.append((record.finish_ns - record.table.arrival_ns)[answered].mean() / 1e6)
        misplaced.append(np.abs(np.sort(np.bincount(record.instance)) - counts).sum() / 2)
    assert np.mean(e2e_ms) == pytest.approx(np.mean([r["e2e_ms"] for r in done]), rel=0.03)
    assert np.mean(ttft_ms) == pytest.approx(np.mean([r["ttft_ms"] for r in done]), rel=0.06)
    assert min(misplaced) <= 0.03 * len(theirs)
