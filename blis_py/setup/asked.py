"""What is asked of a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from blis_py.config.check import duration_ns
from blis_py.config.models import RunConfig
from blis_py.metrics.slo import GoodputTargets
from blis_py.requests.table import RequestTable

if TYPE_CHECKING:
    from blis_py.requests.loops import Loops
    from blis_py.workload.client import KindOfClient

STRUCTURED_OUTPUTS = "structured outputs"
"""Names the random numbers that say whose answer a grammar constrains."""
TARGETS = "goodput_slo_targets"
"""Of a workload spec or of the header of a trace."""


@dataclass(frozen=True, slots=True, eq=False)
class Demand:
    """What is asked of a cluster."""

    table: RequestTable
    """The requests, in order of arrival; with `loops`, all that may be sent, loop by loop."""
    seed: int
    """What their random numbers start from."""
    kinds: Mapping[str, KindOfClient] = field(default_factory=dict)
    """By client, of those whose requests are not autoregressive."""
    recorded_kind: tuple[str, str] | None = None
    """The kind that the header of a trace tells of, and the trace; None = autoregressive, or no trace."""
    targets: GoodputTargets = field(default_factory=GoodputTargets)
    """What a good request meets, by the workload or trace itself."""
    notes: tuple[str, ...] = ()
    """What became of what was asked for."""
    asks_for_models: bool = False
    """Whether requests for another model than the one that is served are nobody's."""
    loops: Loops | None = None
    """Clients that wait for answers before they send more; None = nobody does."""
    horizon_ns: int | None = None
    """When the run stops; None = when all is done."""
    source: str = ""
    """Which format a recording was taken for, and why; empty where somebody said which, or there is none."""


def horizon_ns_of(config: RunConfig) -> int | None:
    """When the run stops, as asked for; None = nothing is said."""
    return None if config.horizon is None else duration_ns(config.horizon)
