"""Waits of urgent requests beside less urgent ones that run: what preemption or a free slot would save."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from blis_py.core.slo import instance_priorities
from blis_py.metrics.record import RunRecord
from blis_py.requests.table import Ints

_LONG_NS = 1_000_000_000
"""Waits from here on count: a request that is admitted at once also waits for the end of a step."""


def priority_waits(record: RunRecord) -> dict[str, Any]:
    """Requests that waited a second or more on their instance while less urgent ones ran there, and the
    longest such wait in ms; empty if there are none. No admission passes them: no priority inversions.
    """
    waited_ns = _waited_ns(record)
    long_ns = waited_ns[waited_ns >= _LONG_NS]
    if not len(long_ns):
        return {}
    return {"priority_waits": {"requests": len(long_ns), "max_ms": float(long_ns.max()) / 1e6}}


def _waited_ns(record: RunRecord) -> Ints:
    """Time of each request in instances' queues during which a less urgent one ran there."""
    waited_ns = np.zeros(len(record.table), dtype=np.int64)
    priorities = _priorities(record)
    levels = np.unique(priorities)
    if len(levels) < 2:
        return waited_ns
    visits, end_ns = record.visits, record.end_ns
    queued = visits.enqueue_ns >= 0
    ran = queued & (visits.scheduled_ns >= 0)
    gone_ns = np.where(visits.finish_ns >= 0, visits.finish_ns, end_ns)
    admitted_ns = np.where(ran, visits.scheduled_ns, gone_ns)
    # Instances follow one another on one axis of time, so that one search serves all of them.
    span_ns = 1 + int(max(gone_ns.max(), admitted_ns.max(), end_ns))
    offset_ns = visits.instance.astype(np.int64) * span_ns
    level = priorities[visits.request]
    for urgent in levels[:-1]:
        waiting, running = queued & (level == urgent), ran & (level > urgent)
        if not waiting.any() or not running.any():
            continue
        busy = _Busy((visits.scheduled_ns + offset_ns)[running], (gone_ns + offset_ns)[running])
        begin_ns, until_ns = (visits.enqueue_ns + offset_ns)[waiting], (admitted_ns + offset_ns)[waiting]
        beside_ns = busy.before_ns(until_ns) - busy.before_ns(begin_ns)
        np.add.at(waited_ns, visits.request[waiting], beside_ns)
    return waited_ns


def _priorities(record: RunRecord) -> Ints:
    """Priority of each request inside an instance; smaller is more urgent."""
    known = instance_priorities(record.config.get("admission", {}).get("slo_priorities"))
    classes = record.table.slo_class
    of_class = np.array([known.get(name, known[""]) for name in classes.names], dtype=np.int64)
    return of_class[classes.codes]


class _Busy:
    """The union of intervals."""

    def __init__(self, start_ns: Ints, end_ns: Ints) -> None:
        order = np.argsort(start_ns, kind="stable")
        start_ns, last_ns = start_ns[order], np.maximum.accumulate(end_ns[order])
        first: NDArray[np.bool_] = np.concatenate(([True], start_ns[1:] > last_ns[:-1]))
        self.start_ns = start_ns[first]
        self.end_ns = last_ns[np.concatenate((np.flatnonzero(first)[1:] - 1, [len(order) - 1]))]
        lengths_ns = self.end_ns - self.start_ns
        self.earlier_ns = np.cumsum(lengths_ns) - lengths_ns

    def before_ns(self, time_ns: Ints) -> Ints:
        """The length of its part before each time."""
        index = np.searchsorted(self.start_ns, time_ns, side="right") - 1
        own_ns = np.minimum(time_ns, self.end_ns[index]) - self.start_ns[index]
        return np.where(index < 0, 0, self.earlier_ns[index] + own_ns)
