"""Whether an answer depends on the length of the workload: longer runs until it no longer changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from blis_py.config.models import RunConfig
from blis_py.planning.goal import THROUGHPUTS, Goal, Judgement
from blis_py.planning.intervals import undecided
from blis_py.planning.job import HOPELESS, Job, JobOutcome, Variation
from blis_py.planning.runner import Runner
from blis_py.planning.steady import MIN_REQUESTS, is_enough, is_steady, most_requests

RESOLUTION = 0.03
"""Relative precision of the highest rate."""
MAX_FACTOR, MIN_FACTOR = 100.0, 0.01
ANALYSED_REQUESTS = 3000
"""Requests of each run of an analysis, unless the workload has more."""
_GROWTH, _MIN_GROWTH, _MIN_GROWTH_ON_EDGE = 4, 2, 1.2
"""Factor from one tried duration to the next; the last one may be shorter, up to the longest run."""
_CLOSE = 0.05
"""Largest relative change of the tightest figure from one duration to the next."""
_SAME = 0.05
"""Largest relative change of the highest rate from one duration to the next."""
_UP, _DOWN = (1.25, 1.8), (0.8, 0.5)
_AROUND = (0.94, 1.03)
_FLANKS = (0.05, 0.12, 0.25, 0.5)
"""Relative distances from a highest rate at which certainty is sought."""


@dataclass(frozen=True, slots=True)
class Sustained:
    """A configuration over longer durations of its load."""

    judgement: Judgement
    outcome: JobOutcome
    length: float
    """Multiple of the workload's duration at which this is the judgement."""
    settled: bool
    """Whether a longer run would not change it; False: the workload cannot be extended far enough."""
    begun: float = 1.0
    """The multiple from which it is judged: in a closed loop, the start must count for little."""
    fixed: bool = False
    """Whether the workload cannot be extended at all."""

    @property
    def requests(self) -> int:
        return int(self.outcome.facts.get("requests", 0))

    @property
    def on_edge(self) -> bool:
        """Whether another sample of a generated load may turn the judgement over."""
        return on_edge(self.outcome, self.judgement)

    @property
    def ends_count(self) -> bool:
        """Whether targets are missed only because the time after the last arrival counts for throughput."""
        facts, missed = self.outcome.facts, [each for each in self.judgement.requirements if not each.met]
        offered, served = facts.get("offered_per_s"), self.outcome.figures.get("throughput.requests_per_s")
        if self.judgement.saturated or facts.get("closed") or not missed or not offered or not served:
            return False
        return all(
            each.what in THROUGHPUTS and (each.measured or 0.0) * offered / served >= each.limit
            for each in missed
        )

    @property
    def backlog_alone(self) -> bool:
        """Whether a recorded load meets all targets and only its backlog grows, as with a rate that rises
        towards the end."""
        facts, judgement = self.outcome.facts, self.judgement
        recorded = not facts.get("generated") and not facts.get("closed")
        return recorded and judgement.saturated and all(each.met for each in judgement.requirements)

    @property
    def may_hold(self) -> bool:
        """Whether the configuration meets its targets, or a longer run of it may."""
        return self.judgement.holds or self.on_edge or self.ends_count or self.backlog_alone

    @property
    def growth(self) -> float:
        """The least factor by which a longer run is worthwhile."""
        return _MIN_GROWTH_ON_EDGE if self.on_edge else _MIN_GROWTH

    @property
    def analysed(self) -> float:
        """The duration for analyses that compare many runs: long enough for a p99, and no longer."""
        least = max(self.begun, self.length * ANALYSED_REQUESTS / max(self.requests, 1))
        return max(min(self.length, least), 1.0)


class RateBounds(NamedTuple):
    """Factors on the arrival rate of a generated load between which the highest lies with 99 % confidence."""

    least: float | None = None
    """Meets all targets; None if none tried does for certain."""
    most: float | None = None
    """Misses one; None if none tried does for certain."""
    requests: int = 0
    """Requests of the longest run by which they are known."""


@dataclass(frozen=True, slots=True)
class HighestRate:
    """The highest rate at which a configuration meets its targets."""

    factor: float | None = None
    """On the arrival rate; None if every tried rate fails."""
    per_s: float | None = None
    """Requests per second, as offered in that run."""
    broken: Judgement | None = None
    """The judgement just above; None if the search ended at a hundredfold rate."""
    length: float = 1.0
    requests: int = 0
    span_s: float = 0.0
    """Length of the run at that rate."""
    settled: bool = True
    """Whether a longer run gives the same rate; False: it is the rate of a burst of this length, or known
    within bounds."""
    bounds: RateBounds | None = None
    """None of a recorded load, which is no sample."""

    def per_s_at(self, factor: float) -> float:
        """The requests per second that a factor stands for."""
        return factor * (self.per_s or 0.0) / (self.factor or 1.0)


