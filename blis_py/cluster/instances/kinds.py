"""Kinds of requests: what serves them and keeps their record.

A kind other than autoregressive is one object that fulfils `KindOfRequests`, handed to `simulate`.
"""

from __future__ import annotations

from typing import Protocol

from blis_py.cluster.instances.instance import Instance
from blis_py.cluster.recording.observer import Observer
from blis_py.cluster.recording.recorder import Recorder
from blis_py.cluster.time.lookahead import Lookahead
from blis_py.cluster.time.wakeups import WakeupQueue
from blis_py.cluster.topology import Pool
from blis_py.core.request import Request
from blis_py.latency.base import FrontendDelays
from blis_py.requests.table import RequestTable


class Kind(Protocol):
    """A kind of requests in one run: class, recorder and instances."""

    request: type[Request]

    def recorder(self, table: RequestTable, frontend: FrontendDelays, on_the_way_ns: int) -> Recorder: ...

    def instance(
        self, pool: Pool, wakeups: WakeupQueue, recorder: Recorder, lookahead: Lookahead
    ) -> Instance: ...


class KindOfRequests(Protocol):
    """The requests of a workload where they are not autoregressive."""

    @property
    def name(self) -> str:
        """Key in the tables of kinds, `blis_py.core.kinds.KINDS` and those of other parts."""
        ...

    @property
    def block_tokens(self) -> int:
        """Tokens that an answer grows by at a time."""
        ...

    def describe(self) -> str:
        """The serving part in a few words."""
        ...

    def served(self, record_steps: bool, single_step: bool, observer: Observer | None) -> Kind:
        """The kind as one run serves it; see `blis_py.cluster.simulation.Simulation`."""
        ...
