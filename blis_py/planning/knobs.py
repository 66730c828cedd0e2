"""Settings that cost nothing to change: token budget, sequences, scheduler, router, prefix cache.

They are tried around the cheapest candidate, at the next smaller size of its own combination and of those
that could become cheaper, before it is the answer: one at a time, and those that interact in all
combinations. Where a longer run refutes a change, single changes and pairs of them are judged over that
duration: a short run of a bursty load ranks them by chance. Settings that were given or are varied stay.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

from blis_py.config.models import RunConfig
from blis_py.planning._space import Space
from blis_py.planning.axes import Point
from blis_py.planning.goal import Judgement
from blis_py.planning.job import HOPELESS, Job, Variation
from blis_py.planning.result import Knobs
from blis_py.planning.search import Probe, Search

_KEYS = {
    "max_num_batched_tokens": "scheduler.max_num_batched_tokens",
    "max_num_seqs": "scheduler.max_num_seqs",
    "scheduler": "scheduler.policy",
    "routing_policy": "routing.policy",
    "prefix_cache": "scheduler.prefix_cache",
}
_FACTORS = (0.25, 0.5, 2.0, 4.0)
_OF_BUDGETS = (0.125, *_FACTORS)
_SCHEDULERS = {
    "vllm": ("fcfs", "priority-fcfs"),
    "sglang": ("fcfs", "priority-fcfs", "lpm", "dfs-weight"),
}
"""Those that the engine has."""
_ROUTERS = ("round-robin", "least-loaded", "weighted")
ROUNDS, _LINES = 3, 4
"""Settings changed one after the other, and combinations around which they are tried."""
INTERACTING = ("scheduler", "max_num_batched_tokens", "max_num_seqs")
"""Settings of which one may help only together with another."""
Best = Callable[[Sequence[int]], Probe | None]
"""The cheapest candidate among some lines."""
RefutedAt = Callable[[Probe], float | None]
"""The length of the run that refuted a candidate which held for a shorter one; None without."""


class _Trials:
    """Alternatives of candidates, one setting at a time."""

    def __init__(self, space: Space, rounds: int = ROUNDS, together: Sequence[str] = INTERACTING) -> None:
        self._space, self._rounds, self._together = space, rounds, together
        self.tried: dict[str, dict[object, None]] = {}
        self.kept: dict[str, None] = {}
        self._judged: dict[Probe, set[str]] = {}
        """Changes that were tried, by candidate."""

    @property
    def judged(self) -> int:
        """Combinations of values that were tried, of all candidates."""
        return sum(map(len, self._judged.values()))

    @property
    def possible(self) -> int:
        """All combinations of the values tried but those that change nothing, of the same candidates."""
        of_one = math.prod(len(values) for values in self.tried.values()) - 1
        return len(self._judged) * of_one

    def holding(self, probe: Probe) -> Point | None:
        """Settings with which a failing candidate holds; None if none are found.

        The first round has the combinations of settings that interact besides the single changes. Each round
        keeps the change that leaves the most slack; of several that hold, the one that holds with the fewest
        instances.
        """
        changes: Point = {}
        slack = float("-inf")
        for _ in range(self._rounds):
            cases = [*self._changed(probe, changes), *([] if changes else self._interacting(probe))]
            rated = self._rated(probe, cases, self._space.at)
            if not rated or rated[0][0].slack <= slack:
                return None
            if rated[0][0].holds:
                return self._farthest(probe, [each for judged, each in rated if judged.holds])
            slack, changes = rated[0][0].slack, rated[0][1]
        return None

    def _farthest(self, probe: Probe, holding: list[Point]) -> Point:
        """The one of some changes with which a candidate holds at the fewest instances.

        Sizes are halved as in a search along a line, with the changes that still hold.
        """
        line, most = probe
        least = 0
        while len(holding) > 1 and least < most:
            middle = (least + most) // 2
            rated = self._rated((line, middle), holding, self._space.at)
            if still := [each for judged, each in rated if judged.holds]:
                holding, most = still, middle
            else:
                holding, least = [each for _, each in rated], middle + 1
        return holding[0]

    def holding_longer(self, probe: Probe, length: float) -> Point | None:
        """One or two changes with which a candidate holds over a longer duration; None if none are found.

        Two are the best value of one setting with each value of the others, so that their number is at most
        that of the values times that of the settings.

        Args:
            length: factor on the number of requests.
        """
        at = Variation(length=length)
        singles = rated = self._rated(probe, list(self._changed(probe, {})), at)
        best: dict[str, Point] = {}
        for _, change in singles:
            best.setdefault(next(iter(change)), change)
        judged: list[Point] = []
        for change in best.values():
            if rated and rated[0][0].holds:
                break
            pairs = [each for each in self._changed(probe, change, others=True) if each not in judged]
            judged += pairs
            rated = self._rated(probe, pairs, at)
        return rated[0][1] if rated and rated[0][0].holds else None

    def _rated(self, probe: Probe, cases: Sequence[Point], at: Variation) -> list[tuple[Judgement, Point]]:
        """A candidate with each of some changes, the most slack first."""
        space = self._space
        self._judged.setdefault(probe, set()).update(repr(sorted(each.items())) for each in cases)
        jobs = [
            Job(space.changed(probe, each), at, stops_at=(HOPELESS,), max_lost=space.goal.max_lost)
            for each in cases
        ]
        judgements = [space.goal.judge(outcome) for outcome in space.runner.run(jobs)]
        return sorted(zip(judgements, cases, strict=True), key=lambda each: -each[0].slack)

    def _interacting(self, probe: Probe) -> list[Point]:
        """Combinations of several changes among settings that interact, where requests differ in priority."""
        config = self._space.changed(probe, {})
        if config.workload.spec is None and config.workload.trace is None:
            return []  # all requests are of one class
        by: dict[str, list[Point]] = {name: [{}] for name in self._together}
        for change in self._changed(probe, {}):
            (name,) = change
            if name in by:
                by[name].append(change)
        combined = [
            {k: v for part in parts for k, v in part.items()} for parts in itertools.product(*by.values())
        ]
        return [each for each in combined if len(each) > 1]

    def _changed(self, probe: Probe, changes: Point, *, others: bool = False) -> Iterator[Point]:
        """The changes so far with one setting changed further.

        Args:
            others: whether it is one that is not changed yet.
        """
        config = self._space.changed(probe, changes)
        fixed = {*(config.given or ()), *(each.key for each in self._space.axes)}
        for name, (now, values) in values_of(config).items():
            if others and name in changes:
                continue
            if _KEYS[name] in fixed and name not in changes:
                self.kept[name] = None
                continue
            self.tried.setdefault(name, {})[now] = None
            for value in values:
                self.tried[name][value] = None
                yield {**changes, name: value}


def values_of(config: RunConfig) -> dict[str, tuple[object, list[object]]]:
    """The value of each setting, and others worth a run."""
    own, engine = config.scheduler, config.engine.partition("-")[0]
    known = _SCHEDULERS.get(engine, ("fcfs", "priority-fcfs", "lpm"))
    budgets = [round(own.max_num_batched_tokens * factor) for factor in _OF_BUDGETS]
    seqs = [max(round(own.max_num_seqs * factor), 1) for factor in _FACTORS]
    caches = ["radix"] if engine == "sglang" else ["hash"]
    values: dict[str, tuple[object, list[object]]] = {
        "max_num_batched_tokens": (
            own.max_num_batched_tokens,
            [each for each in budgets if each >= max(own.max_num_seqs, own.block_size)],
        ),
        "max_num_seqs": (own.max_num_seqs, [each for each in seqs if each <= own.max_num_batched_tokens]),
        "scheduler": (own.policy, [each for each in known if each != own.policy]),
        "prefix_cache": (own.prefix_cache, [each for each in caches if each != own.prefix_cache]),
    }
    if config.instances > 1:
        now = config.routing.policy
        values["routing_policy"] = now, [each for each in _ROUTERS if each != now]
    return {name: (now, others) for name, (now, others) in values.items() if others}


def improved(
    space: Space,
    search: Search,
    lines: Sequence[int],
    cheapest: Probe | None,
    best: Best,
    refuted_at: RefutedAt,
    *,
    around: int = _LINES,
    rounds: int = ROUNDS,
    together: Sequence[str] = INTERACTING,
) -> tuple[Probe | None, list[int], Knobs]:
    """The cheapest candidate once settings are tried, the lines that were searched, and what was tried.

    Args:
        cheapest: with the settings as given; None if none holds.
        best: the cheapest verified candidate among some lines.
        refuted_at: the longer run by which a candidate was refuted.
        around: combinations around which settings are tried.
        rounds: settings changed one after the other.
        together: settings all combinations of which are tried.
    """
    trials, given, lines = _Trials(space, rounds, together), {*lines}, list(lines)
    first = cheapest
    examined: set[tuple[Probe, float | None]] = set()
    lengths: dict[Probe, float | None] = {}
    """Longer runs by which changes of a given combination were refuted."""
    while True:
        better = None
        for probe in _cheaper(space, search, lines, cheapest)[:around]:
            length = lengths.get(probe)
            if (probe, length) in examined:
                continue
            examined.add((probe, length))
            changes = trials.holding(probe) if length is None else trials.holding_longer(probe, length)
            if changes is not None and space.add(probe[0], changes):
                better = search.add(space.line(len(space.points) - 1))
                break
        if better is None:
            break
        lines.append(better)
        cheapest = best(lines)
        if probe[0] in given:
            lengths[probe] = refuted_at((better, probe[1])) or length
    tried = {name: tuple(values) for name, values in trials.tried.items()}
    before = None if first is None or cheapest == first else space.candidate(first)
    counts = {"judged": trials.judged, "possible": trials.possible}
    return cheapest, lines, Knobs(tried, tuple(trials.kept), before, **counts)


def _cheaper(space: Space, search: Search, lines: Sequence[int], best: Probe | None) -> list[Probe]:
    """The largest size of each combination that costs less than the candidate, nearest to it first."""
    bound = float("inf") if best is None else search.cost(best) * (1 - 1e-9)
    probes = []
    for line in lines:
        sizes = space.sizes[: space.largest(line) + 1]
        fits = [i for i, size in enumerate(sizes) if space.costs[line] * size < bound]
        if fits and space.runs(line):
            probes.append((line, fits[-1]))
    return sorted(probes, key=lambda probe: (best is None or probe[0] != best[0], -search.cost(probe)))
