"""Throughput of a GPU against the speed that a user sees: every combination at rising concurrency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from blis_py.config.models import RunConfig
from blis_py.errors import InputError
from blis_py.planning._space import drained
from blis_py.planning.axes import Axis, Point, grid
from blis_py.planning.fleets import gpus_of
from blis_py.planning.goal import Goal, in_ms
from blis_py.planning.job import Job, JobOutcome, Variation
from blis_py.planning.runner import Runner
from blis_py.planning.steady import steady_length
from blis_py.planning.study import Study
from blis_py.planning.targets import check_targets

CONCURRENCIES = tuple(2**power for power in range(10))
"""Requests in flight at each instance."""
_ROUNDS = 8
"""Requests of a run, over its concurrency."""
_MIN = 64


@dataclass(frozen=True, slots=True)
class Operating:
    """One combination at one concurrency."""

    point: Point
    concurrency: int
    per_gpu: float
    """Output tokens per second and GPU."""
    per_user: float
    """Output tokens per second of a user: the inverse of the mean TPOT."""
    ttft_p50_ms: float | None
    """The median: of so few rounds the common start of all clients decides higher percentiles."""
    meets: bool
    """Whether all targets are met; True without targets."""
    best: bool = False
    """Whether no other point that meets all targets is better in both figures."""

    def as_dict(self) -> dict[str, Any]:
        return {
            **self.point,
            "concurrency": self.concurrency,
            "tokens_per_s_per_gpu": self.per_gpu,
            "tokens_per_s_per_user": self.per_user,
            "ttft_p50_ms": self.ttft_p50_ms,
            "meets_targets": self.meets,
            "pareto": self.best,
        }


@dataclass(frozen=True)
class Pareto:
    """All operating points, and why combinations could not be run."""

    points: tuple[Operating, ...]
    refused: tuple[str, ...] = ()

    @property
    def front(self) -> list[Operating]:
        """The Pareto front, by falling speed of a user."""
        return sorted((each for each in self.points if each.best), key=lambda each: -each.per_user)

    def __repr__(self) -> str:
        rows = [
            f"  {', '.join(f'{k} {v}' for k, v in each.point.items()) or 'as given'}, "
            f"{each.concurrency:,} in flight: {each.per_user:,.3g} tokens/s/user, "
            f"{each.per_gpu:,.4g} tokens/s/GPU"
            + ("" if each.ttft_p50_ms is None else f", median TTFT {in_ms(each.ttft_p50_ms)}")
            for each in self.front
        ]
        head = f"Pareto front: {len(rows)} of {len(self.points)} operating points"
        return "\n".join([head, *rows, *(f"Not run: {reason}" for reason in self.refused)])


def pareto(study: Study, axes: Sequence[Axis], runner: Runner, goal: Goal) -> Pareto:
    """Run every combination as closed loops of rising concurrency.

    Raises:
        InputError: a rate, a concurrency or an SLO that does not apply; no combination can be run.
    """
    jobs: list[tuple[Point, int, RunConfig]] = []
    refused: dict[str, None] = {}
    for point in grid(axes):
        try:
            config = drained(study.config(point, axes))
            _check(config)
        except InputError as error:
            refused[str(error)] = None
            continue
        jobs += [(point, count, _loaded(config, count)) for count in CONCURRENCIES]
    check_targets(goal, [config for _, _, config in jobs])
    outcomes = _outcomes([config for _, _, config in jobs], runner, goal)
    fronts = []
    for (point, count, config), outcome in zip(jobs, outcomes, strict=True):
        if outcome.refused is not None or outcome.failed is not None:
            refused[str(outcome.refused or outcome.failed)] = None
        elif (each := _operating(point, count, config, outcome, goal)) is not None:
            fronts.append(each)
    if not fronts:
        raise InputError(f"no configuration can be run: {next(iter(refused), 'no token was emitted')}")
    return Pareto(tuple(_marked(fronts)), tuple(refused))


def _outcomes(configs: Sequence[RunConfig], runner: Runner, goal: Goal) -> list[JobOutcome]:
    """The outcome of each configuration; one that misses a target is run again as long as its steady state
    needs."""
    outcomes = runner.run([_job(config) for config in configs])
    lengths = {
        index: length
        for index, outcome in enumerate(outcomes)
        if outcome.ran and not goal.judge(outcome).holds and (length := steady_length(outcome, goal)) > 1
    }
    longer = runner.run([_job(configs[index], length) for index, length in lengths.items()])
    for index, outcome in zip(lengths, longer, strict=True):
        outcomes[index] = outcome
    return outcomes


def _job(config: RunConfig, length: float = 1.0) -> Job:
    """A run whose loops are full from the start, whatever the arrivals of its load."""
    return Job(config, Variation(length=length, at_once=True))


def _check(config: RunConfig) -> None:
    load = config.workload
    if load.rate is not None or load.concurrency is not None:
        raise InputError("is set by --pareto", key="--rate, --concurrency", fix="drop it")


def _loaded(config: RunConfig, count: int) -> RunConfig:
    """The configuration with so many requests in flight at each instance."""
    concurrency = count * config.instances
    load = replace(config.workload, concurrency=concurrency)
    if load.trace is None:
        load = replace(load, num_requests=max(_ROUNDS * concurrency, _MIN))
    return replace(config, workload=load)


def _operating(
    point: Point, count: int, config: RunConfig, outcome: JobOutcome, goal: Goal
) -> Operating | None:
    tokens, tpot_ms = (
        outcome.figures.get("throughput.output_tokens_per_s"),
        outcome.figures.get("tpot_ms.mean"),
    )
    if not tokens or not tpot_ms:
        return None
    ttft = outcome.figures.get("ttft_ms.p50")
    meets = goal.judge(outcome).holds
    return Operating(point, count, tokens / gpus_of(config), 1000 / tpot_ms, ttft, meets)


def _marked(points: Sequence[Operating]) -> list[Operating]:
    """The points with those of the front marked."""

    def beaten(each: Operating) -> bool:
        return any(
            other.meets
            and other.per_gpu >= each.per_gpu
            and other.per_user >= each.per_user
            and (other.per_gpu, other.per_user) != (each.per_gpu, each.per_user)
            for other in points
        )

    return [replace(each, best=each.meets and not beaten(each)) for each in points]
