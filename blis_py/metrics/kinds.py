"""Tables and summary by kind of requests: a module for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from blis_py.core.kinds import modules
from blis_py.metrics._columns import Column
from blis_py.metrics.groups import Rows
from blis_py.metrics.record import InstanceRecord, RunRecord
from blis_py.requests.table import Ints


class KindInNumbers(Protocol):
    """The functions of such a module."""

    NAME: str
    """Key of its part of the summary."""

    def columns(self, record: RunRecord) -> dict[str, Column]:
        """Further columns of the requests table."""
        ...

    def summary(self, record: RunRecord, rows: Rows, instances: Sequence[InstanceRecord]) -> dict[str, Any]:
        """Further figures of a group of requests and the instances that served it."""
        ...

    def block_sizes(self, record: RunRecord, rows: Rows) -> tuple[Ints, Ints]:
        """Tokens of the first block of each of `rows`, and of the later ones, row by row."""
        ...


def kind_of(record: RunRecord) -> KindInNumbers | None:
    """The kind whose answers come in blocks; `None` = autoregressive."""
    if not record.visits.emission.as_blocks:
        return None
    kinds: list[KindInNumbers] = [*modules("blis_py.metrics").values()]
    return kinds[0]
