"""The rounds of a measurement: every shape once per round, each time in another order."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np

from blis_py.traces.samples import StepSamples, joined
from engine.driver import Engine
from engine.profile.shapes import Limits
from engine.profile.store import Store

ShapeT = TypeVar("ShapeT", contravariant=True)
VisitedT = TypeVar("VisitedT")
Progress = Callable[[str, int, int], None]
"""What is being done, visits made, visits to make."""

SENTINEL_EVERY = 16
"""Visits from one of the sentinel to the next."""


class Bench(Protocol[ShapeT]):
    """Measures one shape; see `engine.profile.measure`."""

    @property
    def engine(self) -> Engine: ...

    limits: Limits
    stride: int
    """Different compositions of one visit, told apart by `shape` 0 to stride - 1 in what it returns."""

    def visit(self, shape: ShapeT) -> StepSamples: ...

    def serve(self, number: int) -> list[StepSamples]:
        """Short runs with requests coming, going and waiting, others for every number.

        What a host pays when the batch changes, or while others wait, is in no shape that stands still.
        """
        ...


def no_progress(what: str, done: int, total: int) -> None:
    """Nobody is looking."""


def measure(
    bench: Bench[ShapeT],
    shapes: Sequence[ShapeT],
    sentinel: ShapeT,
    store: Store,
    *,
    rounds: int,
    seed: int = 0,
    budget_s: float | None = None,
    progress: Progress = no_progress,
) -> bool:
    """Measure until the store has so many rounds; what a visit brings is on disk when it is over.

    A shape's first visit warms up and does not count; another follows at once. So there are rows from the
    beginning, and a measurement that is broken off has a random part of the shapes.

    Args:
        sentinel: visited every now and then, with the source that it names.
        budget_s: no visit begins so many seconds from now or later, warm-up included; one is always measured.

    Returns:
        Whether all rounds have been measured.
    """
    ends_s = math.inf if budget_s is None else time.monotonic() + budget_s
    warm: set[ShapeT] = set()
    measured = 0
    while store.rounds < rounds:
        number, begun = store.rounds, store.progress.visits
        visits = _round(shapes, sentinel, number, seed)
        for visit in visits[begun:]:
            if measured and time.monotonic() >= ends_s:
                return False
            if visit.shape not in warm:
                bench.visit(visit.shape)
                warm.add(visit.shape)
            first = visit.index * bench.stride
            store.add(_numbered(bench.visit(visit.shape), first, visit.repetition))
            measured += 1
            progress("measuring", number * len(visits) + store.progress.visits, rounds * len(visits))
        if measured and time.monotonic() >= ends_s:
            return False
        store.end_round(joined(bench.serve(number)))
    return True


@dataclass(frozen=True, slots=True)
class _Visit(Generic[VisitedT]):
    """One visit of a round."""

    shape: VisitedT
    index: int
    """Of the shape in the plan; 0 for the sentinel."""
    repetition: int


def _round(shapes: Sequence[VisitedT], sentinel: VisitedT, number: int, seed: int) -> list[_Visit[VisitedT]]:
    """The visits of the round of this number: all shapes, in an order of its own, and sentinels between."""
    order: list[int] = np.random.default_rng([seed, number]).permutation(len(shapes)).tolist()
    sentinels = -(-len(order) // SENTINEL_EVERY)
    visits = []
    for place, index in enumerate(order):
        if place % SENTINEL_EVERY == 0:
            visits.append(_Visit(sentinel, 0, number * sentinels + place // SENTINEL_EVERY))
        visits.append(_Visit(shapes[index], index, number))
    return visits


def _numbered(samples: StepSamples, first_shape: int, visit: int) -> StepSamples:
    """With the numbers of shape and repetition that the rows of this visit have in the whole."""
    local = samples["shape"]
    repetition = np.zeros(len(samples), dtype=np.int64)
    for shape in np.unique(local):
        rows = np.flatnonzero(local == shape)
        repetition[rows] = visit * len(rows) + np.arange(len(rows))
    return StepSamples(
        samples.meta, {**samples.table, "shape": local + first_shape, "repetition": repetition}
    )
