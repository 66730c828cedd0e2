"""The candidates of a plan: combinations of settings as lines, numbers of instances along them."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace

from blis_py.config.models import RunConfig
from blis_py.errors import InputError
from blis_py.hardware.gpu import load_gpu
from blis_py.planning._suggest import MAX_AXES, suggested
from blis_py.planning.axes import Axis, Point, axis, grid
from blis_py.planning.fleets import devices_of, gpus_of, parts_of, price_of, unpriced
from blis_py.planning.goal import Goal, Judgement
from blis_py.planning.job import FINE, HOPELESS, Job, JobOutcome, Variation
from blis_py.planning.prices import Prices
from blis_py.planning.result import Candidate, Standing
from blis_py.planning.runner import Runner
from blis_py.planning.search import Probe, Search, SearchLine
from blis_py.planning.steady import steady_length
from blis_py.planning.study import Study
from blis_py.planning.targets import check_targets
from blis_py.planning.widths import sensible

INSTANCES = "num_instances"
DOLLARS, GPUS = "dollars per hour", "GPUs"

LineCallback = Callable[[str], None]
"""Callback with a line on the progress of the search."""

_NOT_FOR_SIZING = "trained-physics"
"""Latency model that is kept for parity with BLIS, whose default it is."""


class Space:
    """Candidates by line and size, with their runs.

    Raises:
        InputError: an unknown GPU, targets that cannot be judged, or no candidate that can be run.
    """

    def __init__(
        self,
        study: Study,
        axes: Sequence[Axis],
        sizes: Sequence[int],
        prices: Prices,
        goal: Goal,
        runner: Runner,
        on_progress: LineCallback,
        length: float = 1.0,
        most_gpus: int | None = None,
        widths: Sequence[Axis] = (),
    ) -> None:
        self.sizes, self.goal, self.runner, self.on_progress = sizes, goal, runner, on_progress
        axes = [*axes, *widths]
        self._study, self._axes, self._prices = study, [*axes, axis(INSTANCES, list(sizes))], prices
        self.axes, self._most_gpus, self._widths = axes, most_gpus, widths
        for each in axes:
            if each.name.rpartition(".")[2] == "gpu":
                for gpu in each.values:
                    load_gpu(str(gpu))  # an unknown name is a slip, and would have no price
        whole = grid(axes)
        self.points = sensible(whole) if widths else whole
        self.at = Variation(length=length)
        """The workload of all candidates: longer than given where few would decide (see `steady`)."""
        self._outcomes: dict[Probe, JobOutcome] = {}
        self._holding: dict[Probe, float] = {}
        """Costs of candidates that pass, or seem to after a part."""
        self._best: Probe | None = None
        self._configs: dict[Probe, RunConfig | str] = {}
        self._firsts = [self._config((line, 0)) for line in range(len(self.points))]
        if widths:
            self._drop_refused()
        place = {id(point): at for at, point in enumerate(whole)}
        self._grid = {place[id(point)]: line for line, point in enumerate(self.points)}
        for first in self._firsts:
            if isinstance(first, RunConfig):
                goal.check(first)
        runnable = [first for first in self._firsts if isinstance(first, RunConfig)]
        if not runnable:
            raise InputError(f"no configuration can be run: {self._firsts[0]}")
        check_targets(goal, runnable)
        prices.check([device for first in runnable for device in devices_of(first)])
        self._missing = [gpu for first in runnable for gpu in unpriced(first, prices)]
        self.objective = GPUS if self._missing else DOLLARS

        self.costs = [self._cost(first) if isinstance(first, RunConfig) else 1.0 for first in self._firsts]
        """Cost of one instance, by line."""

    def _drop_refused(self) -> None:
        """Leave out the combinations that cannot be run, where one can."""
        kept = [line for line, first in enumerate(self._firsts) if isinstance(first, RunConfig)]
        if kept:
            self.points, self._firsts = (
                [self.points[each] for each in kept],
                [self._firsts[each] for each in kept],
            )
            self._configs = {(line, 0): first for line, first in enumerate(self._firsts)}

    def line(self, line: int) -> SearchLine:
        """A combination as the search sees it."""
        first = self._config((line, 0))
        gpus = gpus_of(replace(first, num_instances=1)) if isinstance(first, RunConfig) else 1
        return SearchLine(self.costs[line], math.inf if self._most_gpus is None else self._most_gpus // gpus)

    def largest(self, line: int) -> int:
        """Index of the largest size of a line; -1 if even the smallest takes too many GPUs."""
        return bisect_right(self.sizes, self.line(line).most) - 1

    def _cost(self, config: RunConfig) -> float:
        """Cost of an instance, or of a whole fleet of pools."""
        price, gpus = price_of(config, self._prices), gpus_of(replace(config, num_instances=1))
        if self.objective == GPUS or price is None:
            return float(gpus)
        return gpus * price.per_hour

    def add(self, line: int, settings: Point) -> bool:
        """Add a line like another but for some settings; False if it cannot be run."""
        named = [axis(name, [value]) for name, value in settings.items()]
        self._axes = [each for each in self._axes if each.name not in settings] + named
        self.points.append({**self.points[line], **settings})
        first = self._config((len(self.points) - 1, 0))
        if not isinstance(first, RunConfig):
            self.points.pop()
            self._configs = {
                probe: known for probe, known in self._configs.items() if probe[0] < len(self.points)
            }
            return False
        self.costs.append(self._cost(first))
        return True

    def config(self, probe: Probe) -> RunConfig:
        """The configuration of a candidate that can be run."""
        config = self._config(probe)
        assert isinstance(config, RunConfig)
        return config

    def changed(self, probe: Probe, settings: Point) -> RunConfig:
        """The configuration of a candidate with other settings."""
        line, size = probe
        named = [axis(name, [value]) for name, value in settings.items()]
        axes = [*(each for each in self._axes if each.name not in settings), *named]
        point = {**self.points[line], INSTANCES: self.sizes[size], **settings}
        return drained(self._study.config(point, axes))

    def runs(self, line: int, size: int = 0) -> bool:
        """Whether a size of a line can be configured; by default the smallest."""
        return isinstance(self._config((line, size)), RunConfig)

    def outcome(self, probe: Probe) -> JobOutcome:
        return self._outcomes[probe]

    def is_mixed(self) -> bool:
        """Whether requests may differ in class: those of a spec or of a trace."""
        load = next(first for first in self._firsts if isinstance(first, RunConfig)).workload
        return load.spec is not None or load.trace is not None

    def holds(self, probe: Probe) -> bool:
        """Whether a candidate that was run meets all targets."""
        return self.goal.judge(self._outcomes[probe]).holds

    def adopt(self, probe: Probe, outcome: JobOutcome) -> None:
        """Take the outcome of a longer run as that of a candidate."""
        self._outcomes[probe] = outcome

    def search(self, search: Search, trials: int) -> list[int]:
        """The lines to search: all of them, or those suggested."""
        several = [each for each in self.axes if len(each.values) > 1]
        if len(several) <= MAX_AXES or len(self.points) <= trials:
            return list(range(len(self.points)))
        return suggested(several, search, trials, len(self.sizes), self._grid)

    def evaluate(self, probes: Sequence[Probe], may_stop: bool) -> list[Judgement]:
        jobs: dict[Probe, Job] = {}
        for probe in probes:
            config = self._config(probe)
            if isinstance(config, RunConfig):
                stops = (HOPELESS, FINE) if may_stop and not self.goal.attainment else ()
                jobs[probe] = Job(config, self.at, stops_at=stops, max_lost=self.goal.max_lost)
            else:
                self._outcomes[probe] = JobOutcome(refused=config)
        where = list(jobs)

        def note(index: int, outcome: JobOutcome, stored: bool) -> None:
            self._outcomes[where[index]] = outcome
            self._compare(where[index])
            self.on_progress(self._progress())

        outcomes = self.runner.run(list(jobs.values()), note)
        if self._extended(outcomes):
            return self.evaluate(probes, may_stop)
        return [self.goal.judge(self._outcomes[probe]) for probe in probes]

    def _extended(self, outcomes: Sequence[JobOutcome]) -> bool:
        """Whether candidates are judged by longer runs than these from now on."""
        length = max((steady_length(outcome, self.goal) for outcome in outcomes if outcome.ran), default=1.0)
        if self.at.length > 1 or length <= 1:
            return False
        self.at = Variation(length=length)
        return True

    def _compare(self, probe: Probe) -> None:
        """Keep the cheapest passing candidates; an early verdict is provisional until a whole run."""
        if self.goal.judge(self._outcomes[probe]).holds:
            self._holding[probe] = self.costs[probe[0]] * self.sizes[probe[1]]
            among = [probe] if self._best is None else [probe, self._best]
        elif self._holding.pop(probe, None) is not None and probe == self._best:
            among = list(self._holding)
        else:
            return
        self._best = min(among, key=lambda each: (self._holding[each], each[0]), default=None)

    def _progress(self) -> str:
        done = f"{len(self._outcomes):,} of {len(self.points) * len(self.sizes):,} configurations tried"
        if self._best is None:
            return f"{done}; none meets all targets yet"
        return f"{done}; so far {self.candidate(self._best)}"

    def candidate(self, probe: Probe) -> Candidate:
        config, outcome = self._config(probe), self._outcomes[probe]
        assert isinstance(config, RunConfig)
        judged, price = self.goal.judge(outcome), price_of(config, self._prices)
        parts, point = parts_of(config, self._prices), self.points[probe[0]]
        return Candidate(point, config.instances, config, gpus_of(config), price, judged, outcome, parts)

    def standings(self, search: Search, lines: Sequence[int]) -> tuple[Standing, ...]:
        return tuple(self._standing(search, line) for line in lines if not self._is_unasked(search, line))

    def count(self, search: Search) -> int:
        """Number of combinations, without those of the unasked ones that cannot be run."""
        return sum(not self._is_unasked(search, line) for line in range(len(self.points)))

    def _is_unasked(self, search: Search, line: int) -> bool:
        """Whether a combination of widths that are not given cannot be run."""
        failing = search.most_failing(line) if self._widths else None
        return failing is not None and search.known[line, failing].refused is not None

    def _standing(self, search: Search, line: int) -> Standing:
        least, failing = search.least(line), search.most_failing(line)
        judged = None if failing is None else search.known[line, failing]
        return Standing(
            point=self.points[line],
            least=None if least is None else self.config((line, least)).instances,
            at_most=least is not None and not search.settled(line),
            fails_at=None
            if judged is None or judged.refused is not None
            else self.config((line, failing or 0)).instances,
            cost=None if least is None else search.cost((line, least)),
            why="" if judged is None else str(judged),
            smallest=self.sizes[0],
        )

    def notes(self, best: Candidate) -> list[str]:
        notes = []
        if self._missing:
            gpus = ", ".join(dict.fromkeys(self._missing))
            notes.append(f"no price is known for {gpus}: the fewest GPUs are taken; add --price GPU=DOLLARS")
        elif best.price is not None and best.price.source != "as given":
            notes.append(f"prices: {best.price.source}")
        return notes

    def _config(self, probe: Probe) -> RunConfig | str:
        """The configuration, or the reason why it is invalid."""
        if probe not in self._configs:
            line, size = probe
            try:
                point = {**self.points[line], INSTANCES: self.sizes[size]}
                self._configs[probe] = for_sizing(self._study.config(point, self._axes))
            except InputError as error:
                self._configs[probe] = str(error)
        return self._configs[probe]


def for_sizing(config: RunConfig) -> RunConfig:
    """The configuration of a candidate, `drained`.

    Raises:
        InputError: it is priced by the published formula only because that is the engine's default.
    """
    if config.latency.model == _NOT_FOR_SIZING and "latency.model" not in (config.given or ()):
        problem = f"{_NOT_FOR_SIZING} is no basis for sizing: it prices prompts below the datasheet's bound"
        fix = f"use --latency-model trained, or ask for it by name: --latency-model {_NOT_FOR_SIZING}"
        raise InputError(problem, key="--engine", value=config.engine, fix=fix)
    return drained(config)


def drained(config: RunConfig) -> RunConfig:
    """The configuration without a horizon's cut-off: percentiles would miss requests still waiting at the
    end, and the same load at another rate takes another time."""
    return config if config.horizon is not None else replace(config, drain=True)
