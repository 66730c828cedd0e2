"""Data of a plan: candidates, the standing of each combination, and the analyses of the best one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from blis_py.config.models import RunConfig
from blis_py.planning import analysis
from blis_py.planning.analysis import Case, Lever
from blis_py.planning.axes import Point
from blis_py.planning.fleets import LAYOUT_NAMES, Part, is_count_of_pool
from blis_py.planning.goal import Judgement
from blis_py.planning.job import JobOutcome
from blis_py.planning.prices import Price
from blis_py.planning.stationary import HighestRate, Sustained
from blis_py.planning.uncertainty import Errors

_SERVED = "throughput.requests_per_s"
RATE = "requests per second"
"""The objective of a search for the highest rate."""
BURSTS = "bursts of arrivals (no single resource or setting helps)"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A simulated configuration."""

    point: Point
    instances: int
    config: RunConfig
    gpus: int
    price: Price | None
    judgement: Judgement
    outcome: JobOutcome
    parts: tuple[Part, ...] = ()
    """Pools with instances; empty without pools."""

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
        what = f"{self.instances} instance{several} of {model}"
        if len(self.parts) > 1:
            what += f": {', '.join(map(str, self.parts))}"
        elif self.parts:
            what += f" on {self.parts[0].gpu} TP{self.parts[0].tp}"
        else:
            what += f" on {gpu} TP{self.config.tp}"
        described = ("model", "gpu", "tp", *LAYOUT_NAMES)
        rest = {k: v for k, v in self.point.items() if k not in described and not is_count_of_pool(k)}
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
    smallest: int = 1
    """The smallest number of instances to choose from."""

    @property
    def tried(self) -> bool:
        return self.least is not None or bool(self.why)


@dataclass(frozen=True, slots=True)
class Rated:
    """The highest rate of one combination of settings."""

    candidate: Candidate
    rate: HighestRate

    @property
    def dollars_per_million(self) -> float | None:
        """Dollars per million output tokens at the highest rate."""
        one = self.candidate
        cost, served = one.dollars_per_million("output"), one.outcome.figures.get(_SERVED)
        return None if cost is None or not served or not self.rate.per_s else cost * served / self.rate.per_s


@dataclass(frozen=True)
class Knobs:
    """Settings that were tried around the winner."""

    tried: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    """Values by setting, those of the winner included."""
    kept: tuple[str, ...] = ()
    """Settings not tried because they are given or varied."""
    before: Candidate | None = None
    """The cheapest candidate with the settings as given; None if the answer has them, or if none holds."""
    judged: int = 0
    """Combinations of these values that were tried, of all candidates around which there are some."""
    possible: int = 0
    """All combinations of these values for the same candidates."""


@dataclass(frozen=True)
class PlanResult:
    """Result of a search, and its certainty."""

    best: Candidate
    """The cheapest candidate that meets all targets; if none does, the one that comes nearest."""
    objective: str
    """Quantity that is minimised: dollars per hour, or GPUs; or `requests per second`, which is maximised."""
    sustained: Sustained | None = None
    """The best candidate over longer durations of its load."""
    burst: Candidate | None = None
    """A cheaper candidate that meets all targets for the duration of the workload, but not for longer."""
    runner_up: Candidate | None = None
    standings: tuple[Standing, ...] = ()
    lines: int = 1
    """Number of combinations, not counting the number of instances."""
    knobs: Knobs | None = None
    rated: tuple[Rated, ...] = ()
    """The highest rates of all combinations, in descending order; empty unless that is the objective."""
    simulated: int = 0
    known: int = 0
    """Runs simulated, and runs whose outcome was in the store."""
    rate: HighestRate | None = None
    """None of a closed loop, which has no rate."""
    levers: tuple[Lever, ...] = ()
    sensitivity: tuple[Case, ...] = ()
    models: tuple[Case, ...] = ()
    draws: tuple[Case, ...] = ()
    drawn: bool = False
    """Whether draws were to be made; there are none where nothing is known of the errors."""
    confidence: float | None = None
    """The least share of draws that was demanded."""
    surer: Candidate | None = None
    """The cheapest candidate that holds in nine of ten draws, if the best one does not."""
    surer_holds: float | None = None
    """The share of draws in which it holds."""
    fewest: int | None = None
    """The fewest instances of the best one's settings that hold in one of ten draws."""
    central: Candidate | None = None
    """The cheapest candidate that holds by the prediction itself, if more confidence was demanded than it
    has."""
    central_holds: float | None = None
    error: Errors | None = None
    notes: tuple[str, ...] = field(default=())
    ended: str = ""
    """The reason why the search ended before its answer was confirmed and examined; empty if it did not."""

    @property
    def holds(self) -> bool:
        return self.best.judgement.holds

    @property
    def config(self) -> RunConfig:
        """Configuration of the best candidate: `blis.run(plan.config)` repeats its run.

        A generated workload has as many requests as candidates were judged by.
        """
        config, begun = self.best.config, self.sustained is not None and self.sustained.begun > 1
        if not begun or config.workload.trace is not None:
            return config
        requests = self.best.outcome.facts["requests"]
        return replace(config, workload=replace(config.workload, num_requests=requests))

    def dollars_per_million(self, tokens: str) -> float | None:
        """Dollars per million `output` or `total` tokens of the best candidate: at the highest rate where
        that is the objective, else at the simulated load."""
        cost, served = self.best.dollars_per_million(tokens), self.best.outcome.figures.get(_SERVED)
        if self.objective != RATE or cost is None or not served or not self.max_rate_per_s:
            return cost
        return cost * served / self.max_rate_per_s

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
        """Share of the draws in which all targets are met; None if nothing is known of the errors."""
        if not self.draws:
            return None
        return sum(case.judgement.holds for case in self.draws) / len(self.draws)

    @property
    def max_rate_factor(self) -> float | None:
        """Largest factor on the arrival rate that meets all targets."""
        return None if self.rate is None else self.rate.factor

    @property
    def max_rate_per_s(self) -> float | None:
        return None if self.rate is None else self.rate.per_s

    @property
    def broken(self) -> Judgement | None:
        """The judgement just above the highest rate."""
        return None if self.rate is None else self.rate.broken
