"""Dispatch in a fleet that serves several models: each request among the instances of its model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from blis_py.cluster.routing.dispatcher import Dispatcher
from blis_py.core.request import Request


class ModelDispatcher:
    """A dispatcher for each model, and one for requests without a model, which may go to any instance.

    Args:
        anywhere: for all other requests.
        by_model: the dispatcher of each model that some instances serve, by its code.
        codes: the code of each request's model, by row.
    """

    def __init__(
        self, anywhere: Dispatcher, by_model: Mapping[int, Dispatcher], codes: NDArray[np.int32]
    ) -> None:
        self._anywhere, self._by_model, self._codes = anywhere, by_model, codes

    def __call__(self, due: Sequence[tuple[int, Request]]) -> None:
        """Dispatch requests in this order, each at its time."""
        begin = 0
        while begin < len(due):
            dispatcher = self._of(due[begin][1])
            end = begin + 1
            while end < len(due) and self._of(due[end][1]) is dispatcher:
                end += 1
            dispatcher(due[begin:end])
            begin = end

    def _of(self, request: Request) -> Dispatcher:
        return self._by_model.get(int(self._codes[request.row]), self._anywhere)

    def report(self, dispatched: int) -> None:
        """Report progress."""
        self._anywhere.report(dispatched)
