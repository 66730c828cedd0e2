"""The cheapest configuration that meets its targets, and its analysis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from blis_py.config.models import DESCRIPTIONS, RunConfig
from blis_py.core.bounds import MAX_INSTANCES
from blis_py.errors import InputError
from blis_py.latency.fitted_profile import read_profile
from blis_py.latency.fitted_shape import datasheet_of
from blis_py.outputs.staging import Outputs
from blis_py.planning import analysis
from blis_py.planning.analysis import Case
from blis_py.planning.axes import Axis, axis, grid
from blis_py.planning.goal import Goal, Judgement
from blis_py.planning.job import FINE, HOPELESS, Job, JobOutcome
from blis_py.planning.prices import Prices
from blis_py.planning.result import Candidate, PlanResult, Standing
from blis_py.planning.runner import Runner
from blis_py.planning.search import Probe, Search, SearchLine
from blis_py.planning.study import Base
from blis_py.planning.suggest import MAX_AXES, suggested
from blis_py.planning.uncertainty import StepError, step_error

if TYPE_CHECKING:
    from blis_py.figures.style import Picture

INSTANCES = "num_instances"
DEFAULT_SIZES = range(1, 33)
DRAWS, TRIALS = 20, 64
SURE = 0.9
"""Below this probability the plan also gives the effect of one more instance."""
_NOT_CHOSEN = ("workload", "seed", "latency", *DESCRIPTIONS, "goodput", "frontend_ms")
_DOLLARS, _GPUS = "dollars per hour", "GPUs"

Told = Callable[[str], None]
"""Callback with a line on the progress of the search."""


class Plan(PlanResult):
    """Result of a search; displays itself and saves itself into a folder."""

    @property
    def summary(self) -> dict[str, Any]:
        """The complete plan as plain data for JSON."""
        from blis_py.planning.report_text import summary

        return summary(self)

    def __repr__(self) -> str:
        from blis_py.planning.report_text import answer

        return answer(self)

    def plot(self) -> Picture:
        """Picture of cost, sensitivity, other latency models and bottleneck."""
        from blis_py.planning.pictures import draw

        return draw(self)

    def save(self, folder: str, *, force: bool = False, plots: bool = True) -> None:
        """Write `plan.json`, `config.yaml`, `standings.csv`, server start scripts, and the picture."""
        from blis_py.planning.files import fill

        with Outputs() as outputs:
            fill(outputs.folder(folder, force=force), self, plots=plots)


def plan(
    base: Base,
    axes: Sequence[Axis],
    runner: Runner,
    *,
    goal: Goal,
    prices: Prices,
    sizes: Sequence[int] | None = None,
    trials: int = TRIALS,
    draws: int = DRAWS,
    told: Told | None = None,
) -> Plan:
    """Find the cheapest configuration of a space that meets all targets.

    Args:
        axes: the settings to choose from; numbers of instances among them, or as `sizes`.
        trials: combinations to try where there are more than that, of more than three axes.
        draws: runs with other step times, for the probability; 0 = none.

    Raises:
        InputError: no target, nothing runnable, contradictory settings.
    """
    sizes, axes = _sizes(sizes, axes)
    _check_choices(axes)
    base.check([*axes, axis(INSTANCES, list(sizes))])
    space = _Space(base, axes, sizes, prices, goal, runner, told or (lambda line: None))
    search = Search([SearchLine(cost) for cost in space.costs], sizes, space.ask)
    lines = space.search(search, trials)
    found = search.best(lines)
    if found is None:
        return _nothing_holds(space, search, lines)
    rest = [line for line in lines if line != found[0]]
    second = search.best(rest) if rest else None
    best = space.candidate(found)
    runner_up = None if second is None else space.candidate(second)
    standings = space.standings(search, lines)
    space.told(f"{best}: how far, and how sure")
    outcome = Plan(best, space.objective, runner_up, standings, len(space.points))
    return examined(outcome, goal, runner, draws, space.notes(best))


def max_rate(config: RunConfig, runner: Runner, *, goal: Goal, prices: Prices, draws: int = DRAWS) -> Plan:
    """Find the highest rate at which a given cluster meets its targets, and the bottleneck there.

    Raises:
        InputError: no target, a cluster that cannot be run, or a closed loop, which has no rate.
    """
    goal.check(config)
    _refuse_pools(config)
    prices.check([device_of(config)])
    config = _drained(config)
    if config.workload.concurrency is not None:
        fix = "sweep over it: blis sweep --vary concurrency=1:64"
        raise InputError("a closed loop has no rate", key="--concurrency", fix=fix)
    outcome = runner.run([Job(config)])[0]
    if not outcome.ran:
        raise InputError(str(outcome.refused or outcome.failed))
    best = Candidate(
        {},
        config.num_instances,
        config,
        _gpus(config),
        prices.of(device_of(config)),
        goal.judge(outcome),
        outcome,
    )
    return examined(Plan(best, "the rate"), goal, runner, draws, [])


def examined(found: Plan, goal: Goal, runner: Runner, draws: int, notes: Sequence[str]) -> Plan:
    """A plan with all analyses of its best candidate."""
    best = found.best
    config = best.config
    factor, broken = None, None
    if config.workload.concurrency is None:
        factor, broken = analysis.highest_rate(config, goal, runner, holds=best.judgement.holds)
    error = step_error(config)
    jobs = analysis.sensitivity(config) | analysis.other_models(config)
    if best.judgement.holds:
        jobs |= analysis.draws(config, error, draws, goal)
    names = [*jobs]
    if broken is not None or not best.judgement.holds:
        blocks = round((best.outcome.figures.get("kv_blocks") or 0) / max(best.instances, 1))
        breaks_at = analysis.beyond(factor) if factor is not None else 1.0
        pulled = analysis.levers(config, breaks_at, blocks) if blocks else {}
        jobs |= {f"lever {name}": job for name, job in pulled.items()}
    cases = {case.name: case for case in analysis.cases_of(jobs, goal, runner)}
    drawn = tuple(cases[name] for name in names if name.startswith("draw "))
    pulled_cases = [
        replace(c, name=n.removeprefix("lever ")) for n, c in cases.items() if n.startswith("lever")
    ]
    return replace(
        found,
        max_rate_factor=factor,
        broken=broken,
        levers=tuple(analysis.binding(pulled_cases)) if pulled_cases else (),
        sensitivity=tuple(cases[name] for name in names if "×" in name),
        models=tuple(cases[name] for name in names if name.startswith("model ")),
        draws=drawn,
        one_more=_one_more(config, error, drawn, goal, runner),
        error=error,
        simulated=runner.done,
        known=runner.found,
        notes=(*notes, *_warnings(best)),
    )


def _one_more(
    config: RunConfig, error: StepError | None, drawn: Sequence[Case], goal: Goal, runner: Runner
) -> tuple[Case, ...]:
    held = sum(case.judgement.holds for case in drawn)
    if held >= SURE * len(drawn):
        return ()
    more = replace(config, num_instances=config.num_instances + 1)
    return tuple(analysis.cases_of(analysis.draws(more, error, len(drawn), goal), goal, runner))


def _warnings(best: Candidate) -> list[str]:
    """Warnings from the best candidate's own run."""
    notes = list(best.outcome.facts.get("notes", ()))
    if best.outcome.verdict == "too short to tell":
        notes.append("the workload is too short to tell whether the cluster keeps up: give more requests")
    return notes


