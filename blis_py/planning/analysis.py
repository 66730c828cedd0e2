"""Analyses of one configuration beyond pass or fail: headroom, bottleneck, and the certainty of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from blis_py.config.models import RunConfig
from blis_py.cross_check import MODELS
from blis_py.intervals import rerun_seed
from blis_py.planning.goal import Goal, Judgement
from blis_py.planning.job import HOPELESS, Job, Outcome, Variation
from blis_py.planning.runner import Runner
from blis_py.planning.trust import StepError

RESOLUTION = 0.02
"""Relative precision of the highest rate."""
MOST_FACTOR, LEAST_FACTOR = 100.0, 0.01
MORE = 1.25
"""Relative increase of one resource when looking for the bottleneck."""
CHANGE = 0.2
COMPUTE = "compute"
_BEYOND = 1.1
_LEAST_GAIN = 0.02
_UP, _DOWN = (1.1, 1.3, 1.7, 2.5), (0.8, 0.6, 0.4, 0.2)


@dataclass(frozen=True, slots=True)
class Case:
    """Variation of a run, and its judgement."""

    name: str
    judgement: Judgement
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Lever:
    """Effect of a quarter more of one resource at the rate where the configuration fails."""

    resource: str
    gain: float
    """Relative improvement of the tightest requirement; negative = worse."""
    how: str
    """The resource that was increased."""


def highest_rate(
    config: RunConfig, goal: Goal, runner: Runner, *, holds: bool
) -> tuple[float | None, Judgement | None]:
    """Largest factor on the arrival rate that meets all targets, to 2 %, and the judgement just above it.

    All rates use the same requests, closer together. Four rates are tried at a time, independent of the
    number of workers; a configuration that meets its targets at one rate is assumed to meet them at lower
    ones.

    Args:
        holds: whether the configuration meets its targets at its own rate.

    Returns:
        The factor is None if every rate from a hundredth of the configured one upwards fails; the judgement
        is None if a hundredfold rate still meets all targets.
    """

    def judged(factors: Sequence[float]) -> list[Judgement]:
        jobs = [
            Job(config, Variation(rate=factor), stops_at=(HOPELESS,), max_lost=goal.max_lost)
            for factor in factors
        ]
        return [goal.judge(outcome) for outcome in runner.run(jobs)]

    low, high = (1.0, None) if holds else (None, 1.0)
    broken: Judgement | None = None
    while True:
        factors = _next_factors(low, high)
        if not factors:
            return low, broken
        for factor, told in zip(factors, judged(factors), strict=True):
            if told.holds and (high is None or factor < high):
                low = factor if low is None else max(low, factor)
            elif not told.holds and (high is None or factor <= high):
                high, broken = factor, told


def _next_factors(low: float | None, high: float | None) -> list[float]:
    """Four factors to try, ascending; none once the precision is reached."""
    if low is not None and high is not None:
        return [] if high / low <= 1 + RESOLUTION else [low + (high - low) * i / 5 for i in (1, 2, 3, 4)]
    if low is not None:
        return [] if low >= MOST_FACTOR else [low * factor for factor in _UP]
    assert high is not None
    return [] if high <= LEAST_FACTOR else sorted(high * factor for factor in _DOWN)


def sensitivity(config: RunConfig) -> dict[str, Job]:
    """Jobs with each property of the workload a fifth lower and a fifth higher."""
    jobs = {}
    closed = config.workload.concurrency is not None
    for name in ("prompt", "output") if closed else ("rate", "prompt", "output"):
        for factor in (1 - CHANGE, 1 + CHANGE):
            jobs[f"{name}×{factor:g}"] = Job(config, Variation(**{name: factor}))
    return jobs


def other_models(config: RunConfig) -> dict[str, Job]:
    """Jobs under the other latency models that need only a model and a GPU."""
    return {
        f"model {name}": Job(replace(config, latency=config.latency.under(name)))
        for name in MODELS
        if name != config.latency.model
    }


def draws(config: RunConfig, error: StepError | None, count: int, goal: Goal) -> dict[str, Job]:
    """Jobs with step times scaled by quantiles of their error, and other seeds where requests are drawn."""
    if error is None:
        return {}
    generated = config.workload.trace is None
    jobs = {}
    for index, factor in enumerate(error.factors(count)):
        # Seeds in an order of their own, uncorrelated with the step-time factors.
        seed = rerun_seed(config.seed, (7 * index) % count)
        again = replace(config, seed=seed) if generated else config
        variation = Variation(gpu_time=factor, host_time=factor)
        jobs[f"draw {index}"] = Job(again, variation, stops_at=(HOPELESS,), max_lost=goal.max_lost)
    return jobs


def levers(config: RunConfig, rate: float, kv_blocks: int) -> dict[str, Job]:
    """Jobs at the failing rate with a quarter more of one resource each; under the empty name, unchanged.

    Args:
        rate: the factor on the arrival rate at which the configuration fails.
        kv_blocks: of one instance; held constant, since memory follows from other settings.
    """
    scheduler = replace(config.scheduler, num_kv_blocks=kv_blocks)
    stressed = replace(config, scheduler=scheduler)
    at = Variation(rate=rate)

    def scheduling(**settings: Any) -> RunConfig:
        return replace(stressed, scheduler=replace(scheduler, **settings))

    budget, seqs = scheduler.max_num_batched_tokens, scheduler.max_num_seqs
    jobs = {
        "": Job(stressed, at),
        f"{COMPUTE}: a faster GPU": Job(stressed, replace(at, gpu_time=1 / MORE)),
        "host: a faster host": Job(stressed, replace(at, host_time=1 / MORE)),
        "KV: more KV blocks": Job(stressed, replace(at, kv_blocks=MORE)),
        "queueing: more sequences at once": Job(scheduling(max_num_seqs=round(seqs * MORE)), at),
        "prefill interference: a larger token budget": Job(
            scheduling(max_num_batched_tokens=round(budget * MORE)), at
        ),
    }
    if round(budget / MORE) >= seqs:
        smaller = scheduling(max_num_batched_tokens=round(budget / MORE))
        jobs["prefill interference: a smaller token budget"] = Job(smaller, at)
    if config.num_instances > 1:
        fresh = replace(config.routing, policy="least-loaded", snapshot_refresh_interval_us=0)
        jobs["queueing: a router that sees every queue as it is"] = Job(replace(stressed, routing=fresh), at)
    return jobs


def binding(cases: Sequence[Case]) -> list[Lever]:
    """Levers in descending order of their improvement.

    Args:
        cases: the outcomes of `levers`.
    """
    stressed = next(case for case in cases if not case.name)
    tightest = stressed.judgement.tightest
    if tightest is None or tightest.slack == float("-inf"):
        return []
    found = []
    for case in cases:
        after = next((r for r in case.judgement.requirements if r.what == tightest.what), None)
        if case.name and after is not None and tightest.slack < 1:
            resource, _, how = case.name.partition(": ")
            found.append(Lever(resource, _gain(1 - tightest.slack, 1 - after.slack), how))
    return sorted(found, key=lambda lever: -lever.gain)


def short(found: Sequence[Lever]) -> Lever | None:
    """The lever of the bottleneck; None if no lever improves anything.

    Faster compute helps with every bottleneck because everything finishes sooner; compute is named only if no
    other lever gains half as much.
    """
    if not found or found[0].gain < _LEAST_GAIN:
        return None
    others = [lever for lever in found if lever.resource != found[0].resource]
    if found[0].resource == COMPUTE and others and others[0].gain >= found[0].gain / 2:
        return others[0]
    return found[0]


def _gain(before: float, after: float) -> float:
    if before == after:
        return 0.0
    return 1 - after / before if before not in (0.0, float("inf")) else 0.0


def beyond(factor: float) -> float:
    """A rate factor at which a configuration with the highest rate `factor` fails."""
    return factor * _BEYOND


def cases_of(jobs: dict[str, Job], goal: Goal, runner: Runner) -> list[Case]:
    """Run all jobs at once and judge their outcomes."""
    outcomes = runner.run(list(jobs.values()))
    return [Case(name, goal.judge(outcome), outcome) for name, outcome in zip(jobs, outcomes, strict=True)]