def sustained(
    config: RunConfig, goal: Goal, runner: Runner, first: JobOutcome, begun: float = 1.0
) -> Sustained:
    """The judgement at four, sixteen, … times the duration, until it fails or no longer changes, or the
    longest run is reached.

    A generated load is a sample: it also goes on while a target lies within the 99 % interval of what was
    measured, whether that is met or missed. So does a run that misses a throughput by its end alone.

    Args:
        first: the outcome at `begun` times the duration of the workload.
    """
    result = Sustained(goal.judge(first), first, begun, is_steady(first, goal), begun)
    most = most_requests(first, goal)
    while result.may_hold and 0 < result.requests * result.growth <= most:
        length = result.length * min(_GROWTH, most / result.requests)
        outcome = runner.run([Job(config, Variation(length=length))])[0]
        judgement = goal.judge(outcome)
        if not outcome.ran or outcome.facts["requests"] <= result.requests:
            return replace(result, fixed=result.length == begun)
        settled = is_enough(outcome) and _alike(result.judgement, judgement)
        result = Sustained(judgement, outcome, length, settled, begun)
        if settled and not result.on_edge:
            break
    return result


def highest_rate(config: RunConfig, goal: Goal, runner: Runner, start: Sustained) -> HighestRate:
    """The largest factor on the arrival rate that meets all targets, to 3 %.

    The duration of the load is kept: a higher rate has more requests. It is made four times as long until
    the rate no longer changes; of a generated load, until a rate 5 % lower meets its targets, and one 5 %
    higher misses them, with 99 % confidence; where no run is long enough for that, with wider bounds. Two
    rates are tried at a time, independent of the number of workers; a configuration that meets its targets at
    one rate is assumed to meet them at lower ones.

    Args:
        start: the configuration at its own rate.
    """
    search = _RateSearch(config, goal, runner, start)
    length = search.first_length()
    rate = search.at(length, search.bracket())
    if start.judgement.holds and (rate.factor or 0.0) < 1 and length < start.length:
        length = search.as_long_as_start()  # the ends of a shorter run count for more of its throughput
        rate = search.at(length, search.bracket())
    sampled = bool(start.outcome.facts.get("intervals") and start.outcome.facts.get("generated"))
    while True:
        if sampled:
            rate = search.bounded(rate, _FLANKS[:1], rate.length)
        more = None if rate.bounds is not None else search.longer(rate, length)
        if more is None:
            break
        length = more
        before, rate = rate, search.at(length, search.around(rate))
        if not sampled and _same(before, rate) and (rate.factor is None or rate.requests >= MIN_REQUESTS):
            return rate
    if not sampled:
        return replace(rate, settled=False)
    return search.bounded(rate, _FLANKS, search.longest(rate))


