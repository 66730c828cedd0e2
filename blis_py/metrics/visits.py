"""One record per visit of a request to an instance, as columns; the requests' own columns derive from
these.

Most requests visit one instance. A request that is handed over (from a prefill instance to a decode instance)
has several visits, in turn; between two of them is a gap.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field, fields
from enum import IntEnum
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from blis_py.core.light_dataclass import dataclass
from blis_py.metrics.emission import EmittedTokens, Rows, ranges
from blis_py.requests.table import Ints


class Role(IntEnum):
    """The phases of a request that an instance computes."""

    BOTH = 0
    PREFILL = 1
    DECODE = 2


class Onward(IntEnum):
    """End of a visit whose request continues elsewhere. All other visits end with an `Outcome`."""

    HANDED_OVER = 16


Column = TypeVar("Column", bound=NDArray[Any])


@dataclass(slots=True, eq=False, repr=False)
class Visits:
    """Row r < `requests` is the first visit of request r; further ones follow in the order they began.

    Times are absolute ns as the client sees them, -1 = not reached. A request on its way to an instance, or
    one that never reaches any, has a visit too: its instance is -1.
    """

    requests: int
    """Number of requests."""
    request: Ints
    instance: NDArray[np.int32]
    role: NDArray[np.int8]
    """The `Role` of the instance."""
    outcome: NDArray[np.int8]
    """An `Onward` or, for a request's last visit, the `Outcome` of the request."""
    enqueue_ns: Ints
    """Entry into the instance's waiting queue."""
    scheduled_ns: Ints
    """Start of the first step that computed tokens for it."""
    first_token_ns: Ints
    last_token_ns: Ints
    finish_ns: Ints
    """End as the client sees it; for a visit that ends `Onward`, the time it left the instance."""
    emitted_tokens: Ints
    cached_tokens: Ints
    """Prompt tokens found in the prefix cache at first admission."""
    preemptions: Ints
    emission: EmittedTokens
    """The steps with which it emitted."""
    _order: tuple[Rows, Ints, Ints] | None = field(default=None, init=False)

    def __len__(self) -> int:
        return len(self.request)

    @property
    def single(self) -> bool:
        """Whether every request has one visit, so that visit columns are request columns."""
        return len(self.request) == self.requests

    # -- columns of the requests -------------------------------------------------------------------

    def first(self, column: Column) -> Column:
        """Values of each request's first visit."""
        return column if self.single else column[: self.requests]  # type: ignore[return-value]

    def last(self, column: Column) -> Column:
        """Values of each request's last visit."""
        if self.single:
            return column
        latest = np.empty(self.requests, dtype=np.intp)
        latest[self.request] = np.arange(len(self))  # of several, the last one counts
        return column[latest]  # type: ignore[return-value]

    def total(self, column: Column) -> Column:
        """Sum over each request's visits."""
        if self.single:
            return column
        total = column[: self.requests].copy()
        np.add.at(total, self.request[self.requests :], column[self.requests :])
        return total  # type: ignore[return-value]

    def first_known(self, column: Column) -> Column:
        """The first value that is not -1 among each request's visits."""
        return column if self.single else self._known(column, np.flatnonzero(column >= 0)[::-1])

    def last_known(self, column: Column) -> Column:
        """The last value that is not -1 among each request's visits."""
        return column if self.single else self._known(column, np.flatnonzero(column >= 0))

    def _known(self, column: Column, visits: Rows) -> Column:
        known = np.full(self.requests, -1, dtype=column.dtype)
        known[self.request[visits]] = column[visits]
        return known  # type: ignore[return-value]

    # -- visits of requests --------------------------------------------------------------------------

    def of(self, rows: Rows) -> tuple[Rows, Ints]:
        """Visits request by request, in order, and the number of visits of each."""
        if self.single:
            return rows, np.ones(len(rows), dtype=np.int64)
        if self._order is None:
            counts = np.bincount(self.request, minlength=self.requests)
            self._order = np.argsort(self.request, kind="stable"), np.cumsum(counts) - counts, counts
        order, starts, counts = self._order
        return order[ranges(starts[rows], counts[rows])], counts[rows]

    def take(self, rows: Rows) -> Visits:
        """The visits of the given requests, renumbered in the given order."""
        place = np.full(self.requests, -1, dtype=np.int64)
        place[rows] = np.arange(len(rows))
        further = np.flatnonzero(place[self.request[self.requests :]] >= 0) + self.requests
        chosen = np.concatenate((rows, further))
        return self._chosen(chosen, requests=len(rows), request=place[self.request[chosen]])

    def alone(self, chosen: Rows, instances: Sequence[int]) -> Visits:
        """These visits as if each were a request's only one, to instances renumbered in this order.

        A visit that was handed over counts as completed: the instance has done its part.

        Args:
            instances: all that the visits are to, ascending.
        """
        outcome = np.where(self.outcome[chosen] == Onward.HANDED_OVER, 0, self.outcome[chosen])
        return self._chosen(
            chosen,
            requests=len(chosen),
            request=np.arange(len(chosen)),
            instance=np.searchsorted(instances, self.instance[chosen]).astype(np.int32),
            outcome=outcome.astype(np.int8),
        )

    def _chosen(self, chosen: Rows, **changed: Any) -> Visits:
        columns = {
            column.name: value[chosen]
            for column in fields(self)
            if isinstance(value := getattr(self, column.name), np.ndarray)
        }
        return Visits(**columns | {"emission": self.emission.take(chosen)} | changed)


def by_instance(instance: NDArray[np.int32]) -> Iterator[tuple[int, Rows]]:
    """The instances that occur, each with the indices of its visits, in order."""
    order = instance_order(instance)
    instance = instance[order]
    starts = np.flatnonzero(np.diff(instance, prepend=instance[:1] - 1))
    ends = [*starts[1:].tolist(), len(order)]
    for start, end in zip(starts.tolist(), ends, strict=False):
        if instance[start] >= 0:
            yield int(instance[start]), order[start:end]


def instance_order(instance: NDArray[np.int32]) -> Rows:
    """Indices in the order of instances, and those of one instance in their own order."""
    few = len(instance) == 0 or instance.max() <= np.iinfo(np.int16).max
    return np.argsort(instance.astype(np.int16) if few else instance, kind="stable")  # a radix sort if few
