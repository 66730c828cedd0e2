"""Statistics of random samples: what `blis_py.metrics` computes, without a run around it."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np
from drawing import digest

from blis_py.latency.step_run import PricedRun, StepRun
from blis_py.metrics import bootstrap, csv_bytes, detectors, reuse
from blis_py.metrics.distribution import Distribution, Tally, statistics
from blis_py.metrics.slo import GoodputTargets, parse_slo, verdict
from blis_py.metrics.step_ends import StepEnds
from blis_py.requests.table import RequestTable


def figures(first: str, count: str) -> Iterator[str]:
    """A line for each seed, with a digest for each part."""
    for seed in range(int(first), int(first) + int(count)):
        rng = np.random.default_rng(seed)
        parts = (_distributions, _changes, _saturation, _reused, _step_ends, _cells, _targets)
        yield f"{seed} {' '.join(f'{part.__name__[1:]} {digest(list(part(rng)))}' for part in parts)}"


def _distributions(rng: np.random.Generator) -> Iterator[Any]:
    tally = Tally()
    for rows in (1, 2, 3, 50):
        values = rng.integers(0, rng.choice((4, 10**3, 10**11)), rows)
        weights = rng.integers(0, 4, rows) + (np.arange(rows) == 0)
        tally.add(values, weights)
        for one in (Distribution.of(values), Distribution.weighted(values, weights), tally.distribution()):
            yield [one.count, one.mean, one.std, *(one.percentile(q) for q in (0, 1, 37.5, 50, 99, 100))]
            yield [one.curve(5), statistics(one), one.stat("p12.5")]


def _changes(rng: np.random.Generator) -> Iterator[Any]:
    for rows in (1, 39, 40, 41, 95):
        before = np.where(rng.random(rows) < 0.05, np.nan, rng.exponential(3.0, rows))
        after = before * rng.uniform(0.7, 1.4) + rng.normal(0, 0.2, rows)
        yield bootstrap.changes(before, after, ("mean", "p50", "p99"))
        yield bootstrap.change_at(before, after, 90.0)
        yield [bootstrap.change_at(before, after, 90.0).sure]


def _saturation(rng: np.random.Generator) -> Iterator[Any]:
    """Load that may exceed what a server of one request at a time completes."""
    arrivals = np.cumsum(rng.exponential(1e9, 120)).astype(int)
    arrivals -= arrivals % rng.choice((1, 10**9))
    ends, free = [], 0.0
    slower = rng.choice((0.3, 0.95, 1.6))
    for arrival in arrivals.tolist():
        free = max(free, arrival) + rng.exponential(slower * 1e9)
        free -= free % rng.choice((1, 5e8))
        ends.append(int(free))
    events = [detectors.Event(int(time), True) for time in arrivals]
    lost = rng.random(len(ends)) < 0.1
    for arrival, end, gone in zip(arrivals.tolist(), ends, lost.tolist(), strict=True):
        events.append(detectors.Event(end, False, None if gone else end - arrival))
    events.sort(key=lambda event: event.time_ns)
    settings = detectors.DetectorSettings(int(rng.integers(1, 9)) * 10**9, int(rng.integers(3, 30)) * 10**9)
    found = detectors.detect(events, detectors.DETECTORS, settings, int(rng.integers(5, 50)) * 10**9)
    yield found.report()
    yield found.findings


def _reused(rng: np.random.Generator) -> Iterator[Any]:
    contents = [
        tuple((f"{name}{depth}", int(rng.integers(1, 40))) for depth in range(int(rng.integers(1, 4))))
        for name in "abc"
    ]
    rows = 30
    prompt, output = rng.integers(1, 120, rows), rng.integers(1, 20, rows)
    table = RequestTable.build(
        np.cumsum(rng.integers(1, 10**6, rows)),
        prompt,
        output,
        content=rng.integers(-1, len(contents), rows),
        contents=tuple(contents),
    )
    for block in (1, 4, 16):
        yield reuse.unlimited(table, block)
        yield [reuse.clairvoyant(table, block, blocks) for blocks in (0, 1, 5, 20, 1000)]
        yield reuse.unlimited(table, block).hit_rate


def _step_ends(rng: np.random.Generator) -> Iterator[Any]:
    column, now = StepEnds(), 0
    for _ in range(60):
        steps = int(rng.choice((1, 1, 2, 8, 9, 40)))
        gaps = rng.integers(1, 10**6, steps) if rng.random() < 0.5 else np.full(steps, 777)
        ends = now + np.cumsum(gaps)
        column.append(StepRun(1, int(ends[0])) if steps == 1 else PricedRun(ends))
        now = int(ends[-1])
        if rng.random() < 0.1:
            yield column.one(int(rng.integers(column.steps)))
    yield [column.steps, column.last_ns, column.ns(), column.at(rng.integers(0, column.steps, 20))]
    yield [column == StepEnds.of(column.ns()), column == StepEnds.of(column.ns()[1:])]


def _cells(rng: np.random.Generator) -> Iterator[Any]:
    values = rng.integers(-3, 10 ** int(rng.integers(1, 8)), 20)
    yield csv_bytes.lines(
        [
            csv_bytes.numbers(values),
            csv_bytes.numbers(values * 0.5),
            csv_bytes.fixed_point(values, 3),
            csv_bytes.texts([*("a", 'b"', "c,d", "", "e\nf"), *"ghijklmnopqrstu"]),
        ]
    )
    yield csv_bytes.header(("x", "y,z"))


def _targets(rng: np.random.Generator) -> Iterator[Any]:
    draw = Random(int(rng.integers(10**9)))

    def some() -> GoodputTargets:
        names = draw.sample(("", "critical", "batch"), draw.randrange(3))
        return GoodputTargets({name: {draw.choice(("ttft", "e2e")): draw.random() * 1e9} for name in names})

    one, other = some(), some()
    yield [one.under(other, ("critical", "standard")), one.merged(other), one.of_class("batch")]
    for text in ("ttft.p99=500ms", "critical.itl.mean=30ms", "e2e.max=1s"):
        check = parse_slo(text)
        values = (0.0, check.limit_ns, check.limit_ns + 1, np.nan)
        yield [verdict(check, value, requests) for value in values for requests in (0, 1, 9)]
