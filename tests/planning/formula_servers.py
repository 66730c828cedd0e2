"""Servers whose behaviour is a formula, for judgements over longer runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from blis_py.api import configure
from blis_py.planning.goal import Goal
from blis_py.planning.job import Job, JobOutcome
from blis_py.planning.stationary import Sustained, sustained

GOAL = Goal(most_requests=6400, most_extended=10_000)
CONFIG = configure(model="llama-3.1-8b", num_requests=10)


def target(measured: float | None, limit: float = 100.0, slo: str = "ttft.p99=100ms") -> dict[str, Any]:
    return {
        **{"slo": slo, "slo_class": None, "metric": "ttft", "stat": "p99"},
        **{"limit_ms": limit, "measured_ms": measured, "met": measured is not None and measured <= limit},
    }


def outcome(requests: float, measured: float | None = 50.0, verdict: str = "", **facts: Any) -> JobOutcome:
    facts = {"requests": int(requests), "offered_per_s": 5.0, "span_s": 7.0, **facts}
    return JobOutcome({"requests.injected": 1.0}, slo=[target(measured)], verdict=verdict, facts=facts)


class Server:
    """A runner of jobs by a function of the rate and of the number of requests."""

    def __init__(self, of: Callable[[float, float], JobOutcome], base: float = 100) -> None:
        self._of, self._base = of, base
        self.tried: list[tuple[float, float]] = []
        self.jobs: list[Job] = []

    def run(self, jobs: Sequence[Job]) -> list[JobOutcome]:
        self.jobs += jobs
        self.tried += [(job.variation.rate, job.variation.length) for job in jobs]
        return [self._of(job.variation.rate, self._base * job.variation.length) for job in jobs]


def run_longer(first: JobOutcome, server: Server, goal: Goal = GOAL, begun: float = 1.0) -> Sustained:
    runner: Any = server
    return sustained(CONFIG, goal, runner, first, begun)
