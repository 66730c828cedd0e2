"""The demand on a cluster: its requests and their properties."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from blis_py.config.check import duration_ns
from blis_py.config.models import RunConfig
from blis_py.core.light_dataclass import dataclass
from blis_py.metrics.slo import GoodputTargets
from blis_py.requests.table import RequestTable

if TYPE_CHECKING:
    from blis_py.requests.loops import Loops
    from blis_py.workload.client import KindOfClient

STRUCTURED_OUTPUTS = "structured outputs"
"""Name of the random stream that selects grammar-constrained requests."""
TARGETS = "goodput_slo_targets"
"""Key in a workload spec or a trace header."""


@dataclass(frozen=True, slots=True, eq=False)
class Demand:
    """Demand on a cluster."""

    table: RequestTable
    """The requests, in order of arrival; with `loops`, all that may be sent, loop by loop."""
    seed: int
    """Seed of their random numbers."""
    kinds: Mapping[str, KindOfClient] = field(default_factory=dict)
    """By client, of those whose requests are not autoregressive."""
    recorded_kind: tuple[str, str] | None = None
    """The kind that the header of a trace states, and the trace; None = autoregressive, or no trace."""
    targets: GoodputTargets = field(default_factory=GoodputTargets)
    """Goodput targets from the workload or trace itself."""
    notes: tuple[str, ...] = ()
    """Notes for the user on how the workload was interpreted."""
    requests_models: bool = False
    """Whether requests for a model other than the served one are rejected."""
    loops: Loops | None = None
    """Closed-loop clients, which wait for answers before sending more; None = none."""
    horizon_ns: int | None = None
    """End of the run in ns; None = when all requests are done."""
    source: str = ""
    """Detected format of a recording, and the evidence; empty if given by the user, or without a
    recording."""

    @property
    def most(self) -> int:
        """Most requests that are sent."""
        return len(self.table) if self.loops is None else self.loops.most(self.table)


def horizon_ns_of(config: RunConfig) -> int | None:
    """End of the run in ns, as configured; None = not configured."""
    return None if config.horizon is None else duration_ns(config.horizon)
