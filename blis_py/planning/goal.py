"""Targets of a configuration, and the slack by which it meets them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from blis_py.config.models import RunConfig
from blis_py.core.flag_texts import decimal
from blis_py.errors import InputError
from blis_py.metrics.load import SATURATED
from blis_py.metrics.registry import METRICS
from blis_py.metrics.slo import limit_and_measured
from blis_py.metrics.slo_words import latency, title_of
from blis_py.planning.job import FINE, HOPELESS, JobOutcome

ALL_REQUESTS = ""
DEFAULT_MAX_REQUESTS, DEFAULT_MAX_EXTENDED = 10_000, 50_000
_LOST = ("rejected", "unservable", "timed_out", "evicted")


@dataclass(frozen=True, slots=True)
class Requirement:
    """One target, as measured."""

    what: str
    """The target as the user wrote it, or its name."""
    limit: float
    measured: float | None
    unit: str
    slack: float
    """Relative slack: 1 = nothing of the limit is used up, 0 = all of it, negative = missed."""

    @property
    def met(self) -> bool:
        return self.slack >= 0

    @property
    def title(self) -> str:
        """The target in the field's words: `p99 TTFT`, `critical p99 TTFT`."""
        return self.what if self.unit in ("share", "per s") else title_of(self.what)

    def __str__(self) -> str:
        if self.unit == "ms":
            text = "is never reached" if self.measured is None else latency(self.measured, self.limit)
            return f"{self.title} {text} (target {latency(self.limit, self.measured)})"
        if self.unit == "per s":
            text = "none" if self.measured is None else _digits(self.measured)
            return f"{self.what} {text} (target: at least {_digits(self.limit)})"
        if self.unit != "share":
            text = "none" if self.measured is None else f"{self.measured:,.4g}"
            return f"{self.title} {text} (target {self.limit:,.4g}{self.unit and f' {self.unit}'})"
        text = "none" if self.measured is None else f"{100 * self.measured:.2f} %"
        return f"{self.what} {text} (target {100 * self.limit:g} %)"


@dataclass(frozen=True, slots=True)
class Judgement:
    """Verdict on a configuration, with all its requirements."""

    holds: bool
    requirements: tuple[Requirement, ...] = ()
    early_stop: str | None = None
    refused: str | None = None
    saturated: bool = False

    @property
    def tightest(self) -> Requirement | None:
        """The requirement with the least slack; None without a whole run."""
        return min(self.requirements, key=lambda each: each.slack, default=None)

    @property
    def slack(self) -> float:
        """The smallest slack; minus infinity if unknown."""
        return self.tightest.slack if self.tightest is not None else float("-inf")

    def __str__(self) -> str:
        if self.refused is not None:
            return self.refused
        if self.early_stop == HOPELESS:
            return "misses a target within the first part of the arrivals"
        if self.early_stop == FINE:
            return "meets all targets on the first part of the arrivals, with room to spare"
        missed = ", ".join(str(each) for each in self.requirements if not each.met)
        reasons = [missed] if missed else []
        reasons += ["the backlog grows"] if self.saturated else []
        return "; ".join(reasons) if reasons else str(self.tightest)


@dataclass(frozen=True, slots=True)
class Goal:
    """Targets besides the SLOs of the configuration.

    Attributes:
        attainment: least share of the requests that meet all their goodput targets, by SLO class; under the
        empty name, of all requests.
        max_lost: largest share of the requests that may be rejected, unservable or timed out.
    """

    attainment: Mapping[str, float] = field(default_factory=dict)
    max_lost: float = 0.0
    at_least: Mapping[str, float] = field(default_factory=dict)
    """Least figures of the run, by name of `AT_LEAST`."""
    most_requests: int = DEFAULT_MAX_REQUESTS
    """Requests of the longest run by which a configuration is judged; a workload that is longer already is
    taken as it is."""
    most_extended: int = DEFAULT_MAX_EXTENDED
    """The same for closed loops, whose start has to count for little, and for generated loads where a target
    is within the error of the sample."""
    unlimited: bool = False
    """Whether no target is needed: then the backlog must not grow, and no request be lost."""

    def check(self, config: RunConfig) -> None:
        """
        Raises:
            InputError: no target at all, or a run that would end before its requests do.
        """
        if not (config.slo or self.attainment or self.at_least or self.unlimited):
            fix = "add --slo ttft.p99=500ms, or --attainment 99% with --goodput ttft:500"
            raise InputError("no target is given", key="--slo", fix=fix)
        if config.horizon is not None:
            problem = "would hide the requests that are still waiting when it is reached"
            raise InputError(
                problem, key="--horizon", fix="bound the workload with --num-requests or --limit"
            )

    def judge(self, outcome: JobOutcome) -> Judgement:
        """Judge an outcome by all targets."""
        if outcome.refused is not None or outcome.failed is not None:
            return Judgement(False, refused=outcome.refused or outcome.failed)
        if outcome.early_stop is not None:
            return Judgement(outcome.early_stop == FINE, early_stop=outcome.early_stop)
        needed = (
            *self._slos(outcome),
            *self._shares(outcome),
            *self._least(outcome),
            self._lost(outcome),
        )
        saturated = outcome.verdict == SATURATED
        return Judgement(not saturated and all(each.met for each in needed), needed, saturated=saturated)

    @staticmethod
    def _slos(outcome: JobOutcome) -> list[Requirement]:
        """Verdicts on the SLOs; a limit on a latency without samples is missed.

        Raises:
            InputError: an SLO that applies to no request.
        """
        requirements = []
        for each in outcome.slo:
            if each["met"] is None:
                raise without_requests(each["slo"])
            requirements.append(requirement_of(each))
        return requirements

    def _shares(self, outcome: JobOutcome) -> list[Requirement]:
        """Attainment targets, by the share of requests that may and that do miss their limits."""
        requirements = []
        for name, target in self.attainment.items():
            if name == ALL_REQUESTS:
                share = outcome.figures.get("goodput.attainment")
            else:
                share = outcome.classes.get(name, {}).get("attainment")
            if share is None:
                raise without_targets(name)
            spare = 1 - target
            slack = 1 - (1 - share) / spare if spare else (1.0 if share >= 1 else share - 1)
            what = "attainment" if name == ALL_REQUESTS else f"{name}.attainment"
            requirements.append(Requirement(what, target, share, "share", slack))
        return requirements

    def _least(self, outcome: JobOutcome) -> list[Requirement]:
        """Figures that must not be lower."""
        requirements = []
        for name, target in self.at_least.items():
            measured = AT_LEAST[name](outcome.figures)
            slack = float("-inf") if measured is None else measured / target - 1
            requirements.append(Requirement(name, target, measured, "per s", slack))
        return requirements

    def _lost(self, outcome: JobOutcome) -> Requirement:
        injected = outcome.figures.get("requests.injected") or 0.0
        lost = sum(outcome.figures.get(f"requests.{name}") or 0.0 for name in _LOST)
        share = lost / injected if injected else 0.0
        slack = 1.0
        if share:
            slack = 1 - share / self.max_lost if self.max_lost else -share
        return Requirement("requests lost", self.max_lost, share, "share", slack)


