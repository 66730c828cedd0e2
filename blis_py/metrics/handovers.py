"""Hand-overs of a run: one row for each transfer of a request from a prefill to a decode instance."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Self

import numpy as np

from blis_py.requests.table import Ints


class HandOver(NamedTuple):
    """One hand-over. Times are absolute ns, -1 = not reached."""

    request: int
    """Row of the request."""
    prefill: int
    decode: int
    """Indices of the instances."""
    arrived_ns: int
    """Choice of the pair."""
    prefill_end_ns: int
    """End of the step that computed the rest of the prompt."""
    reserved_ns: int
    """Reservation of the blocks by the decode instance."""
    begin_ns: int
    """Begin of the transfer on which the request waited: of all, or of the last chunk."""
    end_ns: int
    """Arrival of the KV."""
    alone_ns: int
    """Duration of that transfer on idle links."""
    size_bytes: int
    """Bytes of all transfers."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class HandOvers:
    """All hand-overs of a run, as columns; see `HandOver`."""

    request: Ints
    prefill: Ints
    decode: Ints
    arrived_ns: Ints
    prefill_end_ns: Ints
    reserved_ns: Ints
    begin_ns: Ints
    end_ns: Ints
    alone_ns: Ints
    size_bytes: Ints

    @classmethod
    def of_bytes(cls, values: bytes | bytearray) -> Self:
        """The rows one behind the other, as 64-bit integers."""
        table = np.frombuffer(values, dtype=np.int64).reshape(-1, len(HandOver._fields))
        return cls(**dict(zip(HandOver._fields, table.T, strict=True)))

    def __len__(self) -> int:
        return len(self.request)

    def take(self, rows: Ints) -> Self:
        """Those of the given requests, renumbered in the given order."""
        highest = int(max(self.request.max(initial=-1), np.max(rows, initial=-1)))
        place = np.full(highest + 1, -1)
        place[rows] = np.arange(len(rows))
        chosen = np.flatnonzero(place[self.request] >= 0)
        columns = {field.name: getattr(self, field.name)[chosen] for field in fields(self)}
        return type(self)(**columns | {"request": place[self.request[chosen]]})

    def of(self, row: int) -> HandOver | None:
        """The hand-over of a request; None if it had none."""
        places = np.flatnonzero(self.request == row)
        if not len(places):
            return None
        return HandOver(*(int(getattr(self, field.name)[places[0]]) for field in fields(self)))

    @property
    def reservation_ns(self) -> Ints:
        """Wait for blocks of the decode instance: after the prefill, or before it if taken first."""
        since_ns = np.where(self.reserved_ns < self.prefill_end_ns, self.arrived_ns, self.prefill_end_ns)
        return np.asarray(self.reserved_ns - since_ns)

    @property
    def wire_ns(self) -> Ints:
        """Duration of the transfer on idle links."""
        return self.alone_ns

    @property
    def link_queue_ns(self) -> Ints:
        """Delay by other transfers, earlier chunks of the same request included."""
        return np.asarray(self.end_ns - self.begin_ns - self.alone_ns)

    def summary(self) -> dict[str, Any]:
        """Counts, bytes and mean waits."""
        if not len(self):
            return {}
        return {
            "handovers": len(self),
            "handover_gb": float(self.size_bytes.sum()) / 1e9,
            "handover_reservation_ms": float(self.reservation_ns.mean()) / 1e6,
            "handover_link_queue_ms": float(self.link_queue_ns.mean()) / 1e6,
            "handover_wire_ms": float(self.wire_ns.mean()) / 1e6,
        }
