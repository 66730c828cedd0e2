"""The cheapest configuration that meets its targets, and its analysis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from blis_py.config.models import DESCRIPTIONS, RunConfig
from blis_py.core.bounds import MAX_INSTANCES
from blis_py.errors import InputError
from blis_py.metrics.load import TOO_SHORT
from blis_py.outputs.staging import Outputs
from blis_py.planning import analysis, report_data
from blis_py.planning._space import INSTANCES, LineCallback, Space, for_sizing
from blis_py.planning.attempt import Attempt
from blis_py.planning.axes import Axis, Point, axis
from blis_py.planning.fleets import LAYOUT, devices_of, gpus_of, parts_of, price_of
from blis_py.planning.goal import Goal
from blis_py.planning.job import Job, JobOutcome, Variation
from blis_py.planning.prices import Prices
from blis_py.planning.report_text import SURE, answer
from blis_py.planning.result import RATE, Candidate, PlanResult
from blis_py.planning.runner import ENDS, OutOfTime, Runner
from blis_py.planning.search import Probe, Search
from blis_py.planning.stationary import Sustained, highest_rate, sustained
from blis_py.planning.steady import is_steady, requests_needed
from blis_py.planning.study import Study
from blis_py.planning.targets import check_targets
from blis_py.planning.verify import Drawn, Verifier, drawn
from blis_py.planning.widths import unasked

if TYPE_CHECKING:
    from blis_py.figures.style import Picture

DEFAULT_SIZES = range(1, 33)
DRAWS, TRIALS = 20, 64
_OFFERED = ("requests_per_s", "output_tokens_per_s", "total_tokens_per_s")
_NOT_CHOSEN = ("workload", "seed", "latency", *DESCRIPTIONS, "goodput", "frontend_ms")


class Plan(PlanResult):
    """Result of a search; displays itself and saves itself into a folder."""

    @property
    def summary(self) -> dict[str, Any]:
        """The complete plan as plain data for JSON."""
        return report_data.summary(self)

    def __repr__(self) -> str:
        return answer(self)

    def plot(self) -> Picture:
        """Picture of cost, sensitivity, other latency models and bottleneck."""
        from blis_py.planning.pictures import draw

        return draw(self)

    def save(self, folder: str, *, force: bool = False, plots: bool = True) -> None:
        """Write `plan.json`, `config.yaml`, `standings.csv`, server start scripts, and the picture."""
        from blis_py.planning._files import fill

        with Outputs() as outputs:
            fill(outputs.folder(folder, force=force), self, plots=plots)


def plan(
    study: Study,
    axes: Sequence[Axis],
    runner: Runner,
    *,
    goal: Goal,
    prices: Prices,
    sizes: Sequence[int] | None = None,
    trials: int = TRIALS,
    draws: int = DRAWS,
    confidence: float | None = None,
    knobs: bool = True,
    gpus: int | None = None,
    quick: bool = False,
    on_progress: LineCallback | None = None,
) -> Plan:
    """Find the cheapest configuration of a space that meets all targets.

    Args:
        axes: the settings to choose from; numbers of instances among them, or as `sizes`.
        trials: combinations to try where there are more than that, of more than three axes.
        draws: runs under the errors of the prediction, for the probability; 0 = none.
        confidence: least share of these runs that must meet all targets.
        knobs: whether to try settings that cost nothing around the winner.
        gpus: most GPUs of a candidate; None = no limit but the sizes.
        quick: the cheapest candidate that passes the workload as it is, and nothing more.

    An interrupt, or the end of the runner's time, ends the search with the cheapest candidate known to pass.

    Raises:
        InputError: no target, nothing runnable, contradictory settings, or no candidate passes in time.
    """
    if confidence is not None and not draws:
        raise InputError("requires draws", key="--confidence", fix="drop --draws 0")
    sizes, axes = _sizes(sizes, axes, study)
    check_choices(axes)
    study.check([*axes, axis(INSTANCES, list(sizes))])
    frame = (study, axes, sizes, prices, goal, runner, on_progress or (lambda line: None))
    widths = unasked(study, axes)
    attempt, length = None, 1.0
    try:
        while True:
            attempt = Attempt(Space(*frame, length, gpus, widths), draws, confidence)
            best = attempt.quickly(trials, knobs) if quick else attempt.cheapest(trials, knobs)
            if best is not None:
                return _so_far(attempt, best, "quick") if quick else _answer(attempt, best)
            nearest = attempt.nearest()
            if quick:
                return _so_far(attempt, nearest, "quick")
            longer = attempt.verifier.sustained(nearest)
            if attempt.space.holds(nearest) or not longer.judgement.holds:
                return _nothing_holds(attempt, nearest, longer)
            length = longer.length  # missed by the sample, not by the load: all are judged by this length
    except ENDS as end:
        return _interrupted(attempt, end)


def _interrupted(attempt: Attempt | None, end: BaseException) -> Plan:
    """The plan for the cheapest candidate known to pass.

    Raises:
        InputError: the time is up, and none is known.
        BaseException: the interrupt, if none is known.
    """
    passing = None if attempt is None else attempt.search.passing()
    if attempt is not None and passing is not None:
        return _so_far(attempt, passing, str(end) or "interrupted")
    if isinstance(end, OutOfTime):
        fix = "give it more, or fewer combinations"
        raise InputError("no configuration met all targets in that time", key="--budget", fix=fix) from None
    raise end


def _so_far(attempt: Attempt, best: Probe, why: str) -> Plan:
    """The plan for a candidate, without the runs that would confirm and examine it."""
    space, search = attempt.space, attempt.search
    standings = space.standings(search, range(len(space.points)))
    return Plan(
        space.candidate(best),
        space.objective,
        standings=standings,
        lines=len(standings),
        knobs=attempt.tried,
        simulated=space.runner.done,
        known=space.runner.reused,
        notes=tuple(space.notes(space.candidate(best))),
        ended=why,
    )


def _answer(attempt: Attempt, cheapest: Probe) -> Plan:
    space, search, verifier, lines = attempt.space, attempt.search, attempt.verifier, attempt.lines
    confidence, draws = attempt.confidence, attempt.draws
    rest = [line for line in lines if space.points[line] != space.points[cheapest[0]]]
    second = verifier.best(rest, confidence) if rest else None
    best = space.candidate(cheapest)
    bursts = [probe for probe in verifier.bursts if search.cost(probe) < search.cost(cheapest)]
    least = min(bursts, key=search.cost, default=None)
    outcome = Plan(
        best,
        space.objective,
        verifier.sustained(cheapest),
        None if least is None else space.candidate(least),
        None if second is None else space.candidate(second),
        space.standings(search, lines),
        attempt.combinations,
        knobs=attempt.tried,
        drawn=draws > 0,
        confidence=confidence,
    )
    space.on_progress(f"{best}: highest rate, bottleneck and certainty")
    under = verifier.drawn(cheapest) if draws else Drawn()
    outcome = examined(outcome, space.goal, space.runner, under, space.notes(best))
    if under.share is not None:
        outcome = replace(outcome, fewest=verifier.fewest(cheapest), **_central(space, search, verifier))
    if under.share is None or under.share >= (SURE if confidence is None else confidence):
        return replace(outcome, simulated=space.runner.done, known=space.runner.reused)
    surer = verifier.best(lines, SURE)
    return replace(
        outcome,
        surer=None if surer is None else space.candidate(surer),
        surer_holds=None if surer is None else verifier.drawn(surer).share,
        simulated=space.runner.done,
        known=space.runner.reused,
    )


def _central(space: Space, search: Search, verifier: Verifier) -> dict[str, Any]:
    """The cheapest candidate that holds by the prediction itself, among those that were too unsure."""
    if not verifier.unsure:
        return {}
    probe = min(verifier.unsure, key=search.cost)
    return {"central": space.candidate(probe), "central_holds": verifier.drawn(probe).share}


def _nothing_holds(attempt: Attempt, nearest: Probe, longer: Sustained) -> Plan:
    """The plan for the candidate nearest to the targets, by its longest run."""
    space, search = attempt.space, attempt.search
    best, length = replace(space.candidate(nearest), judgement=search.known[nearest]), space.at.length
    if not longer.judgement.holds:
        best, length = replace(best, judgement=longer.judgement, outcome=longer.outcome), longer.length
    result = Plan(
        best,
        space.objective,
        None if length == 1 else Sustained(best.judgement, best.outcome, length, True, length),
        standings=space.standings(search, attempt.lines),
        lines=attempt.combinations,
        knobs=attempt.tried,
    )
    return examined(result, space.goal, space.runner, Drawn(), space.notes(best))


def max_rate(config: RunConfig, runner: Runner, *, goal: Goal, prices: Prices, draws: int = DRAWS) -> Plan:
    """Find the highest rate at which a given cluster meets its targets, and the bottleneck there.

    Raises:
        InputError: no target, a cluster that cannot be run, or a closed loop, which has no rate.
    """
    goal.check(config)
    check_targets(goal, [config])
    prices.check(devices_of(config))
    best = given(for_sizing(config), goal, runner, prices)
    longer = sustained(best.config, goal, runner, best.outcome)
    holds = best.judgement.holds and longer.judgement.holds
    under = drawn(best.config, goal, runner, draws, longer) if holds else Drawn()
    return examined(Plan(best, RATE, longer, drawn=draws > 0), goal, runner, under, [])


def given(config: RunConfig, goal: Goal, runner: Runner, prices: Prices) -> Candidate:
    """A single configuration, run as it is.

    Raises:
        InputError: it cannot be run, or is a closed loop, which has no rate.
    """
    if config.workload.concurrency is not None:
        fix = "sweep over it: blis sweep --vary concurrency=1:64"
        raise InputError("a closed loop has no rate", key="--concurrency", fix=fix)
    outcome = runner.run([Job(config)])[0]
    if not outcome.ran:
        raise InputError(str(outcome.refused or outcome.failed))
    return candidate_of({}, config, prices, goal, outcome)


def candidate_of(
    point: Point, config: RunConfig, prices: Prices, goal: Goal, outcome: JobOutcome
) -> Candidate:
    """A configuration that was run, with its GPUs and prices."""
    parts, price, judged = parts_of(config, prices), price_of(config, prices), goal.judge(outcome)
    return Candidate(point, config.instances, config, gpus_of(config), price, judged, outcome, parts)


def examined(result: Plan, goal: Goal, runner: Runner, under: Drawn, notes: Sequence[str]) -> Plan:
    """A plan with all analyses of its best candidate."""
    best = result.best
    config = best.config
    longer = result.sustained or Sustained(best.judgement, best.outcome, 1.0, False)
    rate = None
    length = longer.analysed
    jobs = analysis.sensitivity(config, length) | analysis.other_models(config, length)
    names = [*jobs]
    if not _more_than_offered(best):
        if config.workload.concurrency is None:
            rate = highest_rate(config, goal, runner, longer)
        jobs |= {f"lever {name}": job for name, job in _levers(best, rate, length).items()}
    cases = {case.name: case for case in analysis.cases_of(jobs, goal, runner)}
    pulled = [replace(c, name=n.removeprefix("lever ")) for n, c in cases.items() if n.startswith("lever")]
    return replace(
        result,
        rate=rate,
        levers=tuple(analysis.binding(pulled)) if pulled else (),
        sensitivity=tuple(cases[name] for name in names if "×" in name),
        models=tuple(cases[name] for name in names if name.startswith("model ")),
        draws=under.cases,
        error=under.errors,
        simulated=runner.done,
        known=runner.reused,
        notes=(*notes, *_warnings(best, longer, goal)),
    )


def _levers(best: Candidate, rate: Any, length: float) -> dict[str, Job]:
    """Jobs with more of each resource, at a load at which the candidate fails; none if no rate does."""
    if best.judgement.holds and (rate is None or rate.broken is None):
        return {}
    blocks = round((best.outcome.figures.get("kv_blocks") or 0) / max(best.instances, 1))
    if not blocks:
        return {}
    own = None if best.config.pools else blocks
    factor = 1.0 if rate is None or rate.factor is None else analysis.beyond(rate.factor)
    at = Variation(rate=factor, length=max(length * max(factor, 1.0), 1.0))
    return analysis.levers(best.config, at, own)


def _warnings(best: Candidate, longer: Sustained, goal: Goal) -> list[str]:
    """Warnings from the best candidate's own runs."""
    notes = list(best.outcome.facts.get("notes", ()))
    if longer.outcome.verdict == TOO_SHORT:
        notes.append(
            "the longest run is too short to tell whether the cluster keeps up: use more requests, or raise "
            "--most-requests"
        )
    if longer.fixed:
        notes.append(
            f"this load cannot be extended: the answer is for the {longer.requests:,} requests given"
        )
    if more := _more_than_offered(best):
        notes.append(f"{more}: the load offers no more; raise --rate, or use --max-rate")
    return notes + _of_the_start(longer, goal)