class _RateSearch:
    """Search for the highest rate at given durations."""

    def __init__(self, config: RunConfig, goal: Goal, runner: Runner, start: Sustained) -> None:
        self._config, self._goal, self._runner, self._start = config, goal, runner, start
        self._base = max(round(start.requests / start.length), 1)
        holds = start.judgement.holds
        self._first = start.length / _GROWTH if holds else start.length
        self._most = goal.most_requests if holds else max(goal.most_requests, start.requests)

    def first_length(self) -> float:
        """The duration of the first runs: a quarter of that at which the judgement no longer changed, or all
        of it where that misses a target, which a shorter run may meet by chance."""
        return max(min(self._first, self._most / self._base), 1.0)

    def as_long_as_start(self) -> float:
        """The duration of the configuration at its own rate, which later runs may have, too."""
        self._most = max(self._most, self._start.requests)
        return self._start.length

    def bracket(self) -> list[float]:
        """The first factors to try."""
        return [1.0, _UP[0]] if self._start.judgement.holds else [_DOWN[0], 1.0]

    @staticmethod
    def around(rate: HighestRate) -> list[float]:
        return [_AROUND[0] * MIN_FACTOR] if rate.factor is None else [rate.factor * x for x in _AROUND]

    def longer(self, rate: HighestRate, length: float) -> float | None:
        """The next duration to try; None if it cannot be longer."""
        if rate.factor is None or rate.factor >= MAX_FACTOR:
            return None
        per_length = self._base * max(rate.factor, 1.0)
        if rate.requests < 0.9 * per_length * length:
            return None  # the workload cannot be extended
        next_length = min(length * _GROWTH, self._most / per_length)
        return next_length if next_length >= _MIN_GROWTH * length else None

    def at(self, length: float, factors: Sequence[float]) -> HighestRate:
        """The highest rate at a duration, from first factors to try."""
        low: float | None = None
        high: float | None = None
        broken: Judgement | None = None
        held: JobOutcome | None = None
        while factors:
            for factor, outcome in zip(factors, self._outcomes(factors, length), strict=True):
                judgement = self._goal.judge(outcome)
                if judgement.holds and (high is None or factor < high):
                    if low is None or factor > low:
                        low, held = factor, outcome
                elif not judgement.holds and (high is None or factor <= high):
                    high, broken = factor, judgement
            factors = next_factors(low, high)
        facts = {} if held is None else held.facts
        return HighestRate(
            low,
            facts.get("offered_per_s"),
            broken,
            length,
            int(facts.get("requests", 0)),
            float(facts.get("span_s", 0.0)),
        )

    def longest(self, rate: HighestRate) -> float:
        """The longest duration, for the bounds of a rate."""
        most = most_requests(self._start.outcome, self._goal)
        return max(most / (self._base * max(rate.factor or 1.0, 1.0)), rate.length)

    def bounded(self, rate: HighestRate, widths: Sequence[float], length: float) -> HighestRate:
        """A rate with the nearest bounds, of these relative distances, that are certain over a duration."""
        if rate.bounds is not None or rate.factor is None or rate.broken is None:
            return rate
        bounds, requests = RateBounds(), 0
        for width in widths:
            sides = [1 - width] * (bounds.least is None) + [1 + width] * (bounds.most is None)
            factors = [rate.factor * side for side in sides]
            for factor, outcome in zip(factors, self._outcomes(factors, length, whole=True), strict=True):
                judgement = self._goal.judge(outcome)
                requests = max(requests, int(outcome.facts.get("requests", 0)))
                if not on_edge(outcome, judgement) and judgement.holds == (factor < rate.factor):
                    bounds = (
                        bounds._replace(least=factor) if judgement.holds else bounds._replace(most=factor)
                    )
            if None not in bounds[:2]:
                break
        if len(widths) == 1 and (None in bounds[:2] or requests < MIN_REQUESTS):
            return rate
        near = None not in bounds[:2] and width == _FLANKS[0]
        return replace(rate, settled=near, bounds=bounds._replace(requests=requests))

    def _outcomes(self, factors: Sequence[float], length: float, *, whole: bool = False) -> list[JobOutcome]:
        jobs = [
            Job(
                self._config,
                Variation(rate=factor, length=self._length(length, factor, whole=whole)),
                stops_at=() if whole else (HOPELESS,),
                max_lost=self._goal.max_lost,
            )
            for factor in factors
        ]
        return self._runner.run(jobs)

    def _length(self, length: float, factor: float, *, whole: bool = False) -> float:
        """Factor on the number of requests that keeps the duration, as far as a run may be that long."""
        most = most_requests(self._start.outcome, self._goal) if whole else self._most
        return max(min(length * max(factor, 1.0), most / self._base), 1.0)


def on_edge(outcome: JobOutcome, judgement: Judgement) -> bool:
    """Whether another sample of a generated load may turn a judgement over: a target lies within the interval
    of what was measured, and no other is missed for certain."""
    if not outcome.facts.get("generated") or judgement.saturated:
        return False
    unsure = {text.partition("=")[0] for text, _ in undecided(outcome)}
    return bool(unsure) and all(each.met or each.what in unsure for each in judgement.requirements)


def next_factors(low: float | None, high: float | None) -> list[float]:
    """Factors to try, ascending; none once the precision is reached."""
    if low is not None and high is not None:
        return [] if high / low <= 1 + RESOLUTION else _between(low, high)
    if low is not None:
        return [] if low >= MAX_FACTOR else [low * factor for factor in _UP]
    assert high is not None
    return [] if high <= MIN_FACTOR else sorted(high * factor for factor in _DOWN)


def _between(low: float, high: float) -> list[float]:
    return [low + (high - low) * part for part in (1 / 3, 2 / 3)]


def _same(one: HighestRate, other: HighestRate) -> bool:
    if one.factor is None or other.factor is None:
        return one.factor == other.factor
    return abs(other.factor / one.factor - 1) <= _SAME


def _alike(one: Judgement, other: Judgement) -> bool:
    """Whether the tightest figure is about the same."""
    tightest = other.tightest
    before = next((each for each in one.requirements if tightest and each.what == tightest.what), None)
    if tightest is None or before is None or not before.measured or tightest.measured is None:
        return one.holds == other.holds
    return abs(tightest.measured / before.measured - 1) <= _CLOSE
