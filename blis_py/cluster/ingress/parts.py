"""Assembly of the stages before the router: admission and flow control, where configured."""

from __future__ import annotations

from collections.abc import Callable

from blis_py.cluster.admission_settings import AdmissionSettings
from blis_py.cluster.ingress.admission import Admission, AdmissionSetup, TenantBudgets, admission_policy
from blis_py.cluster.ingress.admission_gateway import AdmissionGateway
from blis_py.cluster.ingress.gateway import Dispatch, Gateway
from blis_py.cluster.ingress.source import Source
from blis_py.cluster.instances.evictable import Evict
from blis_py.cluster.instances.fleet import Membership
from blis_py.cluster.recording.recorder import Recorder
from blis_py.cluster.routing.signals import Signals
from blis_py.cluster.time.events import EventQueue
from blis_py.cluster.time.lookahead import Lookahead, LookaheadSource
from blis_py.cluster.topology import Ingress


class IngressParts:
    """Admission and flow control of a cluster, with their delays.

    Raises:
        InputError: an unknown admission policy.
    """

    def __init__(self, ingress: Ingress) -> None:
        self._make = admission_policy(ingress.admission_policy)
        self._settings = settings = ingress.admission or AdmissionSettings()
        self._flow_control, self._slo_priorities = ingress.flow_control, ingress.slo_priorities
        self._admission_ns, self._routing_ns = ingress.admission_latency_ns, ingress.routing_latency_ns
        self._decides = ingress.admission_policy != "always-admit" or bool(settings.tenant_budgets)

    @property
    def first_ns(self) -> int:
        """Time from an arrival to the first decision about it."""
        if self._decides or self._flow_control is not None:
            return self._admission_ns
        return self._admission_ns + self._routing_ns

    def built(
        self,
        events: EventQueue,
        source: Source,
        signals: Signals,
        fleet: Membership,
        dispatch: Dispatch,
        lookahead: Lookahead,
        recorder: Recorder,
        evict: Evict,
        counted_twice: Callable[[], int],
    ) -> tuple[Gateway, *tuple[LookaheadSource, ...]]:
        """The gateway, and the queue behind it if there is one.

        Args:
            signals, fleet: of all instances, on either side of a hand-over.
            evict, counted_twice: see `FlowControl`.
        """
        flow_control, routing_ns = self._flow_control, self._routing_ns
        if not self._decides and flow_control is None:
            return (Gateway(events, source, self.first_ns, dispatch, lookahead),)
        setup = AdmissionSetup(self._settings, signals, fleet, source.table, self._slo_priorities)
        admit = self._admission(setup, recorder)
        queues: list[LookaheadSource] = []
        if flow_control is not None:
            from blis_py.cluster.ingress.flow_control import FlowControl  # imported only where needed

            there = evict, counted_twice, routing_ns, dispatch, lookahead, recorder
            queue = FlowControl(events, flow_control, setup, *there, closed=admit.looks_at_load)
            dispatch, routing_ns, queues = queue, 0, [queue]
        delays_ns = self._admission_ns, routing_ns
        if not self._decides:
            return (Gateway(events, source, sum(delays_ns), dispatch, lookahead), *queues)
        return (
            AdmissionGateway(events, source, *delays_ns, dispatch, lookahead, admit, signals, recorder),
            *queues,
        )

    def _admission(self, setup: AdmissionSetup, recorder: Recorder) -> Admission:
        """The admission policy, behind the tenants' budgets if there are any."""
        admit = self._make(setup)
        if not self._settings.tenant_budgets:
            return admit
        budgets = TenantBudgets(setup, admit)
        recorder.notify(budgets.ended)
        return budgets
