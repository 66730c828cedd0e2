"""Decisions of a plan for random figures: few different numbers, so that some just meet a limit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from drawing import nameless

from blis_py.config.models import RunConfig
from blis_py.config.pools import PoolSection
from blis_py.errors import InputError
from blis_py.metrics.load import OVERLOADED, SATURATED, STABLE, TOO_SHORT
from blis_py.metrics.slo_words import latency
from blis_py.planning import _suggest, analysis, knobs, pareto, stationary, steady, uncertainty
from blis_py.planning.axes import Axis
from blis_py.planning.goal import ALL_REQUESTS, AT_LEAST, Goal, Judgement, Requirement, as_dict
from blis_py.planning.job import FINE, HOPELESS, Job, JobOutcome, Variation
from blis_py.planning.prices import Prices
from blis_py.planning.search import Search, SearchLine
from blis_py.planning.stationary import HighestRate, Sustained
from blis_py.planning.validated import CLOSED, DENSE, EXPERTS, LEARNED, NEW_GPU, OPEN, Validated
from blis_py.planning.validated import SATURATED as NEAR_SATURATION

LOST = ("rejected", "unservable", "timed_out", "evicted")
STATS = ("mean", "p50", "p90", "p99", "p99.9", "max")
FEW = 60
"""Calls of each function for a seed."""


def decided(first: str, count: str) -> Iterator[str]:
    """A line for each seed, with a digest for each part."""
    parts = (_judged, _rates, _lengths, _steady, _searched, _drawn_errors, _levers, _fronts, _settings)
    for seed in range(int(first), int(first) + int(count)):
        rng = Random(f"decided {seed}")
        yield f"{seed} {' '.join(f'{part.__name__[1:]} {nameless(list(part(rng)))}' for part in parts)}"


def outcome(rng: Random, goal: Goal, **facts: Any) -> JobOutcome:
    """A run with figures around its targets."""
    if rng.random() < 0.1:
        ends: list[dict[str, Any]] = [{"refused": "no"}, {"failed": "odd"}, {"early_stop": FINE}]
        return JobOutcome(**rng.choice(ends))
    if rng.random() < 0.05:
        return JobOutcome(early_stop=HOPELESS)
    slo: list[dict[str, Any]] = []
    for _ in range(rng.randrange(3)):
        metric, stat = rng.choice(("ttft", "e2e", "itl", "scheduling_delay")), rng.choice(STATS)
        limit, measured = rng.choice((50.0, 100.0)), rng.choice((0.0, 25.0, 50.0, 99.99, 100.0, 130.0, None))
        name = rng.choice(("", "critical.")) + f"{metric}.{stat}"
        each = {"slo": f"{name}={limit:g}ms", "metric": metric, "stat": stat, "limit_ms": limit}
        slo.append(each | {"measured_ms": measured, "met": measured is not None and measured <= limit})
    figures: dict[str, float | None] = {f"requests.{name}": rng.choice((0, 0, 0, 1, None)) for name in LOST}
    figures |= {"requests.injected": rng.choice((0, 100, None)), "tpot_ms.mean": rng.choice((None, 0, 8.0))}
    figures |= {f"throughput.{name}_per_s": rng.choice((9.0, 10.0, None)) for name in ("requests",)}
    figures |= {f"throughput.{name}_tokens_per_s": rng.choice((90.0, 100.0)) for name in ("output", "total")}
    figures |= {"goodput.attainment": rng.choice((0.9, 0.95, 1.0)), "goodput.requests_per_s": 7.0}
    figures |= {"ttft_ms.p50": rng.choice((None, 12.0))}
    classes: dict[str, dict[str, float | None]] = {"critical": {"attainment": rng.choice((0.98, 0.99, 1.0))}}
    verdict = rng.choice((STABLE, STABLE, OVERLOADED, SATURATED, TOO_SHORT))
    return JobOutcome(figures, classes, slo, verdict, facts)


def goal_of(rng: Random) -> Goal:
    attainment: dict[str, float] = {}
    for name in (ALL_REQUESTS, "critical"):
        if rng.random() < 0.3:
            attainment[name] = rng.choice((0.9, 0.99, 1.0))
    least = {name: rng.choice((9.0, 10.0, 125.0)) for name in AT_LEAST if rng.random() < 0.15}
    most = rng.choice((0, 100, 2000, 10_000))
    return Goal(attainment, rng.choice((0.0, 0.0, 0.01, 0.02)), least, most, rng.choice((3000, 50_000)))


def _judged(rng: Random) -> Iterator[Any]:
    for _ in range(FEW):
        goal = goal_of(rng)
        found = goal.judge(outcome(rng, goal))
        yield [as_dict(found), found.tightest, [each.title for each in found.requirements]]
        ms = rng.choice((0.0, 0.1234567, 9.996, 99.96, 100.0, 100.04, 9999.6, 10_000.0, 123_456.0))
        yield [latency(ms), latency(ms, ms * rng.choice((1, 1.0001, 1.1)))]


class Load:
    """Runs of a load whose highest rate is known, or depends on the length as that of a burst does."""

    def __init__(self, rng: Random) -> None:
        self.base, self.capacity = (
            rng.choice((40, 500, 2000)),
            rng.choice((0.004, 0.5, 0.94, 1, 1.8, 7.3, 500)),
        )
        self.burst, self.most = rng.choice((0.0, 0.0, 2.0)), rng.choice((1.0, 3.0, 8.0, 1e9))
        self.rough = rng.choice((0.0, 0.04, 0.3))
        self.queried: list[Any] = []

    def run(self, jobs: Sequence[Job]) -> list[JobOutcome]:
        return [self.outcome(job.variation.rate, job.variation.length) for job in jobs]

    def outcome(self, rate: float = 1.0, length: float = 1.0) -> JobOutcome:
        self.queried.append((rate, length))
        length = min(length, self.most)
        requests = round(self.base * length)
        capacity = self.capacity * (1 + self.burst / length)
        measured = 100.0 * rate / capacity * (1 + self.rough / length)
        slo = [{"slo": "ttft.p99=100ms", "metric": "ttft", "stat": "p99", "limit_ms": 100.0}]
        slo[0] |= {"measured_ms": measured, "met": measured <= 100}
        facts = {"requests": requests, "offered_per_s": 10.0 * rate, "span_s": requests / (10.0 * rate)}
        verdict = TOO_SHORT if requests < 50 else SATURATED if rate > 1.5 * capacity else STABLE
        return JobOutcome({"requests.injected": float(requests)}, {}, slo, verdict, facts)


def _rates(rng: Random) -> Iterator[Any]:
    """The search for the highest rate, and what it asks for."""
    config = RunConfig()
    for _ in range(6):
        load, goal = Load(rng), Goal(most_requests=rng.choice((0, 100, 2000, 10_000)))
        runner: Any = load
        begun = rng.choice((1.0, 1.0, 2.5))
        start = stationary.sustained(config, goal, runner, load.outcome(length=begun), begun)
        yield [start, start.analysed, start.requests, load.queried.copy()]
        yield [stationary.highest_rate(config, goal, runner, start), load.queried]


def _lengths(rng: Random) -> Iterator[Any]:
    """Parts of that search, where it decides."""
    factors = (None, 0.008, 0.0099, 0.01, 0.5, 0.94, 1.0, 1.029, 1.03, 1.05, 99.0, 100.0, 130.0)
    for _ in range(FEW):
        one, other = (HighestRate(rng.choice(factors), requests=rng.choice((0, 90, 180, 2000))) for _ in "12")
        yield [stationary._same(one, other), stationary.next_factors(0.5, 0.5 * (other.factor or 1))]
        low, high = (rng.choice((None, 0.005, 0.01, 0.5, 0.515, 1.0, 1.03, 80.0, 100.0)) for _ in "12")
        yield stationary.next_factors(low, high) if low or high else None
        start = Sustained(
            Judgement(True), JobOutcome(facts={"requests": rng.choice((0, 50, 100))}), 1.0, True
        )
        start = replace(start, length=rng.choice((1.0, 2.0, 40.0)), begun=rng.choice((1.0, 5.0)))
        goal, config = Goal(most_requests=rng.choice((0, 199, 200, 400, 10_000))), RunConfig()
        search = stationary._RateSearch(config, goal, SimpleNamespace(), start)  # type: ignore[arg-type]
        yield [search._base, search.bracket(), search.around(one), start.analysed]
        yield search.longer(one, rng.choice((1.0, 2.0, 4.0)))
        yield [search._length(rng.choice((1.0, 8.0)), rng.choice((0.5, 1.0, 3.0)), whole=rng.random() < 0.5)]
        yield stationary._alike(*(_one_figure(rng) for _ in "12"))


def _one_figure(rng: Random) -> Judgement:
    names, values = ("a", "b"), (None, 0.0, 100.0, 104.9, 105.0, 106.0)
    found = (
        Requirement(rng.choice(names), 100.0, rng.choice(values), "ms", rng.choice((-1, 0, 1))) for _ in "12"
    )
    return Judgement(rng.random() < 0.5, tuple(found)[: rng.choice((0, 1, 2))])


def _steady(rng: Random) -> Iterator[Any]:
    for _ in range(FEW):
        goal = goal_of(rng)
        facts = {"closed": rng.choice((True, False)), "at_once": rng.choice((0, 1, 16, 256, 1000))}
        facts |= {"requests": rng.choice((0, 60, 1999, 2000, 102_400)), "generated": rng.random() < 0.5}
        found = replace(outcome(rng, goal), facts=facts, early_stop=None)
        yield [steady.requests_needed(found, goal), steady.steady_length(found, goal)]
        yield steady.is_steady(found, goal)


def _searched(rng: Random) -> Iterator[Any]:
    """Searches over lines that hold from a size on, and what each of their methods says."""
    for _ in range(6):
        holds = [rng.choice((0, 1, 2, 5, 99)) for _ in range(rng.choice((1, 3, 20)))]
        sizes = rng.choice(([1], [1, 2, 4, 8, 16], [3, 4]))
        calls: list[Any] = []

        def evaluate(probes: Any, may_stop: bool, holds: Any = holds, calls: Any = calls) -> list[Judgement]:
            calls.append((list(probes), may_stop))
            return [_of_probe(holds, probe, may_stop) for probe in probes]

        lines = [SearchLine(rng.choice((1.0, 1.5, 2.0))) for _ in holds]
        search = Search(lines, sizes, evaluate)
        yield [search.best(), search.best(range(0, len(holds), 2))]
        for line in range(len(holds)):
            if search._of_line[line]:
                yield [search.least(line), search.most_failing(line), search.settled(line)]
                yield [search.first_judged(line), search.cost((line, len(sizes) - 1))]
                yield _suggest._value(search, line, len(sizes))
        found = search.best()
        if found is not None:
            search.rejudge(found, Judgement(False))
            holds.append(0)
            yield [search.best(), search.add(SearchLine(0.7)), search.best()]
        search.whole([(line, 0) for line in range(len(holds) - 1)])
        yield calls
    axes = [Axis("a", "a", (1, 2, 4)), Axis("b", "b", ("x", "y")), Axis("c", "c", (True, 1))]
    axes += [Axis("d", "d", (True, False)), Axis("e", "e", (1, 0.5))]
    trial: Any = SimpleNamespace(
        suggest_int=lambda _, least, last: least, suggest_categorical=lambda _, v: v[-1]
    )
    yield [[_suggest._choice(trial, each) for each in axes], _suggest._line(trial, axes)]


def _of_probe(holds: Sequence[int], probe: tuple[int, int], may_stop: bool) -> Judgement:
    line, size = probe
    if holds[line] == 99:
        return Judgement(False, refused="no")
    slack = round(0.3 * (size - holds[line]), 6)
    requirement = Requirement("x", 1.0, 1 - slack, "ms", slack)
    early = FINE if may_stop and slack > 0.3 else HOPELESS if may_stop and slack < -0.6 else None
    return Judgement(slack >= 0, () if early else (requirement,), early_stop=early)


def _drawn_errors(rng: Random) -> Iterator[Any]:
    """Errors of validated runs made up: which are most alike, and what is drawn from them."""
    gpus, loads = ("h100", "h200", "b200"), (OPEN, CLOSED, NEAR_SATURATION)
    precisions, kinds, engines = ("16-bit", "FP8"), (DENSE, EXPERTS), ("vllm", "sglang")
    for _ in range(20):
        known = [
            Validated(
                f"case {rng.randrange(12)}",
                rng.choice(("m", "n")),
                rng.choice(gpus[:2]),
                1,
                rng.choice(precisions),
                rng.choice(kinds),
                rng.choice(loads),
                rng.choice((NEW_GPU, "new model", "run left out", LEARNED)) if index else LEARNED,
                {key: rng.choice((0.8, 1.0, 1.25)) for key in _ratios(rng)},
                rng.choice(engines),
            )
            for index in range(rng.choice((1, 6, 40)))
        ]
        regime = uncertainty.Regime(*(rng.choice(each) for each in (engines, gpus, precisions, kinds, loads)))
        targets = [(rng.choice(("ttft", "e2e", "scheduling_delay")), rng.choice(STATS)) for _ in "12"]
        found = uncertainty.errors_in(regime, known, rng.choice((1, 3, 9)), targets)
        yield [found, found.few, found.typical]
        goal = goal_of(rng)
        yield [uncertainty.adjusted(outcome(rng, goal), draw) for draw in found.draws]
        yield [run.ratio(metric, stat) for run in known for metric, stat in targets]
        at_limit = uncertainty.Draw(1.0, {("ttft", "p99"): rng.choice((0.8, 1.0, 1.25))})
        each = {"slo": "ttft.p99=100ms", "metric": "ttft", "stat": "p99", "limit_ms": 100.0, "met": False}
        yield uncertainty.adjusted(
            JobOutcome(slo=[each | {"measured_ms": rng.choice((80.0, 125.0))}]), at_limit
        )
        worst = [
            None,
            *(SimpleNamespace(mape=rng.choice((0.02, 0.5)), bias=rng.choice((-0.1, 0.1))) for _ in "12"),
        ]
        regimes = {str(n): SimpleNamespace(cross_validated=rng.choice(worst)) for n in range(2)}
        with patch(
            "blis_py.latency.fitted_profile.read_profile", lambda _, r=regimes: SimpleNamespace(regimes=r)
        ):
            yield uncertainty._of_fitted("x", rng.choice((1, 4, 7)))


def _ratios(rng: Random) -> list[tuple[str, str]]:
    pairs = [(metric, stat) for metric in ("ttft", "tpot", "e2e") for stat in ("mean", "p99")]
    return [pair for pair in pairs if rng.random() < 0.8]


def config_of(rng: Random) -> RunConfig:
    """A configuration with what plans look at."""
    from blis_py.api import configure

    settings: dict[str, Any] = {"model": rng.choice(("qwen3-14b", "qwen3-30b-a3b", "llama-3.1-8b-fp8"))}
    settings |= {"num_instances": rng.choice((1, 3)), "tp": rng.choice((1, 2))}
    settings |= rng.choice(({}, {"rate": 60.0}, {"concurrency": 4}))
    settings |= {"max_num_seqs": rng.choice((1, 16, 256)), "max_num_batched_tokens": rng.choice((256, 2048))}
    settings |= rng.choice(({}, {"engine": "sglang"}, {"engine": "trtllm"}, {"scheduler": "sjf"}))
    try:
        return configure(**settings, latency_model=rng.choice(("trained", "roofline", "trained-physics")))
    except InputError:
        return configure(model="qwen3-14b")


def _levers(rng: Random) -> Iterator[Any]:
    """Jobs of the analyses, and what is short by their outcomes."""
    for _ in range(6):
        config, goal, length = config_of(rng), goal_of(rng), rng.choice((1.0, 2.5))
        yield uncertainty._largest(_pooled(config, rng)).tp
        known = uncertainty.errors_of(config, 3, [("ttft", "p99")], near_saturation=rng.random() < 0.5)
        yield [known is None, uncertainty.errors_of(config, 0, [])]
        drawn = (
            uncertainty.Draw(rng.choice((0.9, 1.2)), {("e2e", "p50"): rng.choice((0.8, 1.0))}) for _ in "123"
        )
        errors = None if known is None else uncertainty.Errors(tuple(drawn), "runs", 9)
        jobs = analysis.sensitivity(config, length) | analysis.other_models(config, length)
        if errors is not None:
            jobs |= analysis.draws(config, errors, goal, length)
        levers = analysis.levers(config, Variation(length=length), rng.choice((None, 77)))
        yield [[name, _of_job(job)] for name, job in (jobs | levers).items()]
        cases = [
            analysis.Case(name, Judgement(True, _slacks(rng)), JobOutcome())
            for name in levers
            if not name or rng.random() < 0.7
        ]
        found = analysis.binding(cases)
        yield [found, analysis.short(found), [analysis.short(found[start:]) for start in (1, 2)]]
    for before in (0.0, 0.5, 1.0, float("inf")):
        yield [analysis._gain(before, after) for after in (0.0, 0.5, 2.0)]


def _pooled(config: RunConfig, rng: Random) -> RunConfig:
    """With pools of other degrees of parallelism, or without."""
    sizes = rng.choice(((), (1,), (1, 2), (2, 1), (3, 1, 1)))
    pools = (PoolSection(name=f"p{n}", count=count, tp=2**n) for n, count in enumerate(sizes))
    return replace(config, pools=tuple(pools))


def _slacks(rng: Random) -> tuple[Requirement, ...]:
    slacks = (-float("inf"), -1.0, 0.0, 0.01, 0.02, 0.5, 1.0)
    return tuple(
        Requirement("x", 1.0, 1.0, "ms", rng.choice(slacks)) for _ in range(rng.choice((0, 1, 1, 2)))
    )


def _of_job(job: Job) -> list[Any]:
    config = job.config
    parts = (config.scheduler, config.routing, config.latency, config.seed)
    return [asdict(job.variation), job.stops_at, job.max_lost, parts]


def _fronts(rng: Random) -> Iterator[Any]:
    for _ in range(6):
        figures = (1.0, 2.0, 3.0)
        points = [
            pareto.Operating(
                rng.choice(({}, {"tp": 2})),
                rng.choice((1, 2048)),
                rng.choice(figures),
                rng.choice(figures),
                rng.choice((None, 5.0)),
                rng.random() < 0.7,
            )
            for _ in range(9)
        ]
        front = pareto.Pareto(tuple(pareto._marked(points)), rng.choice(((), ("too large",))))
        yield [front.points, front.front, repr(front), [each.as_dict() for each in front.points]]
        config, goal = config_of(rng), goal_of(rng)
        load = pareto._loaded(config, rng.choice((1, 7, 8, 9)))
        yield [load.workload.concurrency, load.workload.num_requests]
        yield pareto._operating({}, 3, config, outcome(rng, goal), goal, Prices())


def _settings(rng: Random) -> Iterator[Any]:
    """Settings worth a try, and the arguments with which engines are started."""
    from blis_py.planning import serving

    yield from _tried(rng)

    for _ in range(6):
        config = config_of(rng)
        own = config.scheduler
        yield knobs.values_of(config)
        facts: dict[str, Any] = {
            "max_num_seqs": own.max_num_seqs,
            "max_num_batched_tokens": own.max_num_batched_tokens,
        }
        facts |= {
            "block_size": 16,
            "scheduler": rng.choice(("fcfs", "priority-fcfs", "lpm", "sjf", "dfs-weight")),
        }
        facts |= {
            "long_prefill_token_threshold": rng.choice((0, 512)),
            "async_scheduling": rng.random() < 0.5,
        }
        facts |= {"prefix_cache": rng.choice(("hash", "radix", "none"))}
        facts |= {"batch_former": rng.choice(("running-first", "prefill-first"))}
        facts |= rng.choice(({}, {"enable_prefix_caching": False}, {"enable_prefix_caching": True}))
        blocks, length = rng.choice((None, 900)), rng.choice((None, 4096))
        served = replace(own, num_kv_blocks=blocks, max_model_len=length)
        best: Any = SimpleNamespace(config=replace(config, scheduler=served), instances=rng.choice((1, 3)))
        best.outcome = JobOutcome(facts={"scheduler": facts})
        scripts = (
            serving.vllm_script,
            serving.sglang_script,
            serving.vllm_arguments,
            serving.sglang_arguments,
        )
        yield [each(best) for each in scripts]
        yield serving.llmd_values(best).replace(str(best), "")


def _tried(rng: Random) -> Iterator[Any]:
    """The cheapest candidate once settings have been tried around it, with each setting worth a slack."""
    for _ in range(6):
        lines, sizes = rng.choice((1, 2, 6)), rng.choice(([1, 2, 4], [1]))
        needed = [rng.choice((1, 2, 5)) for _ in range(lines)]
        space: Any = SimpleNamespace(sizes=sizes, costs=[rng.choice((1.0, 2.0)) for _ in needed], axes=())
        space.points, space.at, space.goal = [{} for _ in needed], Variation(), Goal()
        worth = {name: rng.choice((-0.1, 0.0, 0.1, 0.3)) for name in knobs._KEYS}
        config = replace(config_of(rng), given=tuple(rng.sample(sorted(knobs._KEYS.values()), 2)))
        log: list[Any] = []

        def runs(line: int, size: int = 0, space: Any = space) -> bool:
            return bool(len(space.points[line]) % 3 < 2)

        def changed(probe: Any, settings: Any, config: Any = config) -> Any:
            return SimpleNamespace(probe=probe, settings=settings, **_parts(config))

        def add(
            line: int, settings: Any, space: Any = space, needed: Any = needed, worth: Any = worth
        ) -> bool:
            if len(settings) > 2:
                return False
            space.points.append({**space.points[line], **settings})
            space.costs.append(space.costs[line])
            needed.append(needed[line] - round(10 * sum(map(worth.get, settings))))
            return True

        def run(
            jobs: Any, worth: Any = worth, log: Any = log, needed: Any = needed, sizes: Any = sizes
        ) -> Any:
            log.append([(job.config.probe, job.config.settings) for job in jobs])
            found = []
            for job in jobs:
                (line, size), settings = job.config.probe, job.config.settings
                slack = (sizes[size] - needed[line]) / 10 + sum(map(worth.get, settings))
                slo = {"slo": "ttft.p99=100ms", "metric": "ttft", "stat": "p99", "limit_ms": 100.0}
                slo |= {"measured_ms": 100 * (1 - slack), "met": slack >= 0}
                found.append(JobOutcome(slo=[slo]))
            return found

        def evaluate(probes: Any, _: bool, needed: Any = needed, sizes: Any = sizes) -> list[Judgement]:
            slacks = [(sizes[size] - needed[line]) / 10 for line, size in probes]
            return [Judgement(s >= 0, (Requirement("x", 1.0, 1 - s, "ms", s),)) for s in slacks]

        space.runs, space.changed, space.add, space.runner = runs, changed, add, SimpleNamespace(run=run)
        space.candidate = lambda probe: f"candidate {probe}"
        space.largest = lambda line, sizes=sizes: len(sizes) - 1
        space.line = lambda line, space=space: SearchLine(space.costs[line])
        search = Search([SearchLine(cost) for cost in space.costs], sizes, evaluate)
        yield knobs.improved(space, search, range(lines), search.best(), search.best, lambda probe: None)
        yield [
            log,
            space.points,
            [knobs._cheaper(space, search, range(lines), each) for each in (None, (0, 0))],
        ]


def _parts(config: RunConfig) -> dict[str, Any]:
    names = ("scheduler", "routing", "engine", "instances", "given", "workload")
    return {name: getattr(config, name) for name in names}
