"""What a user adds without editing the package: a policy is a function or a class, and a line in a dict."""

from __future__ import annotations

from collections.abc import Generator
from importlib.metadata import EntryPoint
from typing import Any

import numpy as np
import pytest
from simpy import Environment, Event

from blis_py.cluster import extensions
from blis_py.cluster.ingress import admission
from blis_py.cluster.ingress.admission import ADMISSION_POLICIES, AdmissionSetup
from blis_py.cluster.ingress.source import RequestFactory, Send
from blis_py.cluster.routing import policies
from blis_py.cluster.routing.policies import ROUTING_POLICIES
from blis_py.cluster.routing.router import RouterSetup
from blis_py.cluster.routing.scorers import SCORERS, Known, Scores, of_load
from blis_py.cluster.simulation import simulate
from blis_py.cluster.topology import Cluster
from blis_py.core.config import SchedulerConfig
from blis_py.core.features import StepFeatures
from blis_py.core.policies import SCHEDULERS
from blis_py.core.queues import SortedQueue
from blis_py.core.request import NEVER_NS, Request
from blis_py.errors import InputError
from blis_py.latency.base import FrontendDelays, StepTime
from blis_py.latency.step_run import PricedRun, StepRun
from blis_py.metrics.record import Outcome
from blis_py.requests.table import RequestTable

US = 1000
CONFIG = SchedulerConfig(num_kv_blocks=1000, max_model_len=1000)


class TenMicroseconds:
    """A latency model: every step takes as long."""

    name, provenance = "ten", "made up"
    frontend = FrontendDelays()
    uses_max_context = False

    def step(self, features: StepFeatures) -> StepTime:
        return StepTime(10 * US, 0)

    def step_ns(self, features: StepFeatures) -> int:
        return 10 * US

    def decode_run(
        self, features: StepFeatures, steps: int, start_ns: int = 0, until_ns: int = NEVER_NS
    ) -> StepRun:
        return PricedRun(start_ns + 10 * US * np.arange(1, steps + 1)).until(until_ns)


def cluster(**settings: Any) -> Cluster:
    return Cluster.of(**{"scheduler": CONFIG, "latency": TenMicroseconds(), **settings})


class ByPrompt:
    """A routing policy: short prompts here, long ones there."""

    looks_at_load = False

    def __init__(self, setup: RouterSetup) -> None:
        self._last = setup.signals.count - 1

    def __call__(self, request: Request, now_ns: int) -> int:
        return 0 if request.prompt_tokens < 100 else self._last


def longest_prompt_first(request: Request) -> tuple[Any, ...]:
    """A scheduling policy."""
    return (-request.prompt_tokens, request.id)


mine = of_load(lambda known: known.in_flight)


class OneAfterTheOther:
    """A source: each request is sent a while after its client has seen the end of the one before."""

    listens = True

    def __init__(self, table: RequestTable, think_ns: int) -> None:
        self.table, self._think_ns, self._next = table, think_ns, 0

    def start(self, env: Environment, make: RequestFactory, send: Send, ahead: bool) -> None:
        assert not ahead, "their times are unknown"
        self._env, self._make, self._send = env, make, send
        env.process(self._one(0))

    def _one(self, time_ns: int) -> Generator[Event, None, None]:
        yield self._env.timeout(time_ns - self._env.now)
        (request,) = self._make(slice(self._next, self._next + 1))
        request.arrival_ns = int(self._env.now)
        self._next += 1
        self._send([request])

    def ended(self, request: Request, seen_ns: int) -> None:
        if self._next < len(self.table):
            self._env.process(self._one(seen_ns + self._think_ns))

    def safe_until_ns(self) -> int:
        raise AssertionError("it is not queried, since it listens")


def table(prompts: list[int], outputs: list[int], arrival_us: int = 0) -> RequestTable:
    columns = (np.array(prompts, dtype=np.int64), np.array(outputs, dtype=np.int64))
    return RequestTable.build(np.full(len(prompts), arrival_us * US), *columns)


def test_a_latency_model_is_an_object_with_a_few_methods() -> None:
    record = simulate(table([16], [5]), cluster())
    assert record.first_token_ns.tolist() == [10 * US]
    assert record.finish_ns.tolist() == [50 * US]