def _more_than_offered(best: Candidate) -> str:
    """The throughput that is missed although every request is served without a growing backlog."""
    missed = [each for each in best.judgement.requirements if not each.met]
    if best.judgement.saturated or best.config.workload.concurrency is not None or not missed:
        return ""
    most = best.outcome.facts.get("offered_per_s") or float("inf")
    offered = all(
        each.what in _OFFERED or (each.what == "goodput_per_s" and each.limit > most) for each in missed
    )
    return f"{missed[0].what} {missed[0].measured or 0.0:,.4g}" if offered else ""


def _of_the_start(longer: Sustained, goal: Goal) -> list[str]:
    """A warning where the start of a closed loop decides a target and the workload cannot be longer."""
    at_once, needed = longer.outcome.facts.get("at_once", 0), requests_needed(longer.outcome, goal)
    if not at_once or is_steady(longer.outcome, goal):
        return []
    return [
        f"{at_once:,} of the {longer.requests:,} requests are sent at once at the start and dominate the "
        f"latencies: the answer is for such a start; in the steady state, from {needed:,} requests, fewer "
        "instances may suffice: raise --most-requests"
    ]


def _sizes(sizes: Sequence[int] | None, axes: Sequence[Axis], study: Study) -> tuple[list[int], list[Axis]]:
    """Numbers of instances, ascending, and the other axes; 1 where the layout has a number of its own."""
    if _is_laid_out(study, axes):
        if sizes is not None or any(each.key == INSTANCES for each in axes):
            fix = "drop it: each layout has its number of instances; of a pool, vary pools.NAME.count"
            raise InputError("contradicts the instances of each side", key="--instances", fix=fix)
        return [1], list(axes)
    own = [each for each in axes if each.key == INSTANCES]
    if own and sizes is not None:
        raise InputError("is varied, and given by --instances, too", key=INSTANCES, fix="drop one of the two")
    sizes_tried: Sequence[Any] = own[0].values if own else (DEFAULT_SIZES if sizes is None else sizes)
    for size in sizes_tried:
        if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= MAX_INSTANCES:
            raise InputError("must be whole numbers from 1", key="--instances", value=size, fix="write 1:32")
    if not sizes_tried:
        raise InputError("has no values", key="--instances", fix="write 1:32")
    return sorted(set(sizes_tried)), [each for each in axes if each.key != INSTANCES]


def _is_laid_out(study: Study, axes: Sequence[Axis]) -> bool:
    """Whether instances of each side are varied or given, which fixes their number."""
    if any(each.key in LAYOUT for each in axes):
        return True
    try:
        return bool(study.config().all_pools)
    except InputError:  # an axis has what is missing
        return False


def check_choices(axes: Sequence[Axis]) -> None:
    """
    Raises:
        InputError: a choice of workload or prices: the least work would always be the cheapest.
    """
    for each in axes:
        if each.key.startswith(_NOT_CHOSEN):
            problem, fix = "cannot be chosen by a plan", "give one value, or compare with blis sweep"
            raise InputError(problem, key=f"--vary {each.name}", fix=fix)
