"""Stricter examination of candidates: over longer durations, and under the errors of the prediction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from blis_py.config.models import RunConfig
from blis_py.metrics.load import OVERLOADED, SATURATED
from blis_py.metrics.slo import parse_slos
from blis_py.planning import analysis
from blis_py.planning._space import Space
from blis_py.planning.analysis import Case
from blis_py.planning.goal import Goal, Judgement, Requirement
from blis_py.planning.runner import Runner
from blis_py.planning.search import Probe, Search
from blis_py.planning.stationary import Sustained, sustained
from blis_py.planning.uncertainty import Errors, errors_of

UNLIKELY = 0.1
"""Share of the draws from which a number of instances is taken for possible."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A configuration under draws of the truth."""

    cases: tuple[Case, ...] = ()
    errors: Errors | None = None

    @property
    def share(self) -> float | None:
        """The share of draws in which all targets are met; None without draws."""
        if not self.cases:
            return None
        return sum(case.judgement.holds for case in self.cases) / len(self.cases)


def drawn(config: RunConfig, goal: Goal, runner: Runner, count: int, longer: Sustained) -> Drawn:
    """A configuration under draws; none if nothing is known of the errors.

    Args:
        longer: its run over a longer duration, which shows whether queues build up at times.
    """
    judged = [(each.metric, each.stat) for each in parse_slos(config.slo)]
    near = longer.outcome.verdict in (OVERLOADED, SATURATED)
    errors = errors_of(config, count, judged, near_saturation=near)
    return Drawn() if errors is None else drawn_from(errors, config, goal, runner, longer.analysed)


def drawn_from(errors: Errors, config: RunConfig, goal: Goal, runner: Runner, length: float) -> Drawn:
    """A configuration under given draws.

    Args:
        length: factor on the number of requests.
    """
    jobs = analysis.draws(config, errors, goal, length)
    return Drawn(tuple(analysis.drawn_cases(jobs, errors, goal, runner)), errors)


class Verifier:
    """Examinations of candidates, each done once."""

    def __init__(self, space: Space, search: Search, count: int) -> None:
        self._space, self._search, self._count = space, search, count
        self._sustained: dict[Probe, Sustained] = {}
        self._drawn: dict[Probe, Drawn] = {}
        self.bursts: list[Probe] = []
        """Candidates that hold for the duration of the workload, but not for longer."""
        self.unsure: list[Probe] = []
        """Candidates that hold, but in fewer draws than demanded."""

    def best(self, lines: Sequence[int], confidence: float | None = None) -> Probe | None:
        """The cheapest candidate that holds over longer durations and, with `confidence`, in this share of
        the draws.

        Cheaper ones that a short run failed by chance, or by its end, are judged by longer runs first.
        """
        while (probe := self._search.best(lines)) is not None:
            refuted = self._refuted(probe, confidence)
            if refuted is not None:
                self._search.rejudge(probe, refuted)
            elif not self._reinstated(probe, lines):
                return probe
        return None

    def sustained(self, probe: Probe) -> Sustained:
        space = self._space
        if probe not in self._sustained:
            self._sustained[probe] = sustained(
                space.config(probe), space.goal, space.runner, space.outcome(probe), space.at.length
            )
        return self._sustained[probe]

    def refuted_at(self, probe: Probe) -> float | None:
        """The length of the run that refuted a candidate; None if it holds, or failed before."""
        return self.sustained(probe).length if probe in self.bursts else None

    def drawn(self, probe: Probe) -> Drawn:
        space = self._space
        if probe not in self._drawn:
            longer = self.sustained(probe)
            self._drawn[probe] = drawn(space.config(probe), space.goal, space.runner, self._count, longer)
        return self._drawn[probe]

    def fewest(self, probe: Probe) -> int | None:
        """The fewest instances, with the settings of a candidate, that hold in one of ten of its draws; None
        if none do."""
        space, (line, size) = self._space, probe
        under = self.drawn(probe)
        if under.errors is None:
            return space.config(probe).instances
        if not _is_possible(under):
            larger = range(size + 1, space.largest(line) + 1)
            found = next((each for each in larger if self._is_possible_at(probe, line, each)), None)
            return None if found is None else space.config((line, found)).instances
        while size > 0 and self._is_possible_at(probe, line, size - 1):
            size -= 1
        return space.config((line, size)).instances

    def _is_possible_at(self, probe: Probe, line: int, size: int) -> bool:
        """Whether another size holds in one of ten of a candidate's draws."""
        space, errors = self._space, self.drawn(probe).errors
        if errors is None or not space.runs(line, size):
            return False
        length = self.sustained(probe).analysed
        return _is_possible(drawn_from(errors, space.config((line, size)), space.goal, space.runner, length))

    def _reinstated(self, best: Probe, lines: Sequence[int]) -> bool:
        """Whether a longer run lets a cheaper candidate hold that a shorter one failed; the nearest of each
        line is examined."""
        search, found = self._search, False
        for line in lines:
            size = search.most_failing(line)
            if size is None or search.cost((line, size)) >= search.cost(best):
                continue
            found |= self._holds_longer((line, size))
        return found

    def _holds_longer(self, probe: Probe) -> bool:
        search, space = self._search, self._space
        failed = search.known[probe]
        if failed.refused is not None or failed.early_stop is not None or probe in self._sustained:
            return False
        if not Sustained(failed, space.outcome(probe), space.at.length, False).may_hold:
            return False
        longer = self.sustained(probe)
        if longer.judgement.holds:
            space.adopt(probe, longer.outcome)
            self._sustained[probe] = replace(longer, begun=longer.length)
            search.rejudge(probe, longer.judgement)
        return longer.judgement.holds

    def _refuted(self, probe: Probe, confidence: float | None) -> Judgement | None:
        """The judgement of the examination that a candidate fails; None if it passes."""
        longer = self.sustained(probe)
        if not longer.judgement.holds:
            self.bursts.append(probe)
            return longer.judgement
        if confidence is None:
            return None
        share = self.drawn(probe).share
        if share is None or share >= confidence - 1e-9:
            return None
        self.unsure.append(probe)
        needed = Requirement("draws that meet all targets", confidence, share, "share", share - confidence)
        return replace(longer.judgement, holds=False, requirements=(*longer.judgement.requirements, needed))


def _is_possible(under: Drawn) -> bool:
    return (under.share or 0.0) >= UNLIKELY