def test_a_routing_policy_is_a_class_and_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ROUTING_POLICIES, "by-prompt", ByPrompt)
    demand = table([8, 200, 9, 300], [2, 2, 2, 2])
    record = simulate(demand, cluster(num_instances=3, routing_policy="by-prompt"))
    assert record.instance.tolist() == [0, 2, 0, 2]


class NoLongPrompts:
    """An admission policy."""

    looks_at_load = False

    def __init__(self, setup: AdmissionSetup) -> None: ...

    def __call__(self, request: Request, now_ns: int) -> str:
        return "too long for us" if request.prompt_tokens > 100 else ""


def test_an_admission_policy_is_a_class_and_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ADMISSION_POLICIES, "short", NoLongPrompts)
    demand = table([8, 200, 9], [2, 2, 2])
    record = simulate(demand, cluster(admission_policy="short"))
    assert record.rejection is not None
    assert record.rejection.to_list() == ["", "too long for us", ""]


def fewest_in_flight(known: Known) -> Scores:
    """A scorer."""
    return 1 / (1 + known.in_flight)


def test_a_scorer_is_a_function_and_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCORERS, "mine", of_load(fewest_in_flight))
    weighted = cluster(num_instances=3, routing_policy="weighted", routing_scorers={"mine": 1})
    record = simulate(table([8] * 9, [50] * 9), weighted)
    assert np.bincount(record.instance).tolist() == [3, 3, 3]


def test_installed_packages_bring_policies_and_scorers(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {
        "blis_py.routing_policies": EntryPoint("by-prompt", f"{__name__}:ByPrompt", "g"),
        "blis_py.admission_policies": EntryPoint("short", f"{__name__}:NoLongPrompts", "g"),
        "blis_py.routing_scorers": EntryPoint("mine", f"{__name__}:mine", "g"),
    }

    def entry_points(group: str, name: str | None = None) -> list[EntryPoint]:
        return [point for point in [installed[group]] if name in (None, point.name)]

    monkeypatch.setattr(extensions, "entry_points", entry_points)
    monkeypatch.setattr(policies, "ROUTING_POLICIES", {**ROUTING_POLICIES})
    monkeypatch.setattr(policies, "SCORERS", {**SCORERS})
    monkeypatch.setattr(admission, "ADMISSION_POLICIES", {**ADMISSION_POLICIES})
    assert admission.admission_policy("short") is NoLongPrompts
    with pytest.raises(InputError, match="gaie-legacy, short"):
        admission.admission_policy("shorts")
    assert policies.policy("by-prompt") is ByPrompt
    assert policies.scorer("mine") is mine
    with pytest.raises(InputError, match="always-busiest, by-prompt"):
        policies.policy("by-prompts")
    with pytest.raises(InputError, match="vllm-dp, mine"):
        policies.scorer("yours")


def test_a_scheduling_policy_is_a_function_and_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEDULERS, "longest-first", lambda config: SortedQueue(longest_prompt_first))
    config = SchedulerConfig(num_kv_blocks=100, max_model_len=500, max_num_seqs=1, scheduler="longest-first")
    record = simulate(table([10, 30, 20], [1, 1, 1]), cluster(scheduler=config))
    assert record.finish_ns.tolist() == [30 * US, 10 * US, 20 * US]


def test_a_source_that_listens_sends_the_next_request_when_one_has_ended() -> None:
    source = OneAfterTheOther(table([16] * 3, [3, 2, 1]), think_ns=7 * US)
    record = simulate(source, cluster(num_instances=2, admission_latency_ns=1 * US))
    # 1 µs of admission, a step of 10 µs for every token, then 7 µs until the next.
    assert record.table.arrival_ns.tolist() == [0, 38 * US, 66 * US]
    assert record.finish_ns.tolist() == [31 * US, 59 * US, 77 * US]
    assert record.instance.tolist() == [0, 1, 0]


def test_what_a_source_never_sent_is_no_part_of_the_run() -> None:
    source = OneAfterTheOther(table([16] * 3, [3, 2, 1]), think_ns=7 * US)
    record = simulate(source, cluster(), horizon_ns=45 * US)
    assert record.table.arrival_ns.tolist() == [0, 37 * US]
    assert [Outcome(outcome) for outcome in record.outcome] == [Outcome.COMPLETED, Outcome.RUNNING]