def without_requests(slo: str) -> InputError:
    """The error of a limit on a class that no request has."""
    return InputError("applies to no request", key="--slo", value=slo, fix="name a class of the workload")


def without_targets(name: str) -> InputError:
    """The error of a share of requests none of which has a goodput target."""
    who = "no request" if name == ALL_REQUESTS else f"no request of class {name}"
    fix = "set goodput targets: --goodput ttft:500, or --slo-ttft CLASS=500ms"
    return InputError(f"{who} has a goodput target", key="--attainment", fix=fix)


def _digits(value: float) -> str:
    """Four significant digits, or all of a larger number's before the point."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def requirement_of(verdict: Mapping[str, Any]) -> Requirement:
    """The target of a verdict of `--slo`."""
    limit, measured, _ = limit_and_measured(verdict)
    slack = float("-inf") if measured is None else 1 - measured / limit
    what, unit = verdict["slo"].partition("=")[0], METRICS[verdict["metric"]].unit.name
    return Requirement(what, limit, measured, unit, slack)


def _per_user(figures: Mapping[str, float | None]) -> float | None:
    tpot_ms = figures.get("tpot_ms.mean")
    return 1000 / tpot_ms if tpot_ms else None


AT_LEAST: dict[str, Callable[[Mapping[str, float | None]], float | None]] = {
    "requests_per_s": lambda figures: figures.get("throughput.requests_per_s"),
    "output_tokens_per_s": lambda figures: figures.get("throughput.output_tokens_per_s"),
    "total_tokens_per_s": lambda figures: figures.get("throughput.total_tokens_per_s"),
    "goodput_per_s": lambda figures: figures.get("goodput.requests_per_s"),
    "tokens_per_s_per_user": _per_user,
}
"""Figures with a lower limit, by name; the tokens per second of a user are the inverse of the mean TPOT."""
THROUGHPUTS = frozenset(AT_LEAST) - {"tokens_per_s_per_user"}
"""Those that are counts over the time of the run, the time after the last arrival included."""


def parse_at_least(texts: Iterable[str]) -> dict[str, float]:
    """Lower limits from `output_tokens_per_s=5000`, several with commas.

    Raises:
        InputError: an unknown figure, or no positive number.
    """
    key = "--at-least"
    minima: dict[str, float] = {}
    for part in (part for text in texts for part in text.split(",")):
        name, _, number = (piece.strip() for piece in part.partition("="))
        if name not in AT_LEAST:
            raise InputError("unknown figure", key=key, value=part, fix=f"use {', '.join(AT_LEAST)}")
        try:
            value = decimal(number)
        except ValueError:
            value = math.nan
        if not 0 < value < math.inf:
            raise InputError("is not a lower limit", key=key, value=part, fix=f"write {name}=100")
        minima[name] = value
    return minima


def parse_attainment(text: str) -> dict[str, float]:
    """`99%` of all requests, or by class: `critical=99.9%,standard=95%`.

    Raises:
        InputError: not a share, or a duplicate class.
    """
    key = "--attainment"
    shares: dict[str, float] = {}
    for part in text.split(","):
        name, equals, number = (piece.strip() for piece in part.rpartition("="))
        share = parse_share(number, key=key, shown=part)
        if name in shares or (equals and not name) or share <= 0:
            raise InputError("must name every class once, with a share", key=key, value=text)
        shares[name] = share
    return shares


def parse_share(text: str, *, key: str, shown: str | None = None) -> float:
    """A share from its text: `1%` or `0.01`.

    Raises:
        InputError: neither form.
    """
    try:
        share = decimal(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        meant = share if 1 < share <= 100 else 99
        raise InputError(
            "is not a share", key=key, value=shown or text, fix=f"write {meant:g}% or {meant / 100:g}"
        )
    return share


def as_dict(judgement: Judgement) -> dict[str, Any]:
    """A judgement as plain data, for JSON."""
    return {
        "holds": judgement.holds,
        "why": str(judgement),
        "slack": None if judgement.slack == float("-inf") else judgement.slack,
        "requirements": [
            {"what": r.what, "limit": r.limit, "measured": r.measured, "unit": r.unit, "met": r.met}
            for r in judgement.requirements
        ],
    }
