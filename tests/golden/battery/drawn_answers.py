"""Results of plans and sweeps that are made up at random: all that is said, written and drawn of them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from drawing import nameless
from drawn_decisions import config_of

from blis_py.planning import _files, report_data, report_text
from blis_py.planning.analysis import Case, Lever
from blis_py.planning.axes import Axis
from blis_py.planning.disaggregate import Layouts, best_of
from blis_py.planning.fleets import Part
from blis_py.planning.goal import Judgement, Requirement
from blis_py.planning.job import FINE, HOPELESS, JobOutcome
from blis_py.planning.prices import Price
from blis_py.planning.result import RATE, Candidate, Knobs, PlanResult, Rated, Standing
from blis_py.planning.stationary import HighestRate, Sustained
from blis_py.planning.sweep import Row, Sweep, larger_is_better
from blis_py.planning.uncertainty import Draw, Errors

UNITS: tuple[tuple[str, str], ...] = (
    ("ttft.p99", "ms"),
    ("critical.e2e.p50", "ms"),
    ("requests_per_s", "per s"),
    ("attainment", "share"),
)
UNITS += (("requests lost", "share"), ("kv_peak", "%"), ("scheduling_delay.max", "ms"))


def answers(first: str, count: str) -> Iterator[str]:
    """A line for each seed, with a digest for each part."""
    for seed in range(int(first), int(first) + int(count)):
        rng = Random(f"answers {seed}")
        found = [f"{part.__name__[1:]} {nameless(list(part(rng)))}" for part in (_plans, _sweeps, _layouts)]
        yield f"{seed} {' '.join(found)}"


def _judgement(rng: Random, some: bool = True) -> Judgement:
    if not some and rng.random() < 0.3:
        reasons: list[dict[str, Any]] = [
            {"refused": "too large"},
            {"early_stop": FINE},
            {"early_stop": HOPELESS},
        ]
        return Judgement(False, **rng.choice(reasons))
    needed = []
    for what, unit in rng.sample(UNITS, rng.choice((1, 2, 3))):
        limit = rng.choice((0.0, 0.02)) if what == "requests lost" else rng.choice((0.9, 100.0))
        used = rng.choice((0.25, 0.3, 0.749, 0.75, 0.99996, 1.0, 1.25, 3.0, 4.0, None))
        slack = float("-inf") if used is None else 1 - used
        measured = None if used is None else used * limit
        needed.append(Requirement(what, limit, measured, unit, slack))
    saturated = rng.random() < 0.2
    return Judgement(not saturated and all(r.met for r in needed), tuple(needed), saturated=saturated)


def _outcome(rng: Random) -> JobOutcome:
    figures: dict[str, float | None] = {
        f"throughput.{name}_tokens_per_s": rng.choice((None, 0.0, 900.0)) for name in ("output", "total")
    }
    facts: dict[str, Any] = {"requests": rng.choice((0, 80, 12_345)), "at_once": rng.choice((0, 64))}
    facts |= {"models": "Step times: made up.", "capacity": "as it is", "offered_per_s": 60.0}
    facts |= {"model": rng.choice((None, "other")), "gpu": None}
    return JobOutcome(figures=figures, facts=facts)


def _candidate(rng: Random) -> Candidate:
    config, instances = config_of(rng), rng.choice((1, 2, 5))
    price = rng.choice((None, Price(3.6, "as given"), Price(3.601, "a list")))
    point = rng.choice(
        ({}, {"gpu": "h100"}, {"gpu": "h100", "max_num_seqs": 64}, {"pools.a.count": 2, "scheduler": "lpm"})
    )
    parts: tuple[Part, ...] = ()
    if rng.random() < 0.3:
        costs = (None, 3.6, 7.2)
        parts = tuple(
            Part(name, rng.choice((1, 2)), "h100", 2, rng.choice(costs)) for name in rng.choice(("a", "ab"))
        )
    return Candidate(
        point, instances, config, instances * config.tp, price, _judgement(rng), _outcome(rng), parts
    )


def _rate(rng: Random) -> HighestRate:
    factor = rng.choice((None, 0.5, 0.994, 1.0, 1.006, 2.0))
    per_s = None if factor is None or rng.random() < 0.1 else 60.0 * factor
    broken = rng.choice((None, _judgement(rng), _judgement(rng)))
    span_s = rng.choice((0.0, 119.9, 120.0, 7199.0, 7200.0))
    return HighestRate(
        factor, per_s, broken, rng.choice((1.0, 4.0)), rng.choice((0, 4000)), span_s, rng.random() < 0.6
    )


def _standing(rng: Random) -> Standing:
    point: dict[str, Any] = {"gpu": rng.choice(("h100", "h200")), "tp": rng.choice((1, 2))}
    point |= rng.choice(({}, {}, {"scheduler": "x" * rng.choice((17, 18, 19, 20))}))
    least = rng.choice((None, 1, 3))
    cost = None if least is None else rng.choice((3.6, 7.2, 10.8)) * least
    return Standing(
        point, least, rng.random() < 0.3, rng.choice((None, 1, 2)), cost, rng.choice(("", "p99 misses"))
    )


def _cases(rng: Random, names: Any) -> tuple[Case, ...]:
    return tuple(Case(name, _judgement(rng, some=False), _outcome(rng)) for name in names)


def _plan(rng: Random) -> PlanResult:
    def maybe(value: Any, share: float = 0.6) -> Any:
        return value if rng.random() < share else None

    gains = (-1.2, -1.0, -0.3, -0.005, 0.0, 0.0049, 0.005, 0.02, 0.3)
    levers = [
        Lever(resource, rng.choice(gains), f"{resource} {how}")
        for resource in ("compute", "host", "KV", "queueing")
        for how in rng.sample(("max_num_seqs 8", "25 % more"), rng.choice((0, 1)))
    ]
    sustained = Sustained(
        _judgement(rng), _outcome(rng), 4.0, rng.random() < 0.5, rng.choice((1.0, 2.0, 4.0))
    )
    changes = [f"{name}×{factor}" for name in ("rate", "prompt", "output") for factor in ("0.8", "1.2")]
    tried: dict[str, tuple[object, ...]] = {"max_num_seqs": (64, 8, 1024), "scheduler": ("sjf",)}
    made = [_standing(rng) for _ in range(rng.choice((0, 1, 3, 14)))]
    several = tuple(sorted(made, key=lambda each: len(each.point)))  # those added by settings come last
    return PlanResult(
        _candidate(rng),
        rng.choice(("dollars per hour", "GPUs", RATE)),
        maybe(sustained),
        maybe(_candidate(rng), 0.3),
        maybe(_candidate(rng)),
        several,
        rng.choice((1, 2, 20)),
        maybe(Knobs(rng.choice(({}, tried)), rng.choice(((), ("tp",))), maybe(_candidate(rng)))),
        (Rated(_candidate(rng), _rate(rng)),) if rng.random() < 0.5 else (),
        rng.choice((0, 1234)),
        rng.choice((0, 5)),
        maybe(_rate(rng), 0.8),
        tuple(sorted(levers, key=lambda each: -each.gain)),
        _cases(rng, rng.sample(changes, rng.choice((0, 5, 6)))),
        _cases(rng, [f"model {name}" for name in rng.sample(("roofline", "trained"), rng.choice((0, 1, 2)))]),
        _cases(rng, [f"draw {n}" for n in range(rng.choice((0, 1, 8, 10)))]),
        rng.random() < 0.5,
        maybe(0.9),
        maybe(_candidate(rng)),
        maybe(0.93),
        maybe(rng.choice((1, 2, 5))),
        maybe(_candidate(rng), 0.4),
        maybe(0.4),
        Errors((Draw(0.9), Draw(1.25)), "runs", rng.choice((0, 7, 8))),
        rng.choice(((), ("a note",))),
    )


def _plans(rng: Random) -> Iterator[Any]:
    from battery import _shown

    from blis_py.planning.pictures import draw

    for index in range(12):
        plan = _plan(rng)
        yield [report_text.answer(plan), report_data.summary(plan)]
        yield [plan.binding, plan.probability, plan.broken, plan.config.workload, plan.max_rate_per_s]
        if index < 4:
            yield list(_shown(draw(plan)))
    with tempfile.TemporaryDirectory() as place:
        _files.fill(Path(place), _plan(rng), plots=False)
        yield [(path.name, path.read_text(encoding="utf-8")) for path in sorted(Path(place).iterdir())]


def _run(rng: Random) -> JobOutcome:
    if rng.random() < 0.15:
        ends: list[dict[str, Any]] = [{"refused": "no"}, {"failed": "odd"}]
        return JobOutcome(**rng.choice(ends))
    figures: dict[str, float | None] = {
        name: rng.choice((None, 1.0, 2.0, 31.0, 30.0))
        for name in ("ttft_ms.p99", "itl_ms.mean", "throughput.output_tokens_per_s", "kv_peak_pct", "tp")
        if rng.random() < 0.8
    }
    met = rng.choice((True, True, False))
    slo = [
        {
            "slo": "ttft.p99=9ms",
            "metric": "ttft",
            "stat": "p99",
            "limit_ms": 9.0,
            "measured_ms": 8.0,
            "met": met,
        }
    ]
    facts = {"gpus": rng.choice((None, 2)), "gpu": rng.choice(("h100", "x")), "models": "made up"}
    return JobOutcome(
        figures=figures, slo=rng.choice(([], slo)), verdict=rng.choice(("", "stable")), facts=facts
    )


def _sweeps(rng: Random) -> Iterator[Any]:
    from battery import _shown

    from blis_py.errors import InputError
    from blis_py.planning.curves import curves

    lists: list[tuple[Any, ...]] = [
        (1, 2, 4),
        ("a", "b"),
        ((1, 2), (3, 4)),
        (True, False),
        (0.5,),
        tuple(range(13)),
    ]
    for _ in range(2):
        names = rng.sample(("rate", "tp", "seed", "scheduler"), rng.choice((0, 1, 2)))
        axes = tuple(Axis(name, name, rng.choice(lists)) for name in names)
        points: list[dict[str, Any]] = [{}]
        for axis in axes:
            points = [{**point, axis.name: value} for point in points for value in axis.values]
        seeds = rng.choice((1, 3))
        rows = tuple(Row(point, seed, _run(rng)) for point in points for seed in range(seeds))
        sweep = Sweep(None, axes, rows, rng.choice((0, 7)))
        yield [
            repr(sweep),
            sweep.seeds,
            sweep.costs(),
            sweep.default_metric(),
            sweep.foot,
            sweep.axes_values(),
        ]
        yield sweep.table.to_dict("list")
        for metric in ("ttft_ms.p99", "throughput.output_tokens_per_s", "tp", "nosuch"):
            try:
                yield [sweep.mean(metric).to_dict("list"), larger_is_better(metric)]
                yield sweep.best(metric, rng.choice((1, 5))).to_dict("list")
            except InputError as error:
                yield str(error)
        picture = curves(sweep.table, sweep.axes_values(), "foot")
        yield None if picture is None else list(_shown(picture))


def _layouts(rng: Random) -> Iterator[Any]:
    for _ in range(8):
        rows = [Row({"xpyd": name}, 0, _of_layout(rng)) for name in ("3", "1p2d", "2p1d")]
        ran = [row for row in rows if row.status == "ok"]
        apart = best_of([row for row in ran if "p" in row.point["xpyd"]] or rows[1:])
        dollars = rng.choice((None, (7.2, 7.2), (7.2, 7.206), (7.2, 9.0)))
        found = Layouts(tuple(rows), rows[0], apart, dollars)
        yield [
            found.lines(),
            found.summary(),
            found.gains,
            found.costs,
            found.winner.point,
            found.loser.point,
        ]


def _of_layout(rng: Random) -> JobOutcome:
    slo: list[dict[str, Any]] = []
    for stat in ("p50", "p99"):
        measured = rng.choice((25.0, 50.0, 100.0, 101.0, None))
        each: dict[str, Any] = {
            "slo": f"ttft.{stat}=100ms",
            "metric": "ttft",
            "stat": stat,
            "limit_ms": 100.0,
        }
        slo.append(each | {"measured_ms": measured, "met": measured is not None and measured <= 100})
    figures: dict[str, float | None] = {
        f"{metric}_ms.{stat}": rng.choice((0.0, 20.0, 21.0, 40.0))
        for metric in ("ttft", "itl")
        for stat in ("mean", "p99")
    }
    return replace(
        JobOutcome(figures=figures, slo=slo), refused=rng.choice((None, None, None, "does not fit"))
    )
