"""The combination of settings with the highest rate, on so many GPUs or dollars an hour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from blis_py.config.models import RunConfig
from blis_py.core.bounds import MAX_INSTANCES, check_count
from blis_py.errors import InputError
from blis_py.planning._space import INSTANCES, drained
from blis_py.planning.axes import Axis, Point, grid
from blis_py.planning.fleets import device_of
from blis_py.planning.goal import Goal
from blis_py.planning.job import Job
from blis_py.planning.plan import Plan, candidate_of, check_choices, examined
from blis_py.planning.prices import Prices
from blis_py.planning.result import RATE, Rated, Standing
from blis_py.planning.runner import ENDS, Runner
from blis_py.planning.stationary import highest_rate, sustained
from blis_py.planning.study import Study
from blis_py.planning.targets import check_targets
from blis_py.planning.verify import Drawn, drawn
from blis_py.planning.widths import sensible, unasked


def highest(
    study: Study,
    axes: Sequence[Axis],
    runner: Runner,
    *,
    goal: Goal,
    prices: Prices,
    gpus: int | None = None,
    budget: float | None = None,
    draws: int = 0,
) -> Plan:
    """The plan for the combination with the highest rate.

    Args:
        gpus, budget: GPUs, or dollars per hour, of each combination; None = the configured instances.

    Raises:
        InputError: no combination can be run, or contradictory settings.
    """
    if gpus is not None and budget is not None:
        raise InputError("contradicts --gpus", key="--budget", fix="drop one of the two")
    if budget is not None and not 0 < budget < inf:
        raise InputError("must be a finite number of dollars above 0", key="--budget", value=budget)
    if gpus is not None:
        check_count(gpus, least=1, most=MAX_INSTANCES, key="--gpus")
    check_choices(axes)
    study.check(axes)
    widths = [] if gpus is None and budget is None else unasked(study, axes)
    axes = [*axes, *widths]
    rated: list[Rated] = []
    standings: list[Standing] = []
    refused: list[str] = []
    ended = ""
    try:
        for point in sensible(grid(axes)) if widths else grid(axes):
            try:
                result = _rated(study, axes, point, runner, goal, prices, gpus, budget)
            except InputError as error:
                refused.append(str(error))
                if not widths:
                    standings.append(Standing(point, None, False, None, None, str(error)))
                continue
            rated.append(result)
            standings.append(_standing(result))
    except ENDS as end:
        if not rated:
            raise
        ended = str(end) or "interrupted"
    if not rated:
        raise InputError(f"no configuration can be run: {refused[0]}")
    rated.sort(key=lambda each: -(each.rate.per_s or 0.0))
    best = rated[0].candidate
    if ended:
        return Plan(
            best, RATE, standings=tuple(standings), lines=len(standings), rated=tuple(rated), ended=ended
        )
    longer = sustained(best.config, goal, runner, best.outcome)
    under = drawn(best.config, goal, runner, draws, longer) if best.judgement.holds else Drawn()
    answer = Plan(
        best,
        RATE,
        longer,
        standings=tuple(standings),
        lines=len(standings),
        rated=tuple(rated),
        drawn=draws > 0,
    )
    return examined(answer, goal, runner, under, [])


def _rated(
    study: Study,
    axes: Sequence[Axis],
    point: Point,
    runner: Runner,
    goal: Goal,
    prices: Prices,
    gpus: int | None,
    budget: float | None,
) -> Rated:
    config = _sized(drained(study.config(point, axes)), prices, gpus, budget)
    goal.check(config)
    check_targets(goal, [config])
    if config.workload.concurrency is not None:
        raise InputError("a closed loop has no rate", key="--concurrency", fix="use blis sweep")
    outcome = runner.run([Job(config)])[0]
    if not outcome.ran:
        raise InputError(str(outcome.refused or outcome.failed))
    candidate = candidate_of(point, config, prices, goal, outcome)
    return Rated(candidate, highest_rate(config, goal, runner, sustained(config, goal, runner, outcome)))


def _sized(config: RunConfig, prices: Prices, gpus: int | None, budget: float | None) -> RunConfig:
    """The configuration with as many instances as GPUs or money allow."""
    if gpus is None and budget is None:
        return config
    if config.all_pools:
        fix = "drop it: each layout has its number of instances"
        raise InputError("contradicts the pools", key="--gpus" if budget is None else "--budget", fix=fix)
    if config.given is not None and INSTANCES in config.given:
        raise InputError("is given by --num-instances, too", key="--gpus", fix="drop one of the two")
    count = gpus
    if budget is not None:
        price = prices.of(device_of(config))
        if price is None:
            raise InputError(f"no price is known for {device_of(config)}", key="--budget", fix="add --price")
        count = int(budget / price.per_hour + 1e-9)
    instances = (count or 0) // config.tp
    if not instances:
        raise InputError(f"too few for an instance of {config.tp} GPUs", key="--gpus", value=count)
    return replace(config, num_instances=instances)


def _standing(rated: Rated) -> Standing:
    best, rate = rated.candidate, rated.rate
    text = "" if rate.per_s is None else f"{rate.per_s:,.3g} requests/s"
    why = (
        f"{text}; just above: {rate.broken}"
        if rate.broken is not None
        else text or "misses a target at any rate"
    )
    return Standing(best.point, best.instances, False, None, best.dollars_per_hour or float(best.gpus), why)
