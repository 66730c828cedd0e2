"""Prefill and decode apart beside recorded runs of the peer, with its mistakes corrected except for one.

It never delivers the token of the prefill, so an answer of N tokens takes N - 1 steps and the front end's
work for as many: `OUTPUT_US` less at the end than here, where all N are delivered.
"""

from __future__ import annotations

import gzip
import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blis_py.api import Simulation
from blis_py.cli.flags.configure import configure
from blis_py.cli.flags.parser import parse
from blis_py.cli.verbs.replay import GROUPS
from blis_py.cluster.routing.deciders import DECIDERS
from blis_py.cluster.routing.policies import ROUTING_POLICIES
from blis_py.cluster.routing.router import RouterSetup
from blis_py.cluster.routing.signals import Signals
from blis_py.cluster.topology import Disaggregation
from blis_py.core.request import Request
from blis_py.metrics.invariants import check
from blis_py.metrics.record import RunRecord

PLAIN = ("14_pd_always/plain", "14_pd_always/contention", "14_pd_always/pools")
SCORED = {"15_pd_prefix_threshold/plain": 2, "15_pd_prefix_threshold/contention": 6}
"""Runs with scores of load, and the decisions in which the peer sees a request end one step too early."""
FORCED = (*PLAIN, *SCORED)
OUTPUT_US = 45
weighted: Any = ROUTING_POLICIES["weighted"]


class Recorded:
    """One recorded run: `folder/variant`."""

    def __init__(self, shared_data: Path, name: str) -> None:
        case, _, self.variant = name.partition("/")
        self.folder = shared_data / "peer_runs" / case

    def read(self, name: str) -> str:
        return gzip.decompress((self.folder / f"{name}.gz").read_bytes()).decode()

    @property
    def requests(self) -> dict[str, dict[str, Any]]:
        found = json.loads(self.read(f"metrics_{self.variant}_allfixed.json"))["requests"]
        return {one["requestID"]: one for one in found}

    def decided(self, kind: str, what: str) -> dict[str, Any]:
        """What was decided of each request."""
        lines = self.read(f"decisions_{self.variant}_allfixed.jsonl").splitlines()
        entries = [entry for entry in map(json.loads, lines) if entry["kind"] == kind]
        return {entry["req"].removesuffix("_prefill"): entry[what] for entry in entries}

    def simulation(self, tmp_path: Path, *more: str) -> Simulation:
        """As its command line says."""
        (tmp_path / "trace.csv").write_text(self.read("trace.csv"))
        (tmp_path / "trace.yaml").write_text((self.folder / "trace.yaml").read_text())
        ends = f"metrics_{self.variant}.json"
        (line,) = [one for one in (self.folder / "cmd.txt").read_text().splitlines() if one.endswith(ends)]
        words = [str(tmp_path / word) if word.startswith("trace.") else word for word in shlex.split(line)]
        flags = parse(["--engine", "blis", *words[2:-2], *more], GROUPS)
        assert flags is not None
        return Simulation.of(configure(flags))


@pytest.fixture
def recorded(shared_data: Path, request: pytest.FixtureRequest) -> Recorded:
    return Recorded(shared_data, request.param)


