"""Admission: who is let into the cluster.

A policy is a class and one line in `ADMISSION_POLICIES`, or an entry point of a package that is installed:

    [project.entry-points."blis_py.admission_policies"]
    office-hours = "my_package:OfficeHours"
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from blis_py.cluster.admission_settings import AdmissionSettings
from blis_py.cluster.signals import Signals
from blis_py.core.bounds import SECOND_NS
from blis_py.core.request import Request
from blis_py.core.slo import CLUSTER_PRIORITY, DEFAULT_CLASS
from blis_py.requests.table import RequestTable

if TYPE_CHECKING:
    from blis_py.cluster.fleet import Membership

REJECT_ALL, NO_TOKENS, TOO_LONG = "reject-all", "insufficient tokens", "prompt beyond the bucket"
TIER_SHED, SATURATED, OVER_BUDGET = "tier-shed", "saturated", "tenant budget"


class AdmissionSetup:
    """What a policy is made of.

    Args:
        signals: what it may know of the instances.
        fleet: the instances.
        priorities: of SLO classes, on the cluster's side, that replace the defaults.
    """

    def __init__(
        self,
        settings: AdmissionSettings,
        signals: Signals,
        fleet: Membership,
        table: RequestTable,
        priorities: Mapping[str, int] | None = None,
    ) -> None:
        self.settings, self.signals, self._fleet = settings, signals, fleet
        by_class = CLUSTER_PRIORITY | dict(priorities or {})
        by_code = [by_class[name or DEFAULT_CLASS] for name in table.slo_class.names]
        self.priority = [by_code[code] for code in table.slo_class.codes.tolist()]
        """Of each request by `request.row`; larger is more urgent, and below 0 it may be shed."""
        self.tenant = table.tenant.to_list()
        """Of each request by `request.row`; empty where it has none."""

    @property
    def slots(self) -> int:
        """Requests that the ready instances can run at once, all together."""
        return self._fleet.slots


class Admission(Protocol):
    """Decides about every request, in order of arrival."""

    looks_at_load: bool
    """Whether the answer depends on the state of the instances. Then `Signals.look` has been called when it
    is asked; if not, it can be asked ahead of time."""

    def __call__(self, request: Request, now_ns: int) -> str:
        """Why the request is rejected, in a few words; empty = it is admitted."""
        ...


MakeAdmission = Callable[[AdmissionSetup], Admission]


class AlwaysAdmit:
    """Everybody."""

    looks_at_load = False

    def __init__(self, setup: AdmissionSetup) -> None: ...

    def __call__(self, request: Request, now_ns: int) -> str:
        return ""


class RejectAll:
    """Nobody."""

    looks_at_load = False

    def __init__(self, setup: AdmissionSetup) -> None: ...

    def __call__(self, request: Request, now_ns: int) -> str:
        return REJECT_ALL


class TokenBucket:
    """A limit on prompt tokens per second. The bucket is full at first; a prompt takes its length."""

    looks_at_load = False

    def __init__(self, setup: AdmissionSetup) -> None:
        self._capacity = self._tokens = float(setup.settings.token_bucket_capacity)
        self._per_s = float(setup.settings.token_bucket_refill_rate)
        self._latest_ns = 0

    def __call__(self, request: Request, now_ns: int) -> str:
        refill = (now_ns - self._latest_ns) * self._per_s / SECOND_NS
        self._tokens, self._latest_ns = min(self._capacity, self._tokens + refill), now_ns
        if self._tokens < request.prompt_tokens:
            return TOO_LONG if request.prompt_tokens > self._capacity else NO_TOKENS
        self._tokens -= request.prompt_tokens
        return ""


class TierShed:
    """Under load, only classes of a least priority. The most loaded instance decides whether there is any."""

    looks_at_load = True

    def __init__(self, setup: AdmissionSetup) -> None:
        self._signals, self._priority = setup.signals, setup.priority
        self._threshold = setup.settings.tier_shed_threshold
        self._least = setup.settings.tier_shed_min_priority

    def __call__(self, request: Request, now_ns: int) -> str:
        if self._priority[request.row] >= self._least or self._largest_load() <= self._threshold:
            return ""
        return TIER_SHED

    def _largest_load(self) -> int:
        signals, load = self._signals, self._signals.load
        return max(load) if signals.all_ready else max((load[i] for i in signals.ready), default=0)


class GaieLegacy:
    """When the pool is saturated, no sheddable classes; as the Gateway API inference extension did it.

    Saturation is the mean over instances of waiting requests or KV use over their thresholds, whichever is
    larger; 1 is saturated.
    """

    looks_at_load = True

    def __init__(self, setup: AdmissionSetup) -> None:
        setup.signals.watch_kv()
        self._signals, self._priority = setup.signals, setup.priority
        self._queue, self._kv = setup.settings.gaie_qd_threshold, setup.settings.gaie_kv_threshold

    def __call__(self, request: Request, now_ns: int) -> str:
        return SATURATED if self._priority[request.row] < 0 and self.saturation() >= 1 else ""

    def saturation(self) -> float:
        """Of the pool, as last reported."""
        signals, total = self._signals, 0.0
        for index in signals.ready:
            queued, used = signals.queue_depth[index], signals.kv_utilization[index]
            total += max(queued / self._queue, used / self._kv)
        return total / max(len(signals.ready), 1)


class TenantBudgets:
    """In front of another policy: tenants with more requests under way than their share have no sheddable
    ones admitted.

    Under way is what has been admitted and has not ended. A tenant without a budget has no limit.

    Args:
        then: asked about whoever is within the budget.
    """

    looks_at_load = True

    def __init__(self, setup: AdmissionSetup, then: Admission) -> None:
        self._then, self._priority, self._tenant = then, setup.priority, setup.tenant
        budgets = setup.settings.tenant_budgets
        self._setup, self._budgets = setup, budgets
        self._under_way = dict.fromkeys(budgets, 0)

    def __call__(self, request: Request, now_ns: int) -> str:
        tenant = self._tenant[request.row]
        share = self._budgets.get(tenant)
        if share is None:
            return self._then(request, now_ns)
        most = share * self._setup.slots
        if self._under_way[tenant] > most and self._priority[request.row] < 0:
            return OVER_BUDGET
        why = self._then(request, now_ns)
        if not why:
            self._under_way[tenant] += 1
        return why

    def ended(self, request: Request, seen_ns: int) -> None:
        """One that was admitted is under way no more."""
        tenant = self._tenant[request.row]
        if tenant in self._under_way:
            self._under_way[tenant] -= 1


ADMISSION_POLICIES: dict[str, MakeAdmission] = {
    "always-admit": AlwaysAdmit,
    "reject-all": RejectAll,
    "token-bucket": TokenBucket,
    "tier-shed": TierShed,
    "gaie-legacy": GaieLegacy,
}
"""Name -> what makes the policy. More of them can be installed; see `blis_py.cluster.policies`."""

ADMISSION_GROUP = "blis_py.admission_policies"
"""Of entry points."""
