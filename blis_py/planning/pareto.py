"""Throughput of a GPU against the speed that a user sees: every combination at rising concurrency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from blis_py.config.models import RunConfig
from blis_py.errors import InputError
from blis_py.metrics.slo_words import latency
from blis_py.planning._space import drained
from blis_py.planning.axes import Axis, Point, grid
from blis_py.planning.best_load import Tried, loads
from blis_py.planning.fleets import gpus_of, price_of
from blis_py.planning.goal import Goal, Judgement
from blis_py.planning.job import Job, JobOutcome, Variation
from blis_py.planning.prices import Prices
from blis_py.planning.runner import Runner
from blis_py.planning.steady import steady_length
from blis_py.planning.study import Study
from blis_py.planning.targets import check_targets
from blis_py.planning.widths import sensible, unasked

CONCURRENCIES = tuple(2**power for power in range(10))
"""Requests in flight at each instance."""
_ROUNDS = 8
"""Requests of a run, over its concurrency."""
_MIN = 64
_CLEARLY = 0.01
"""Relative distance to a target from which a mean without the start of its run misses it."""


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
    missed: str = ""
    """The targets that are missed, in words."""
    dollars_per_million: float | None = None
    """Dollars per million output tokens; None without a price."""

    def as_dict(self) -> dict[str, Any]:
        return {
            **self.point,
            "concurrency": self.concurrency,
            "tokens_per_s_per_gpu": self.per_gpu,
            "tokens_per_s_per_user": self.per_user,
            "ttft_p50_ms": self.ttft_p50_ms,
            "meets_targets": self.meets,
            "pareto": self.best,
            "dollars_per_million_output_tokens": self.dollars_per_million,
        }

    def __str__(self) -> str:
        settings = ", ".join(f"{name} {value}" for name, value in self.point.items()) or "as given"
        text = (
            f"{settings}, {self.concurrency:,} in flight: {self.per_user:,.3g} tokens/s/user, "
            f"{self.per_gpu:,.4g} tokens/s/GPU"
        )
        if self.dollars_per_million is not None:
            text += f", ${self.dollars_per_million:,.2f} per million output tokens"
        return text if self.ttft_p50_ms is None else f"{text}, median TTFT {latency(self.ttft_p50_ms)}"


@dataclass(frozen=True)
class Pareto:
    """All operating points, and why combinations could not be run."""

    points: tuple[Operating, ...]
    refused: tuple[str, ...] = ()
    wanted: str = ""
    """The lower limits for which the best point was searched; empty without."""

    @property
    def front(self) -> list[Operating]:
        """The Pareto front, by falling speed of a user."""
        return sorted((each for each in self.points if each.best), key=lambda each: -each.per_user)

    @property
    def best(self) -> Operating | None:
        """The point that meets all targets with the most tokens per second and GPU."""
        return max((each for each in self.points if each.meets), key=lambda each: each.per_gpu, default=None)

    def __repr__(self) -> str:
        refused = [f"Not run: {reason}" for reason in self.refused]
        if self.wanted:
            return "\n".join([*self._best_of_each(), *refused])
        head = f"Pareto front: {len(self.front)} of {len(self.points)} operating points"
        return "\n".join([head, *(f"  {each}" for each in self.front), *refused])

    def _best_of_each(self) -> list[str]:
        """The best point, then the best of every other combination, then those that meet no target."""
        by: dict[str, list[Operating]] = {}
        for each in self.points:
            by.setdefault(repr(each.point), []).append(each)
        meeting = [max(able, key=_per_gpu) for own in by.values() if (able := [e for e in own if e.meets])]
        meeting.sort(key=_per_gpu, reverse=True)
        outs = [min(own, key=lambda e: e.concurrency) for own in by.values() if not any(e.meets for e in own)]
        if not meeting:
            lines = [f"No configuration tried reaches {self.wanted}; nearest first"]
            outs.sort(key=lambda each: -each.per_user)
        else:
            lines = [f"Most tokens/s/GPU with {self.wanted}: {meeting[0]}"]
            lines += ["Others at their best:"] if meeting[1:] else []
            lines += [f"  {each}" for each in meeting[1:]]
        return lines + [f"  ✗ {each}: {each.missed}" for each in outs]


def _per_gpu(each: Operating) -> float:
    return each.per_gpu


def pareto(
    study: Study, axes: Sequence[Axis], runner: Runner, goal: Goal, prices: Prices | None = None
) -> Pareto:
    """Run every combination as closed loops of rising concurrency; with lower limits (`goal.at_least`), those
    at which a GPU emits the most. Widths that are not given are combinations, too.

    Raises:
        InputError: a rate, a concurrency or an SLO that does not apply; no combination can be run.
    """
    widths = unasked(study, axes)
    axes = [*axes, *widths]
    configs: list[tuple[Point, RunConfig]] = []
    refused: dict[str, None] = {}
    for point in sensible(grid(axes)) if widths else grid(axes):
        try:
            config = drained(study.config(point, axes))
            _check(config)
            configs.append((point, config))
        except InputError as error:
            refused[_named(point, error)] = None
    check_targets(goal, [config for _, config in configs])
    operated = _Operated(configs, runner, goal, prices or Prices(), refused)
    if goal.at_least:
        found = [tried.what for own in loads(len(configs), operated.tried) for tried in own]
    else:
        jobs = [(at, count) for at in range(len(configs)) for count in CONCURRENCIES]
        found = [tried.what for tried in operated.tried(jobs) if tried is not None]
    if not found:
        raise InputError(f"no configuration can be run: {next(iter(refused), 'no token was emitted')}")
    wanted = ", ".join(f"at least {value:g} {name}" for name, value in goal.at_least.items())
    return Pareto(tuple(_marked(found)), tuple(refused), wanted)


def _named(point: Point, reason: object) -> str:
    """A reason with the combination that it is of."""
    settings = ", ".join(f"{name} {value}" for name, value in point.items())
    return f"{settings}: {reason}" if settings else str(reason)


class _Operated:
    """Operating points of combinations, by runs of their closed loops."""

    def __init__(
        self,
        configs: Sequence[tuple[Point, RunConfig]],
        runner: Runner,
        goal: Goal,
        prices: Prices,
        refused: dict[str, None],
    ) -> None:
        self._configs, self._runner, self._goal, self._prices = configs, runner, goal, prices
        self._refused = refused
        """Reasons of those that cannot be run."""

    def tried(self, jobs: Sequence[tuple[int, int]]) -> list[Tried[Operating] | None]:
        """Combinations, by index, at numbers of requests in flight; None for those without a token."""
        loaded = [_loaded(self._configs[at][1], count) for at, count in jobs]
        outcomes = _outcomes(loaded, self._runner, self._goal)
        found: list[Tried[Operating] | None] = []
        for (at, count), config, outcome in zip(jobs, loaded, outcomes, strict=True):
            point = self._configs[at][0]
            if outcome.refused is not None or outcome.failed is not None:
                self._refused[_named(point, outcome.refused or outcome.failed)] = None
                found.append(None)
                continue
            each = _operating(point, count, config, outcome, self._goal, self._prices)
            found.append(None if each is None else Tried(each.meets, each.per_gpu, each))
        return found


def _outcomes(configs: Sequence[RunConfig], runner: Runner, goal: Goal) -> list[JobOutcome]:
    """The outcome of each configuration; one that misses a target is run again as long as its steady state
    needs, unless twice the length shows that it misses it there, too."""
    outcomes = runner.run([_job(config) for config in configs])
    lengths = {
        index: length
        for index, outcome in enumerate(outcomes)
        if outcome.ran and not goal.judge(outcome).holds and (length := steady_length(outcome, goal)) > 1
    }
    doubled = [index for index, length in lengths.items() if length > 2 and not outcomes[index].slo]
    for index, outcome in zip(doubled, runner.run([_job(configs[at], 2.0) for at in doubled]), strict=True):
        if _misses_steadily(goal.judge(outcomes[index]), goal.judge(outcome)):
            outcomes[index] = outcome
            del lengths[index]
    longer = runner.run([_job(configs[index], length) for index, length in lengths.items()])
    for index, outcome in zip(lengths, longer, strict=True):
        outcomes[index] = outcome
    return outcomes


def _misses_steadily(once: Judgement, twice: Judgement) -> bool:
    """Whether means that have half the share of the start in a run of twice the length miss a target without
    it: what the start adds to a mean falls as the inverse of the length."""
    if twice.holds or not once.requirements or not twice.requirements:
        return False
    return 2 * twice.slack - once.slack < -_CLEARLY


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
    point: Point, count: int, config: RunConfig, outcome: JobOutcome, goal: Goal, prices: Prices
) -> Operating | None:
    tokens, tpot_ms = (
        outcome.figures.get("throughput.output_tokens_per_s"),
        outcome.figures.get("tpot_ms.mean"),
    )
    if not tokens or not tpot_ms:
        return None
    ttft = outcome.figures.get("ttft_ms.p50")
    judged = goal.judge(outcome)
    per_gpu, price = tokens / gpus_of(config), price_of(config, prices)
    return Operating(
        point,
        count,
        per_gpu,
        1000 / tpot_ms,
        ttft,
        judged.holds,
        missed="" if judged.holds else str(judged),
        dollars_per_million=None if price is None else price.per_hour / (per_gpu * 3600) * 1e6,
    )


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