def _nothing_holds(space: _Space, search: Search, lines: Sequence[int]) -> Plan:
    """The plan for the candidate nearest to the targets, among the largest size of every line."""
    last = len(space.sizes) - 1
    refused = [told.refused for told in search.known.values() if told.refused is not None]
    able = [line for line in lines if search.first_judged(line).refused is None]
    if not able:
        raise InputError(f"no configuration can be run: {refused[0]}")
    search.whole([(line, last) for line in able])
    nearest = max(((line, last) for line in able), key=lambda probe: (search.known[probe].slack, -probe[0]))
    best = space.candidate(nearest)
    found = Plan(best, space.objective, None, space.standings(search, lines), len(space.points))
    return examined(found, space.goal, space.runner, 0, space.notes(best))


class _Space:
    """Candidates by line and size, with their runs."""

    def __init__(
        self,
        base: Base,
        axes: Sequence[Axis],
        sizes: Sequence[int],
        prices: Prices,
        goal: Goal,
        runner: Runner,
        told: Told,
    ) -> None:
        self.sizes, self.goal, self.runner, self.told = sizes, goal, runner, told
        self._base, self._axes, self._prices = base, [*axes, axis(INSTANCES, list(sizes))], prices
        self.axes = axes
        self.points = grid(axes)
        self._outcomes: dict[Probe, JobOutcome] = {}
        self._holding: dict[Probe, float] = {}
        """Costs of candidates that pass, or seem to after a part."""
        self._best: Probe | None = None
        self._configs: dict[Probe, RunConfig | str] = {}
        self._firsts = [self._config((line, 0)) for line in range(len(self.points))]
        for first in self._firsts:
            if isinstance(first, RunConfig):
                goal.check(first)
                _refuse_pools(first)
        runnable = [first for first in self._firsts if isinstance(first, RunConfig)]
        if not runnable:
            raise InputError(f"no configuration can be run: {self._firsts[0]}")
        devices = [device_of(first) for first in runnable]
        prices.check(devices)
        self._missing = prices.missing(devices)
        self.objective = _GPUS if self._missing else _DOLLARS

        self.costs = [self._cost(first) if isinstance(first, RunConfig) else 1.0 for first in self._firsts]
        """Cost of one instance, by line."""

    def _cost(self, config: RunConfig) -> float:
        price = self._prices.of(device_of(config))
        if self.objective == _GPUS or price is None:
            return float(config.tp)
        return config.tp * price.per_hour

    def search(self, search: Search, trials: int) -> list[int]:
        """The lines to search: all of them, or those suggested."""
        several = [each for each in self.axes if len(each.values) > 1]
        if len(several) <= MAX_AXES or len(self.points) <= trials:
            return list(range(len(self.points)))
        return suggested(several, search, trials, len(self.sizes))

    def ask(self, probes: Sequence[Probe], may_stop: bool) -> list[Judgement]:
        jobs: dict[Probe, Job] = {}
        for probe in probes:
            config = self._config(probe)
            if isinstance(config, RunConfig):
                stops = (HOPELESS, FINE) if may_stop and not self.goal.attainment else ()
                jobs[probe] = Job(config, stops_at=stops, max_lost=self.goal.max_lost)
            else:
                self._outcomes[probe] = JobOutcome(refused=config)
        where = list(jobs)

        def note(index: int, outcome: JobOutcome, stored: bool) -> None:
            self._outcomes[where[index]] = outcome
            self._compare(where[index])
            self.told(self._progress())

        self.runner.run(list(jobs.values()), note)
        return [self.goal.judge(self._outcomes[probe]) for probe in probes]

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
        done = f"{len(self._outcomes):,} of {len(self.points) * len(self.sizes):,} configurations looked at"
        if self._best is None:
            return f"{done}; none holds yet"
        return f"{done}; so far {self.candidate(self._best)}"

    def candidate(self, probe: Probe) -> Candidate:
        config, outcome = self._config(probe), self._outcomes[probe]
        assert isinstance(config, RunConfig)
        judged, price = self.goal.judge(outcome), self._prices.of(device_of(config))
        size = self.sizes[probe[1]]
        return Candidate(self.points[probe[0]], size, config, _gpus(config), price, judged, outcome)

    def standings(self, search: Search, lines: Sequence[int]) -> tuple[Standing, ...]:
        return tuple(self._standing(search, line) for line in lines)

    def _standing(self, search: Search, line: int) -> Standing:
        least, failing = search.least(line), search.most_failing(line)
        told = None if failing is None else search.known[line, failing]
        return Standing(
            point=self.points[line],
            least=None if least is None else self.sizes[least],
            at_most=least is not None and not search.settled(line),
            fails_at=None if told is None or told.refused is not None else self.sizes[failing or 0],
            cost=None if least is None else search.cost((line, least)),
            why="" if told is None else str(told),
        )

    def notes(self, best: Candidate) -> list[str]:
        notes = []
        if self._missing:
            gpus = ", ".join(dict.fromkeys(self._missing))
            notes.append(
                f"there is no price for {gpus}: the plan takes the fewest GPUs; give --price GPU=DOLLARS"
            )
        elif best.price is not None and best.price.source != "as given":
            notes.append(f"prices: {best.price.source}")
        return notes

    def _config(self, probe: Probe) -> RunConfig | str:
        """The configuration, or the reason why it is invalid."""
        if probe not in self._configs:
            line, size = probe
            try:
                point = {**self.points[line], INSTANCES: self.sizes[size]}
                self._configs[probe] = _drained(self._base.config(point, self._axes))
            except InputError as error:
                self._configs[probe] = str(error)
        return self._configs[probe]


