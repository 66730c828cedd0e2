"""One search of a plan: a space, its candidates all judged over the same multiple of the load's duration."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from blis_py.errors import InputError
from blis_py.planning._space import Space
from blis_py.planning.knobs import INTERACTING, improved
from blis_py.planning.result import Knobs
from blis_py.planning.search import Probe, Search
from blis_py.planning.verify import Verifier

_QUICK_LINES, _QUICK_ROUNDS = 1, 2
"""Combinations around which a quick search tries settings, and settings changed one after the other."""


class Attempt:
    """
    Attributes:
        draws, confidence: of the examination of candidates (see `plan`).
        lines: the combinations searched; `combinations` counts all there are.
        tried: the settings tried around the winner, if any were.
    """

    def __init__(self, space: Space, draws: int, confidence: float | None) -> None:
        self.space, self.draws, self.confidence = space, draws, confidence
        lines = [space.line(line) for line in range(len(space.points))]
        self.search = Search(lines, space.sizes, space.evaluate)
        self.verifier = Verifier(space, self.search, draws)
        self.lines: list[int] = []
        self.combinations = 0
        self.tried: Knobs | None = None

    def cheapest(self, trials: int, knobs: bool) -> Probe | None:
        """The cheapest candidate that holds over longer durations, and as surely as demanded."""
        self._begin(trials)
        best = partial(self.verifier.best, confidence=self.confidence)
        found = best(self.lines)
        if knobs:
            found, self.lines, self.tried = improved(
                self.space, self.search, self.lines, found, best, self.verifier.refuted_at
            )
        return found

    def quickly(self, trials: int, knobs: bool) -> Probe | None:
        """The cheapest candidate that holds for the workload as it is; settings are tried only where requests
        are of several kinds, of which some may wait for others."""
        self._begin(trials)
        self.search.lead(self.lines)
        found = self.search.best(self.lines)
        if knobs and self.space.is_mixed():
            found, self.lines, self.tried = improved(
                self.space,
                self.search,
                self.lines,
                found,
                self.search.best,
                lambda probe: None,
                around=_QUICK_LINES,
                rounds=_QUICK_ROUNDS,
                together=INTERACTING[:2],
            )
        return found

    def nearest(self) -> Probe:
        """The candidate nearest to the targets (see `nearest`)."""
        return nearest(self.space, self.search, self.lines)

    def _begin(self, trials: int) -> None:
        self.lines = self.space.search(self.search, trials)
        self.combinations = self.space.count(self.search)


def nearest(space: Space, search: Search, lines: Sequence[int]) -> Probe:
    """The candidate nearest to the targets, among the largest size of every line.

    Raises:
        InputError: none can be run.
    """
    refused = [judged.refused for judged in search.known.values() if judged.refused is not None]
    tried = [line for line in lines if space.largest(line) >= 0]
    if not tried:
        raise InputError("are too few for an instance", key="--gpus", fix="raise it")
    able = [(line, space.largest(line)) for line in tried if search.first_judged(line).refused is None]
    if not able:
        raise InputError(f"no configuration can be run: {refused[0]}")
    search.whole(able)
    return max(able, key=lambda probe: (search.known[probe].slack, -probe[0]))
