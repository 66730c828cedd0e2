"""Parts of the cluster on signals that a test makes up: the one place that knows how they are built."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from naive_routing import Known
from one_pool import simulate
from shown_signals import ShownSignals

from blis_py.cluster.flow_settings import FlowSettings
from blis_py.cluster.ingress.admission import (
    ADMISSION_POLICIES,
    AdmissionSettings,
    AdmissionSetup,
    TenantBudgets,
)
from blis_py.cluster.ingress.saturation import SATURATION_DETECTORS
from blis_py.cluster.routing.policies import weighted
from blis_py.cluster.routing.rng import Rng
from blis_py.cluster.routing.router import RouterSetup
from blis_py.core.request import Request
from blis_py.metrics.record import RunRecord
from blis_py.requests.table import Labels, RequestTable


class Shown(ShownSignals):
    """Signals from what a naive model knows."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.show([Known(0, 0, 0.0, 0, 0)] * count)

    def show(self, known: Sequence[Known]) -> None:
        """Report it."""
        self.report(
            queue_depth=[one.queue for one in known],
            batch_size=[one.batch for one in known],
            kv_utilization=[one.kv for one in known],
            in_flight=[one.in_flight for one in known],
            cached=[one.cached for one in known],
        )


class RealWeighted:
    """The router's `weighted` policy."""

    def __init__(self, profile: Mapping[str, float], count: int) -> None:
        self.shown = Shown(count)
        rng = Rng(np.random.default_rng(0))
        self._router: Any = weighted(RouterSetup(self.shown, rng, tuple(profile.items())))  # type: ignore[arg-type]

    def scores(self, blocks: Sequence[Hashable], prompt_tokens: int, known: Sequence[Known]) -> list[float]:
        self.shown.show(known)
        self._request = Request("r", 0, prompt_tokens, block_keys=blocks)
        return [float(score) for score in self._router.score(self._request)]

    def sent(self, index: int) -> None:
        for part in self._router._parts:
            part.scorer.sent(self._request, index)


class RealAdmission:
    """An admission policy for requests that are known beforehand."""

    def __init__(
        self,
        policy: str,
        shown: Shown,
        prompts: Sequence[int],
        classes: Sequence[str],
        tenants: Sequence[str],
        slots: int = 0,
        **settings: Any,
    ) -> None:
        rows = np.zeros(len(prompts), dtype=np.int64)
        table = RequestTable.build(
            rows, rows + 1, rows + 1, slo_class=Labels.of(list(classes)), tenant=Labels.of(list(tenants))
        )
        setup = AdmissionSetup(AdmissionSettings(**settings), shown, SimpleNamespace(slots=slots), table)  # type: ignore[arg-type]
        policy_of: Callable[..., Any] = ADMISSION_POLICIES[policy]
        self._policy = policy_of(setup)
        self._budgets = TenantBudgets(setup, self._policy)
        self._requests = [Request(f"{row}", 0, prompt, row=row) for row, prompt in enumerate(prompts)]

    def admits(self, row: int, now_ns: int) -> bool:
        return self._budgets(self._requests[row], now_ns) == ""

    def ended(self, row: int) -> None:
        self._budgets.ended(self._requests[row], 0)


def saturation(name: str, shown: Shown, **settings: Any) -> float:
    """What a saturation detector makes of the signals."""
    detector = SATURATION_DETECTORS[name](FlowSettings(**settings), shown)  # type: ignore[arg-type]
    return detector(sum(shown.in_flight))


def simulated(table: RequestTable, **settings: Any) -> RunRecord:
    """A run of a cluster."""
    return simulate(table, **settings)
