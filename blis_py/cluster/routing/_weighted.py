"""Routing by a weighted sum of scores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from blis_py.cluster.routing.router import RouterSetup
from blis_py.cluster.routing.scorers import Scorer, Scores, largest
from blis_py.core.request import Request


class ScoreTerm:
    """A scorer and its weight in the sum."""

    def __init__(self, scorer: Scorer, weight: float) -> None:
        self.scorer = scorer
        self._weight = weight
        self._version = -1
        self._scores: Scores = np.zeros(0)
        """Weighted scores of this version."""

    def scores(self, request: Request) -> Scores:
        """The weighted scores."""
        version = self.scorer.version()
        if version < 0 or version != self._version:
            self._scores = np.minimum(np.maximum(self.scorer(request), 0), 1) * self._weight
            self._version = version
        return self._scores


class Weighted:
    """The ready instance with the largest weighted sum of scores; ties at random.

    Weights are normalised to a sum of 1, and the products added in the order of the profile.
    """

    looks_at_load = True

    def __init__(self, setup: RouterSetup, scorers: Sequence[tuple[Scorer, float]]) -> None:
        total = sum(weight for _, weight in scorers)
        self._parts = [ScoreTerm(scorer, weight / total) for scorer, weight in scorers]
        self._rng, self._signals = setup.rng, setup.signals
        self.scores: Scores = np.zeros(0)
        """Scores of the latest decision, by ready instance."""

    def __call__(self, request: Request, now_ns: int) -> int:
        self.scores = scores = self.score(request)
        ties = (scores == largest(scores)).nonzero()[0]
        place = int(ties[0] if len(ties) == 1 else ties[self._rng.below(len(ties))])
        index = self._signals.ready[place]
        for part in self._parts:
            part.scorer.sent(request, index)
        return index

    def score(self, request: Request) -> Scores:
        """The score of each ready instance for the request."""
        total = self._parts[0].scores(request)
        for part in self._parts[1:]:
            total = total + part.scores(request)
        return total
