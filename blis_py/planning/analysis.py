"""Analyses of one configuration beyond pass or fail: headroom, bottleneck, and the certainty of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from blis_py.config.models import RunConfig
from blis_py.planning.goal import Goal, Judgement
from blis_py.planning.job import HOPELESS, Job, JobOutcome, Variation
from blis_py.planning.runner import Runner
from blis_py.planning.uncertainty import Errors, adjusted
from blis_py.sensitivity.disagreement import MODELS, OWN_TRUTH
from blis_py.sensitivity.reruns import rerun_seed

MORE = 1.25
"""Relative increase of one resource when looking for the bottleneck."""
CHANGE = 0.2
SPAN = (0.25, 0.5, 2.0, 4.0)
"""Factors on a setting when looking for the bottleneck."""
COMPUTE, TOKEN_BUDGET, SEQUENCES = "compute", "prefill interference", "queueing"
_BEYOND = 1.1
_MIN_GAIN = 0.02


@dataclass(frozen=True, slots=True)
class Case:
    """Variation of a run, and its judgement."""

    name: str
    judgement: Judgement
    outcome: JobOutcome


@dataclass(frozen=True, slots=True)
class Lever:
    """Effect of a change of one resource or setting at the rate where the configuration fails."""

    resource: str
    gain: float
    """Relative improvement of the tightest of all requirements; negative = worse."""
    how: str
    """The change."""


def sensitivity(config: RunConfig, length: float) -> dict[str, Job]:
    """Jobs with each property of the workload a fifth lower and a fifth higher.

    Args:
        length: factor on the number of requests, here and below.
    """
    jobs = {}
    closed = config.workload.concurrency is not None
    for name in ("prompt", "output") if closed else ("rate", "prompt", "output"):
        for factor in (1 - CHANGE, 1 + CHANGE):
            jobs[f"{name}×{factor:g}"] = Job(config, _changed(name, factor, length))
    return jobs


def _changed(name: str, factor: float, length: float) -> Variation:
    rate, prompt, output = (factor if each == name else 1.0 for each in ("rate", "prompt", "output"))
    return Variation(rate=rate, length=length, prompt=prompt, output=output)


def other_models(config: RunConfig, length: float) -> dict[str, Job]:
    """Jobs under the other latency models that are trusted for comparison; none for step times measured on
    the engine itself, or given."""
    if config.latency.model in OWN_TRUTH:
        return {}
    at = Variation(length=length)
    return {
        f"model {name}": Job(replace(config, latency=config.latency.under(name)), at)
        for name in MODELS
        if name != config.latency.model
    }


def draws(config: RunConfig, errors: Errors, goal: Goal, length: float) -> dict[str, Job]:
    """Jobs with the step times of each draw, and other requests: other seeds where they are generated, a
    bootstrap of a recording."""
    generated = config.workload.trace is None
    jobs = {}
    for index, draw in enumerate(errors.draws):
        seed = rerun_seed(config.seed, index)
        variation = Variation(
            gpu_time=draw.step, host_time=draw.step, length=length, resample=None if generated else seed
        )
        faster = any(factor < 1 for factor in draw.residual.values())
        stops = () if faster else (HOPELESS,)
        again = replace(config, seed=seed) if generated else config
        jobs[f"draw {index}"] = Job(again, variation, stops_at=stops, max_lost=goal.max_lost)
    return jobs


def drawn_cases(jobs: dict[str, Job], errors: Errors, goal: Goal, runner: Runner) -> list[Case]:
    """The judgements of draws, with each latency's own error."""
    outcomes = [
        adjusted(outcome, draw)
        for outcome, draw in zip(runner.run(list(jobs.values())), errors.draws, strict=True)
    ]
    return [Case(name, goal.judge(outcome), outcome) for name, outcome in zip(jobs, outcomes, strict=True)]


def levers(config: RunConfig, at: Variation, kv_blocks: int | None) -> dict[str, Job]:
    """Jobs under the load at which the configuration fails: a quarter more of one resource, or one setting at
    a quarter to four times its value; under the empty name, unchanged.

    Args:
        at: the load.
        kv_blocks: of one instance; held constant, since memory follows from other settings. None = as
            configured, where pools have memory of their own.
    """
    scheduler = config.scheduler if kv_blocks is None else replace(config.scheduler, num_kv_blocks=kv_blocks)
    stressed = replace(config, scheduler=scheduler)
    jobs = {
        "": Job(stressed, at),
        f"{COMPUTE}: a 25 % faster GPU": Job(stressed, replace(at, gpu_time=1 / MORE)),
        "host: a 25 % faster host": Job(stressed, replace(at, host_time=1 / MORE)),
        "KV: 25 % more KV blocks": Job(stressed, replace(at, kv_blocks=MORE)),
    }
    budget_tokens, seqs = scheduler.max_num_batched_tokens, scheduler.max_num_seqs
    for factor in SPAN:
        if round(budget_tokens * factor) >= seqs:
            other = replace(scheduler, max_num_batched_tokens=round(budget_tokens * factor))
            name = f"{TOKEN_BUDGET}: max_num_batched_tokens {round(budget_tokens * factor):,}"
            jobs[name] = Job(replace(stressed, scheduler=other), at)
        if 1 <= round(seqs * factor) <= budget_tokens:
            other = replace(scheduler, max_num_seqs=round(seqs * factor))
            jobs[f"{SEQUENCES}: max_num_seqs {round(seqs * factor):,}"] = Job(
                replace(stressed, scheduler=other), at
            )
    if config.instances > 1:
        fresh = replace(config.routing, policy="least-loaded", snapshot_refresh_interval_us=0)
        jobs["routing: least-loaded with live queue lengths"] = Job(replace(stressed, routing=fresh), at)
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
    levers = []
    for case in cases:
        slack = case.judgement.slack
        if case.name and slack != float("-inf") and tightest.slack < 1:
            resource, _, how = case.name.partition(": ")
            levers.append(Lever(resource, _gain(1 - tightest.slack, 1 - slack), how))
    return sorted(levers, key=lambda lever: -lever.gain)


def short(levers: Sequence[Lever]) -> Lever | None:
    """The lever of the bottleneck; None if no lever improves anything.

    Faster compute helps with every bottleneck because everything finishes sooner; compute is named only if no
    other lever gains half as much.
    """
    if not levers or levers[0].gain < _MIN_GAIN:
        return None
    others = [lever for lever in levers if lever.resource != levers[0].resource]
    if levers[0].resource == COMPUTE and others and others[0].gain >= levers[0].gain / 2:
        return others[0]
    return levers[0]


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
