"""What a plan consists of: candidates, what is known of each combination, and of the best one everything."""

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
    """A configuration that was looked at."""

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
        """Of `output` or `total` tokens, at the load it was simulated with."""
        per_s = self.outcome.figures.get(f"throughput.{tokens}_tokens_per_s")
        if self.dollars_per_hour is None or not per_s:
            return None
        return self.dollars_per_hour / (per_s * 3600) * 1e6

    def __str__(self) -> str:
        """What it is, in one line."""
        facts, several = self.outcome.facts, "s" if self.instances > 1 else ""
        model, gpu = (facts.get(name) or getattr(self.config, name) for name in ("model", "gpu"))
        what = f"{self.instances} instance{several} of {model} on {gpu} TP{self.config.tp}"
        rest = {k: v for k, v in self.point.items() if k not in ("model", "gpu", "tp")}
        return what + "".join(f", {key} {value}" for key, value in rest.items())


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of one combination of settings."""

    point: Point
    least: int | None
    """Instances that hold, as far as that was found out."""
    at_most: bool
    """Fewer than `least` may do: nobody looked any more, since others are cheaper; or nothing more was
    simulated of it than the first part of the arrivals, which was easy."""
    fails_at: int | None
    """Most instances that do not."""
    cost: float | None
    """Of `least`."""
    why: str
    """What the largest number that does not hold comes to, or why there is none at all."""


@dataclass(frozen=True)
class Found:
    """What a search came to, and how sure it is."""

    best: Candidate
    """The cheapest that holds; where none does, the one that comes nearest."""
    objective: str
    """What is least: dollars per hour, or GPUs."""
    runner_up: Candidate | None = None
    standings: tuple[Standing, ...] = ()
    lines: int = 1
    """Combinations that there are, the number of instances apart."""
    simulated: int = 0
    known: int = 0
    """Runs that were simulated, and those whose outcome was stored."""
    max_rate_factor: float | None = None
    """Largest factor on the rate at which it holds."""
    broken: Judgement | None = None
    """What it misses a little above."""
    levers: tuple[Lever, ...] = ()
    sensitivity: tuple[Case, ...] = ()
    models: tuple[Case, ...] = ()
    draws: tuple[Case, ...] = ()
    one_more: tuple[Case, ...] = ()
    """The same draws with one instance more, where it does not hold in nearly all of them."""
    error: StepError | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def holds(self) -> bool:
        return self.best.judgement.holds

    @property
    def config(self) -> RunConfig:
        """Of the best: `blis.run(plan.config)` runs it again."""
        return self.best.config

    @property
    def short(self) -> Lever | None:
        """The lever of what is short where it breaks; None where it does not, or none of them helps."""
        return analysis.short(self.levers)

    @property
    def binding(self) -> str | None:
        """What is short where it breaks: KV, compute, queueing, prefill interference, host; None where it
        does not break."""
        if not self.levers:
            return None
        return BURSTS if self.short is None else self.short.resource

    @property
    def probability(self) -> float | None:
        """That it holds, given what step times may be off; None where nobody knows."""
        if not self.draws:
            return None
        return sum(case.judgement.holds for case in self.draws) / len(self.draws)

    @property
    def max_rate_per_s(self) -> float | None:
        offered = self.best.outcome.facts.get("offered_per_s")
        return None if self.max_rate_factor is None or offered is None else offered * self.max_rate_factor
