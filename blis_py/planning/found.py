"""Data of a plan: candidates, the standing of each combination, and the analyses of the best one."""

from __future__ import annotations

from dataclasses import dataclass, field

from blis_py.config.models import RunConfig
from blis_py.planning import analysis
from blis_py.planning.analysis import Case, Lever
from blis_py.planning.axes import Point
from blis_py.planning.goal import Judgement
from blis_py.planning.job import Outcome
from blis_py.planning.prices import Price
from blis_py.planning.trust import StepError

BURSTS = "bursts of arrivals: a quarter more of any one resource does not help"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A simulated configuration."""

    point: Point
    instances: int
    config: RunConfig
    gpus: int
    price: Price | None
    judgement: Judgement
    outcome: Outcome

    @property
    def dollars_per_hour(self) -> float | None:
        return None if self.price is None else self.price.per_hour * self.gpus

    def dollars_per_million(self, tokens: str) -> float | None:
        """Dollars per million `output` or `total` tokens, at the simulated load."""
        per_s = self.outcome.figures.get(f"throughput.{tokens}_tokens_per_s")
        if self.dollars_per_hour is None or not per_s:
            return None
        return self.dollars_per_hour / (per_s * 3600) * 1e6

    def __str__(self) -> str:
        """The configuration in one line."""
        facts, several = self.outcome.facts, "s" if self.instances > 1 else ""
        model, gpu = (facts.get(name) or getattr(self.config, name) for name in ("model", "gpu"))
        what = f"{self.instances} instance{several} of {model} on {gpu} TP{self.config.tp}"
        rest = {k: v for k, v in self.point.items() if k not in ("model", "gpu", "tp")}
        return what + "".join(f", {key} {value}" for key, value in rest.items())


@dataclass(frozen=True, slots=True)
class Standing:
    """Search result for one combination of settings."""

    point: Point
    least: int | None
    """Fewest instances found to meet all targets."""
    at_most: bool
    """Whether fewer than `least` may suffice: the search ended there because other combinations are cheaper,
    or only the first part of the arrivals was simulated, with an easy pass."""
    fails_at: int | None
    """Largest number of instances found to fail."""
    cost: float | None
    """Cost at `least` instances."""
    why: str
    """The judgement at the largest failing size, or the reason why the combination cannot be run."""


@dataclass(frozen=True)
class Found:
    """Result of a search, and its certainty."""

    best: Candidate
    """The cheapest candidate that meets all targets; if none does, the one that comes nearest."""
    objective: str
    """The minimised cost: dollars per hour, or GPUs."""
    runner_up: Candidate | None = None
    standings: tuple[Standing, ...] = ()
    lines: int = 1
    """Number of combinations, not counting the number of instances."""
    simulated: int = 0
    known: int = 0
    """Runs simulated, and runs whose outcome was in the store."""
    max_rate_factor: float | None = None
    """Largest factor on the arrival rate that meets all targets."""
    broken: Judgement | None = None
    """The judgement just above that rate."""
    levers: tuple[Lever, ...] = ()
    sensitivity: tuple[Case, ...] = ()
    models: tuple[Case, ...] = ()
    draws: tuple[Case, ...] = ()
    one_more: tuple[Case, ...] = ()
    """The same draws with one more instance, if the best candidate does not pass nearly all of them."""
    error: StepError | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def holds(self) -> bool:
        return self.best.judgement.holds

    @property
    def config(self) -> RunConfig:
        """Configuration of the best candidate: `blis.run(plan.config)` repeats its run."""
        return self.best.config

    @property
    def short(self) -> Lever | None:
        """The lever of the bottleneck at the failing rate; None without such a rate or an effective lever."""
        return analysis.short(self.levers)

    @property
    def binding(self) -> str | None:
        """The bottleneck at the failing rate: KV, compute, queueing, prefill interference, host; None if no
        tried rate fails."""
        if not self.levers:
            return None
        return BURSTS if self.short is None else self.short.resource

    @property
    def probability(self) -> float | None:
        """Probability that all targets are met under step-time uncertainty; None if unknown."""
        if not self.draws:
            return None
        return sum(case.judgement.holds for case in self.draws) / len(self.draws)

    @property
    def max_rate_per_s(self) -> float | None:
        offered = self.best.outcome.facts.get("offered_per_s")
        return None if self.max_rate_factor is None or offered is None else offered * self.max_rate_factor