def times_us(record: RunRecord) -> dict[str, tuple[int, int]]:
    """TTFT and E2E of every request."""
    table = record.table
    ttft, e2e = ((ns - table.arrival_ns) // 1000 for ns in (record.first_token_ns, record.finish_ns))
    return {table.id_of(row): (int(ttft[row]), int(e2e[row])) for row in range(len(table))}


def theirs_us(recorded: Recorded, apart: Callable[[str], bool]) -> dict[str, tuple[int, int]]:
    return {
        name: (round(one["ttft_ms"] * 1e3), round(one["e2e_ms"] * 1e3) + OUTPUT_US * apart(name))
        for name, one in recorded.requests.items()
    }


def chosen(targets: dict[str, str]) -> Any:
    """A routing policy that chooses what the peer chose."""

    class Chosen:
        looks_at_load = False

        def __init__(self, setup: RouterSetup) -> None: ...

        def __call__(self, request: Request, now_ns: int) -> int:
            return int(targets[request.id].removeprefix("instance_"))

    return Chosen


class Beside:
    """The routers of both sides, which follow the peer; what they would have chosen from is compared."""

    looks_at_load = True

    def __init__(self, entries: dict[tuple[str, str], dict[str, Any]], setup: RouterSetup) -> None:
        self._own, self._entries = weighted(setup), entries
        self._ready, self._in_flight = setup.signals.ready, setup.signals.in_flight
        self.differ: list[tuple[list[int], list[int]]] = []
        """Requests in flight, here and there, where the instances with the largest score are others."""

    def __call__(self, request: Request, now_ns: int) -> int:
        side = "decode" if len(self._ready) > 2 else "prefill"
        entry = self._entries.get((f"route_{side}", request.id))
        if entry is None:
            return self._own(request, now_ns)
        theirs = [candidate["score"] for candidate in entry["cand"]]
        scores = self._own.score(request).tolist()
        if largest_of(scores) != largest_of(theirs):
            there = [candidate["inf"] for candidate in entry["cand"]]
            self.differ.append(([self._in_flight[index] for index in self._ready], there))
        index = int(entry["target"].removeprefix("instance_"))
        for part in self._own._parts:
            part.scorer.sent(request, index)
        return index


def largest_of(scores: list[float]) -> list[int]:
    """Places of the largest, up to rounding."""
    return [place for place, score in enumerate(scores) if score > max(scores) - 1e-9]


def decided(answers: dict[str, bool]) -> Any:
    class Decided:
        looks_at_load = False

        def __init__(self, settings: Disaggregation, signals: Signals) -> None: ...

        def __call__(self, request: Request, decode: int) -> bool:
            return answers[request.id]

    return Decided


@pytest.mark.parametrize("recorded", PLAIN, indirect=True, ids=str)
def test_its_command_line_gives_its_times(recorded: Recorded, tmp_path: Path) -> None:
    record, _ = recorded.simulation(tmp_path).simulate(record_steps=False, progress=None)
    check(record)
    assert times_us(record) == theirs_us(recorded, lambda name: True)


@pytest.mark.parametrize("recorded", FORCED, indirect=True, ids=str)
def test_with_its_choices_every_request_takes_as_long(
    recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for side in ("prefill", "decode"):
        monkeypatch.setitem(ROUTING_POLICIES, side, chosen(recorded.decided(f"route_{side}", "target")))
    apart = recorded.decided("disagg", "yes")
    monkeypatch.setitem(DECIDERS, "recorded", decided(apart))
    policies = [f"--{side}-routing-policy={side}" for side in ("prefill", "decode")]
    simulation = recorded.simulation(tmp_path, *policies, "--pd-decider=recorded")
    record, _ = simulation.simulate(record_steps=False, progress=None)
    check(record)
    theirs = theirs_us(recorded, lambda name: apart[name])
    ours = times_us(record)
    off = {
        name for name in theirs if any(abs(a - b) > 1 for a, b in zip(ours[name], theirs[name], strict=True))
    }
    assert sorted(off) == []


@pytest.mark.parametrize("recorded", SCORED, indirect=True, ids=str)
def test_only_its_random_ties_and_its_early_ends_of_steps_set_a_free_run_apart(
    recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts a request as ended when its last step begins."""
    lines = map(json.loads, recorded.read(f"decisions_{recorded.variant}_allfixed.jsonl").splitlines())
    entries = {(entry["kind"], entry["req"].removesuffix("_prefill")): entry for entry in lines}
    routers: list[Beside] = []

    def beside(setup: RouterSetup) -> Beside:
        routers.append(Beside(entries, setup))
        return routers[-1]

    monkeypatch.setitem(ROUTING_POLICIES, "weighted", beside)
    recorded.simulation(tmp_path).simulate(record_steps=False, progress=None)
    differ = [each for router in routers for each in router.differ]
    assert 0 < len(differ) <= SCORED[f"{recorded.folder.name}/{recorded.variant}"]
    for here, there in differ:
        assert all(ours >= theirs for ours, theirs in zip(here, there, strict=True))
        assert sum(here) > sum(there)
