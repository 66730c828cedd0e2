"""Whether an answer depends on the length of the workload: longer runs until it no longer changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from blis_py.config.models import RunConfig
from blis_py.metrics.load import TOO_SHORT
from blis_py.planning.goal import Goal, Judgement
from blis_py.planning.job import HOPELESS, Job, JobOutcome, Variation
from blis_py.planning.runner import Runner
from blis_py.planning.steady import MIN_REQUESTS, is_steady

RESOLUTION = 0.03
"""Relative precision of the highest rate."""
MAX_FACTOR, MIN_FACTOR = 100.0, 0.01
ANALYSED_REQUESTS = 3000
"""Of each run of an analysis, unless the workload has more."""
_GROWTH, _MIN_GROWTH = 4, 2
"""Factor from one tried duration to the next; the last one may be shorter, up to the longest run."""
_CLOSE = 0.05
"""Largest relative change of the tightest figure from one duration to the next."""
_SAME = 0.05
"""Largest relative change of the highest rate from one duration to the next."""
_UP, _DOWN = (1.25, 1.8), (0.8, 0.5)
_AROUND = (0.94, 1.03)


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

    @property
    def requests(self) -> int:
        return int(self.outcome.facts.get("requests", 0))

    @property
    def analysed(self) -> float:
        """The duration for analyses that compare many runs: long enough for a p99, and no longer."""
        least = max(self.begun, self.length * ANALYSED_REQUESTS / max(self.requests, 1))
        return max(min(self.length, least), 1.0)


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
    """Of the run at that rate."""
    settled: bool = True
    """Whether a longer run gives the same rate; False: it is the rate of a burst of this length."""


def sustained(
    config: RunConfig, goal: Goal, runner: Runner, first: JobOutcome, begun: float = 1.0
) -> Sustained:
    """The judgement at four, sixteen, … times the duration, until it fails or no longer changes, or the
    longest run is reached.

    Args:
        first: the outcome at `begun` times the duration of the workload.
    """
    found = Sustained(goal.judge(first), first, begun, is_steady(first, goal), begun)
    while found.judgement.holds and 0 < found.requests * _MIN_GROWTH <= goal.most_requests:
        length = found.length * min(_GROWTH, goal.most_requests / found.requests)
        outcome = runner.run([Job(config, Variation(length=length))])[0]
        judgement = goal.judge(outcome)
        if not outcome.ran or outcome.facts["requests"] <= found.requests:
            return found
        enough = outcome.facts["requests"] >= MIN_REQUESTS and outcome.verdict != TOO_SHORT
        settled = enough and _alike(found.judgement, judgement)
        found = Sustained(judgement, outcome, length, settled, begun)
        if settled:
            break
    return found


def highest_rate(config: RunConfig, goal: Goal, runner: Runner, start: Sustained) -> HighestRate:
    """The largest factor on the arrival rate that meets all targets, to 3 %.

    The duration of the load is kept: a higher rate has more requests. It is made four times as long until
    the rate no longer changes. Two rates are tried at a time, independent of the number of workers; a
    configuration that meets its targets at one rate is assumed to meet them at lower ones.

    Args:
        start: the configuration at its own rate.
    """
    search = _RateSearch(config, goal, runner, start)
    length = max(start.length / _GROWTH, 1.0)
    found = search.at(length, search.bracket())
    while (more := search.longer(found, length)) is not None:
        length = more
        before, found = found, search.at(length, search.around(found))
        if _same(before, found) and (found.factor is None or found.requests >= MIN_REQUESTS):
            return found
    return replace(found, settled=False)


class _RateSearch:
    """Search for the highest rate at given durations."""

    def __init__(self, config: RunConfig, goal: Goal, runner: Runner, start: Sustained) -> None:
        self._config, self._goal, self._runner, self._start = config, goal, runner, start
        self._base = max(round(start.requests / start.length), 1)

    def bracket(self) -> list[float]:
        """The first factors to try."""
        return [1.0, _UP[0]] if self._start.judgement.holds else [_DOWN[0], 1.0]

    @staticmethod
    def around(found: HighestRate) -> list[float]:
        return [_AROUND[0] * MIN_FACTOR] if found.factor is None else [found.factor * x for x in _AROUND]

    def longer(self, found: HighestRate, length: float) -> float | None:
        """The next duration to try; None if it cannot be longer."""
        if found.factor is None or found.factor >= MAX_FACTOR:
            return None
        per_length = self._base * max(found.factor, 1.0)
        if found.requests < 0.9 * per_length * length:
            return None  # the workload cannot be extended
        next_length = min(length * _GROWTH, self._goal.most_requests / per_length)
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

    def _outcomes(self, factors: Sequence[float], length: float) -> list[JobOutcome]:
        jobs = [
            Job(
                self._config,
                Variation(rate=factor, length=self._length(length, factor)),
                stops_at=(HOPELESS,),
                max_lost=self._goal.max_lost,
            )
            for factor in factors
        ]
        return self._runner.run(jobs)

    def _length(self, length: float, factor: float) -> float:
        """Factor on the number of requests that keeps the duration, as far as a run may be that long."""
        return max(min(length * max(factor, 1.0), self._goal.most_requests / self._base), 1.0)


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