def _refuse_pools(config: RunConfig) -> None:
    if config.pools:
        fix = "drop pools, or compare the configurations with blis sweep"
        raise InputError("a plan is of alike instances", key="pools", value=len(config.pools), fix=fix)


def _drained(config: RunConfig) -> RunConfig:
    """The configuration without a horizon's cut-off: percentiles would miss requests still waiting at the
    end, and the same load at another rate takes another time."""
    return config if config.horizon is not None else replace(config, drain=True)


def _sizes(sizes: Sequence[int] | None, axes: Sequence[Axis]) -> tuple[list[int], list[Axis]]:
    """Numbers of instances, ascending, and the other axes."""
    own = [each for each in axes if each.key == INSTANCES]
    if own and sizes is not None:
        raise InputError("is varied, and given by --instances, too", key=INSTANCES, fix="drop one of the two")
    wanted: Sequence[Any] = own[0].values if own else (DEFAULT_SIZES if sizes is None else sizes)
    for size in wanted:
        if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= MAX_INSTANCES:
            raise InputError("must be whole numbers from 1", key="--instances", value=size, fix="write 1:32")
    if not wanted:
        raise InputError("has no values", key="--instances", fix="write 1:32")
    return sorted(set(wanted)), [each for each in axes if each.key != INSTANCES]


def _check_choices(axes: Sequence[Axis]) -> None:
    """
    Raises:
        InputError: a choice of workload or prices: the least work would always be the cheapest.
    """
    for each in axes:
        if each.key.startswith(_NOT_CHOSEN):
            problem, fix = "is not for a plan to choose", "give one value, or compare with blis sweep"
            raise InputError(problem, key=f"--vary {each.name}", fix=fix)


def device_of(config: RunConfig) -> str:
    """The device; with a profile of measured steps, the device they were measured on."""
    if config.latency.profile is None:
        return config.gpu
    meta = read_profile(config.latency.profile).meta
    known = datasheet_of(meta)
    return str(meta.get("device") or "an unnamed device") if known is None else known.name


def _gpus(config: RunConfig) -> int:
    return config.num_instances * config.tp
