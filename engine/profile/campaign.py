"""Rounds of a measurement: every shape once per round, in a different order each time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np

from blis_py.traces.samples import StepSamples, joined
from engine.kinds import Engine
from engine.profile.shapes import ShapeLimits
from engine.profile.store import ProfileStore

ShapeT = TypeVar("ShapeT", contravariant=True)
VisitedT = TypeVar("VisitedT")
Progress = Callable[[str, int, int], None]
"""Progress callback: the current action, visits made, visits in total."""

SENTINEL_EVERY = 16
"""Visits between two visits of the sentinel."""


class Bench(Protocol[ShapeT]):
    """Measurement of one shape; see `engine.profile.measure`."""

    @property
    def engine(self) -> Engine: ...

    limits: ShapeLimits
    stride: int
    """Number of compositions in one visit, distinguished by `shape` 0 to stride - 1 in its rows."""

    def visit(self, shape: ShapeT) -> StepSamples: ...

    def serve(self, number: int) -> list[StepSamples]:
        """Measure short runs with requests arriving, leaving and waiting; different ones for every number.

        They show host costs of batch changes and of waiting requests, which a constant shape does not.
        """
        ...


def no_progress(what: str, done: int, total: int) -> None:
    """Progress callback that does nothing."""


def measure(
    bench: Bench[ShapeT],
    shapes: Sequence[ShapeT],
    sentinel: ShapeT,
    store: ProfileStore,
    *,
    rounds: int,
    seed: int = 0,
    budget_s: float | None = None,
    progress: Progress = no_progress,
) -> bool:
    """Measure until the store has `rounds` rounds; each visit is on disk when it is over.

    A shape's first visit is a warm-up and is discarded; another follows at once. Rows thus exist from the
    beginning, and an interrupted measurement covers a random subset of the shapes.

    Args:
        sentinel: shape visited at intervals, with the source it names.
        budget_s: time after which no visit begins, warm-up included; at least one is measured.

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
    """Index of the shape in the plan; 0 for the sentinel."""
    repetition: int


def _round(shapes: Sequence[VisitedT], sentinel: VisitedT, number: int, seed: int) -> list[_Visit[VisitedT]]:
    """Visits of round `number`: all shapes in an order of its own, with sentinels in between."""
    order: list[int] = np.random.default_rng([seed, number]).permutation(len(shapes)).tolist()
    sentinels = -(-len(order) // SENTINEL_EVERY)
    visits = []
    for place, index in enumerate(order):
        if place % SENTINEL_EVERY == 0:
            visits.append(_Visit(sentinel, 0, number * sentinels + place // SENTINEL_EVERY))
        visits.append(_Visit(shapes[index], index, number))
    return visits


def _numbered(samples: StepSamples, first_shape: int, visit: int) -> StepSamples:
    """Samples with shape and repetition numbers offset to those of the whole measurement."""
    local = samples["shape"]
    repetition = np.zeros(len(samples), dtype=np.int64)
    for shape in np.unique(local):
        rows = np.flatnonzero(local == shape)
        repetition[rows] = visit * len(rows) + np.arange(len(rows))
    return StepSamples(
        samples.meta, {**samples.table, "shape": local + first_shape, "repetition": repetition}
    )
