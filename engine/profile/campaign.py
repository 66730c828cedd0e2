"""The rounds of a measurement: every shape once per round, each time in another order."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import numpy as np

from blis_py.calibrate.samples import StepSamples
from engine.driver import Engine
from engine.profile.shapes import Limits
from engine.profile.store import Store

ShapeT = TypeVar("ShapeT", contravariant=True)
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
        """A short run with requests coming and going, another for every number; none where it adds nothing.

        What a host pays when the batch changes is in no shape that stands still.
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
    """Measures until the store has so many rounds; each is written when it is complete.

    All shapes are visited once to warm up before anything counts.

    Args:
        sentinel: visited every now and then, with the source that it names.
        budget_s: no round begins that would end later than so many seconds from now, judging by the rounds
            before; one is always measured.

    Returns:
        Whether all rounds have been measured.
    """
    if store.rounds >= rounds:
        return True
    began_s = time.monotonic()
    for done, shape in enumerate((sentinel, *shapes)):
        progress("warm-up", done, len(shapes) + 1)
        bench.visit(shape)
    warm_s, first = time.monotonic(), store.rounds
    while store.rounds < rounds:
        store.add(_round(bench, shapes, sentinel, store.rounds, rounds, seed, progress))
        now_s = time.monotonic()
        mean_s = (now_s - warm_s) / (store.rounds - first)
        if budget_s is not None and now_s - began_s + mean_s > budget_s:
            break
    return store.rounds >= rounds


def _round(
    bench: Bench[ShapeT],
    shapes: Sequence[ShapeT],
    sentinel: ShapeT,
    number: int,
    rounds: int,
    seed: int,
    progress: Progress,
) -> list[StepSamples]:
    order: list[int] = np.random.default_rng([seed, number]).permutation(len(shapes)).tolist()
    sentinels = -(-len(order) // SENTINEL_EVERY)
    parts = []
    for place, index in enumerate(order):
        if place % SENTINEL_EVERY == 0:
            visit = number * sentinels + place // SENTINEL_EVERY
            parts.append(_numbered(bench.visit(sentinel), 0, visit))
        parts.append(_numbered(bench.visit(shapes[index]), index * bench.stride, number))
        progress("measuring", number * len(order) + place + 1, rounds * len(order))
    return [*parts, *bench.serve(number)]


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
